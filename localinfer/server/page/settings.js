// What can be set for a conversation. Values are texts as they were typed; empty ones leave it to the model.

import { element } from "./dom.js";

const NUMBERS = [
  ["temperature", "Temperature", "0 takes the likeliest token", 0, 5, 0.05],
  ["top_p", "Top p", "share of likeliest tokens, above 0, up to 1", 0.01, 1, 0.01],
  ["top_k", "Top k", "how many of the likeliest; -1 for all", -1, 1e6, 1],
  ["min_p", "Min p", "least share of the likeliest one's", 0, 0.99, 0.01],
  ["repetition_penalty", "Repetition penalty", "1 is none", 0.01, 10, 0.01],
  ["presence_penalty", "Presence penalty", "0 is none", -100, 100, 0.1],
  ["frequency_penalty", "Frequency penalty", "0 is none", -100, 100, 0.1],
  ["max_tokens", "Longest answer", "in tokens", 1, 1e7, 1],
  ["seed", "Seed", "the same one gives the same answer", -9e15, 9e15, 1],
];

const MORE_NUMBERS = [
  ["typical_p", "Typical p", "1 is off", 0.01, 1, 0.01],
  ["top_n_sigma", "Top n sigma", "0 is off", 0, 100, 0.1],
  ["dynatemp_range", "Dynatemp range", "by how much it moves; 0 is off", 0, 5, 0.05],
  ["dynatemp_exponent", "Dynatemp exponent", "higher stays lower", 0, 10, 0.1],
  ["xtc_probability", "XTC probability", "how often likely tokens go; 0 is off", 0, 1, 0.05],
  ["xtc_threshold", "XTC threshold", "the probability that makes one likely", 0, 1, 0.01],
  ["dry_multiplier", "DRY multiplier", "against repetitions; 0 is off", 0, 100, 0.1],
  ["dry_base", "DRY base", "for each token that one is longer", 1, 10, 0.05],
  ["dry_allowed_length", "DRY allowed length", "tokens", 0, 1e6, 1],
  ["dry_penalty_last_n", "DRY range", "tokens; -1 for all", -1, 1e7, 1],
  ["repeat_last_n", "Penalties' range", "tokens; -1 for all", -1, 1e7, 1],
  ["mirostat", "Mirostat", "1 or 2; 0 is off", 0, 2, 1],
  ["mirostat_tau", "Mirostat tau", "bits of surprise", 0, 20, 0.1],
  ["mirostat_eta", "Mirostat eta", "how fast it learns", 0, 1, 0.01],
];

const BUDGET = ["thinking_budget", "Longest thought", "tokens; 0 for none, -1 for any", -1, 1e7, 1];

/** The fields of a request for these settings. Error in words if they make none. */
export function requestFields(settings) {
  const fields = {};
  for (const [name, label, , least, most, step] of [...NUMBERS, ...MORE_NUMBERS, BUDGET]) {
    const text = settings[name]?.trim();
    if (!text) continue;
    const value = Number(text);
    if (!Number.isFinite(value) || value < least || value > most || (step === 1 && !Number.isInteger(value))) {
      throw new Error(`Settings: ${label} cannot be ${text}.`);
    }
    fields[name] = value;
  }
  const stop = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stop.length) fields.stop = stop;
  if (settings.thinking) fields.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.effort?.trim()) fields.reasoning_effort = settings.effort.trim();
  const tools = parseTools(settings.tools);
  if (tools.length) {
    fields.tools = tools;
    if (settings.tool_choice) fields.tool_choice = settings.tool_choice;
  }
  return fields;
}

/** The tools that a text describes: OpenAI's list, or a list of bare functions. Error in words. */
export function parseTools(text) {
  if (!text?.trim()) return [];
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`Settings: the tools are no JSON (${error.message}).`);
  }
  const list = Array.isArray(found) ? found : [found];
  return list.map((tool) => {
    const whole = tool?.function ? tool : { type: "function", function: tool };
    if (typeof whole.function?.name !== "string")
      throw new Error('Settings: each tool needs a name, as in [{"name": "clock", "description": "Tells the time."}].');
    return whole;
  });
}

/** Fills the dialog with fields for `settings`, and tells of each change. */
export function showSettings(target, settings, changed) {
  const wrong = element("p", { class: "wrong", role: "alert" });
  const check = () => {
    try {
      requestFields(settings);
      wrong.textContent = "";
    } catch (error) {
      wrong.textContent = error.message.replace("Settings: ", "").replace(/^./, (first) => first.toUpperCase());
    }
  };
  const put = (name, value) => {
    settings[name] = value;
    check();
    changed();
  };
  const field = (name, label, hint, control) => {
    const id = `set-${name}`;
    control.id = id;
    control.value = settings[name] ?? "";
    control.addEventListener("input", () => put(name, control.value));
    if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
    return element(
      "div",
      { class: "field" },
      element("label", { for: id }, label),
      control,
      hint && element("small", { id: `${id}-hint` }, hint),
    );
  };
  const area = (rows, placeholder) => element("textarea", { rows, placeholder, spellcheck: "false" });
  const choice = (...options) => element("select", {}, ...options.map(([value, label]) => element("option", { value }, label)));
  const number = ([name, label, hint, least, most, step]) =>
    field(
      name,
      label,
      hint,
      element("input", {
        type: "number",
        min: least,
        max: most,
        step: step === 1 ? 1 : "any",
        placeholder: "model's",
        inputmode: "decimal",
      }),
    );
  const reset = element(
    "button",
    {
      type: "button",
      onclick: () => {
        for (const name of Object.keys(settings)) if (name !== "model") delete settings[name];
        changed();
        showSettings(target, settings, changed);
      },
    },
    "Reset all",
  );
  target.replaceChildren(
    wrong,
    field("system", "System prompt", "", area("4", "You are a helpful assistant.")),
    element(
      "details",
      { open: true },
      element("summary", {}, "Sampling"),
      element("div", { class: "grid" }, ...NUMBERS.map(number)),
      field("stop", "Stop at", "one text per line", area("2", "")),
    ),
    element(
      "details",
      { open: MORE_NUMBERS.some(([name]) => settings[name]?.trim()) },
      element("summary", {}, "Advanced sampling"),
      element("div", { class: "grid" }, ...MORE_NUMBERS.map(number)),
    ),
    element(
      "details",
      { open: Boolean(settings.thinking || settings.effort || settings.thinking_budget) },
      element("summary", {}, "Thinking"),
      element(
        "div",
        { class: "grid" },
        field(
          "thinking",
          "Thinks first",
          "if the model's template knows enable_thinking",
          choice(["", "as the model does"], ["on", "yes"], ["off", "no"]),
        ),
        field(
          "effort",
          "Effort",
          "such as low or high, if the template reads it",
          element("input", { type: "text", placeholder: "model's", autocomplete: "off" }),
        ),
        number(BUDGET),
      ),
    ),
    element(
      "details",
      { open: Boolean(settings.tools?.trim()) },
      element("summary", {}, "Tools"),
      field(
        "tools",
        "Functions as JSON",
        "a list as OpenAI's API takes it; you are asked for the results of calls",
        area(
          "7",
          '[{"name": "weather", "description": "Tells the weather.",\n  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]',
        ),
      ),
      field("tool_choice", "Calls", "", choice(["", "as the model likes"], ["required", "at least one"], ["none", "none"])),
    ),
    element("div", { class: "dialog-end" }, reset),
  );
  check();
}
