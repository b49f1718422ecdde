// The messages that are shown, and what can be done with each. It changes no conversation: `actions` do.

import { announce, copyButton, element, icon, iconButton, visible } from "./dom.js";
import { Markdown, codeBlock } from "./markdown.js";

const REASONS = {
  length: "The answer was cut off: it reached its longest length, or the context is full.",
  loop: "Ended, since the answer repeated itself.",
  stopped: "Stopped.",
};

export class Thread {
  #target;
  #scroller;
  #actions;
  #views = new Map(); // by node id

  /** `actions`: edit, regenerate, retry, pick and results, each with the node; start with an example's text. */
  constructor(target, scroller, actions) {
    this.#target = target;
    this.#scroller = scroller;
    this.#actions = actions;
  }

  /** Shows the path of a conversation; `running` is the node that is being answered, if any. */
  show(conversation, running, modelName) {
    const path = conversation.path();
    this.#views.clear();
    this.#target.replaceChildren();
    if (path.length === 0) this.#target.append(this.#welcome(modelName));
    for (const [index, node] of path.entries()) {
      const last = index === path.length - 1;
      const view = new MessageView(node, conversation.siblings(node), this.#actions, last);
      this.#views.set(node.id, view);
      this.#target.append(view.element);
      view.update(node === running);
    }
    this.#target.append(this.#results(conversation, path.at(-1), running) ?? "");
  }

  /** Shows what has come of an answer. */
  update(node, running) {
    const view = this.#views.get(node.id);
    if (!view) return; // another branch is shown
    const following = this.follows;
    view.update(running);
    if (following) this.toEnd();
  }

  edit(node) {
    this.#views.get(node.id)?.edit();
  }

  /** Whether the end is in sight, and is to stay so. */
  get follows() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #welcome(modelName) {
    const examples = [
      "Explain how a hash table works, with a picture in text.",
      "Write a limerick about a patient compiler.",
      "Give me three questions to ask at a job interview.",
    ];
    return element(
      "section",
      { class: "welcome" },
      element("span", { class: "logo big", "aria-hidden": "true" }),
      element("h2", {}, modelName ? `Talk to ${visible(modelName)}` : "localinfer"),
      element("p", {}, "It runs on the machine that serves this page. What you write goes there and nowhere else."),
      element(
        "div",
        { class: "examples" },
        ...examples.map((text) => element("button", { type: "button", onclick: () => this.#actions.start(text) }, text)),
      ),
    );
  }

  /** Fields for the results of calls that wait for them. */
  #results(conversation, last, running) {
    if (!last?.calls?.length || last === running) return null;
    const areas = last.calls.map((call) =>
      element("textarea", {
        rows: "2",
        "aria-label": `Result of ${visible(call.name)}`,
        placeholder: `What ${visible(call.name)} returns`,
      }),
    );
    const send = () =>
      this.#actions.results(
        last,
        areas.map((area) => area.value),
      );
    return element(
      "section",
      { class: "results" },
      element("p", {}, "The model waits for what its calls return."),
      ...areas,
      element("button", { type: "button", class: "primary", onclick: send }, "Send results"),
    );
  }
}

class MessageView {
  #node;
  #actions;
  #parts = {};
  #calls = 0;
  #siblings;
  #last;

  constructor(node, siblings, actions, last) {
    this.#node = node;
    this.#siblings = siblings;
    this.#actions = actions;
    this.#last = last;
    const name =
      node.role === "user" ? "You" : node.role === "tool" ? `Result of ${visible(node.name ?? "a tool")}` : visible(node.model || "Model");
    this.#parts.body = element("div", { class: "body" });
    this.#parts.tools = element("div", { class: "tools" });
    this.element = element(
      "article",
      { class: `message ${node.role}`, "aria-label": name, "data-id": node.id },
      element("h2", { class: node.role === "user" ? "unseen" : "who" }, name),
      this.#parts.body,
      this.#parts.tools,
    );
    if (node.role === "user") this.#parts.body.append(element("div", { class: "bubble" }, visible(node.text)));
    if (node.role === "tool") this.#parts.body.append(codeBlock(visible(node.text), ""));
  }

  update(running) {
    if (this.#node.role === "assistant") this.#updateAnswer(running);
    this.#updateTools(running);
  }

  #updateAnswer(running) {
    const node = this.#node;
    const parts = this.#parts;
    this.element.setAttribute("aria-busy", String(running));
    this.element.classList.toggle("running", running);
    if (node.reasoning) this.#showReasoning(running);
    if (node.text) {
      if (!parts.text) {
        parts.text = element("div", { class: "markdown" });
        parts.markdown = new Markdown(parts.text);
        parts.body.append(parts.text);
      }
      const finished = parts.markdown.show(node.text, !running);
      // Blocks that were there when the conversation was opened are not news.
      if (parts.wasRunning) finished.forEach(announce);
    }
    for (const call of (node.calls ?? []).slice(this.#calls)) parts.body.append(toolCall(call));
    this.#calls = node.calls?.length ?? 0;
    parts.waiting?.remove();
    parts.ending?.remove();
    if (running) {
      parts.wasRunning = true;
      if (!node.text && !node.reasoning && !node.calls?.length) {
        parts.waiting = element(
          "p",
          { class: "waiting" },
          element("span", { class: "dots", "aria-hidden": "true" }),
          element("span", { class: "unseen" }, "Waiting for the answer"),
        );
        parts.body.append(parts.waiting);
      }
    } else {
      parts.ending = this.#ending();
      if (parts.ending) parts.body.append(parts.ending);
    }
  }

  #showReasoning(running) {
    const parts = this.#parts;
    if (!parts.reasoning) {
      parts.summary = element("summary", {});
      parts.thought = element("div", { class: "thought" });
      parts.reasoning = element("details", { class: "reasoning" }, parts.summary, parts.thought);
      parts.body.append(parts.reasoning);
    }
    const thinking = running && !this.#node.text && !this.#node.calls?.length;
    parts.summary.textContent = thinking ? "Thinking…" : "Thoughts";
    parts.reasoning.classList.toggle("thinking", thinking);
    parts.thought.textContent = visible(this.#node.reasoning.trim());
  }

  /** How an answer ended, if not well, and what to do then. */
  #ending() {
    const { error, finish, text, calls } = this.#node;
    const retry = () => this.#actions.retry(this.#node);
    if (error)
      return element(
        "div",
        { class: "failed", role: "alert" },
        element("p", {}, error),
        element("button", { type: "button", onclick: retry }, icon("redo"), "Try again"),
      );
    if (REASONS[finish]) return element("p", { class: "finish" }, REASONS[finish]);
    if (!text && !calls?.length) return element("p", { class: "finish" }, "The model answered nothing.");
    return null;
  }

  #updateTools(running) {
    const node = this.#node;
    const tools = [];
    const place = this.#siblings.indexOf(node);
    if (this.#siblings.length > 1) {
      const step = (by) => this.#actions.pick(this.#siblings[place + by]);
      tools.push(
        element(
          "span",
          { class: "branches", role: "group", "aria-label": "Versions" },
          iconButton("left", "Previous version", () => step(-1), { disabled: place === 0 || running }),
          element("span", {}, `${place + 1}/${this.#siblings.length}`),
          iconButton("right", "Next version", () => step(1), { disabled: place === this.#siblings.length - 1 || running }),
        ),
      );
    }
    if (!running) {
      if (node.text) tools.push(copyButton(() => visible(node.text), "Copy message"));
      if (node.role !== "tool") tools.push(iconButton("edit", "Edit", () => this.edit()));
      if (node.role === "assistant") tools.push(iconButton("redo", "Answer again", () => this.#actions.regenerate(node)));
    }
    const stats = node.role === "assistant" && statistics(node);
    if (stats) tools.push(element("span", { class: "stats" }, stats));
    this.#parts.tools.replaceChildren(...tools);
    this.element.classList.toggle("last", this.#last);
  }

  /** A field in place of the text. */
  edit() {
    if (this.element.querySelector(".editor")) return;
    const asks = this.#node.role === "user";
    const area = element("textarea", { "aria-label": asks ? "Edit your message" : "Edit the answer", dir: "auto" });
    area.value = this.#node.text;
    const close = () => {
      editor.remove();
      this.#parts.body.hidden = this.#parts.tools.hidden = false;
      document.getElementById("input").focus();
    };
    const save = () => {
      if (area.value.trim() === "") return area.focus();
      if (area.value === this.#node.text && !asks) return close();
      this.#actions.edit(this.#node, area.value);
    };
    const grow = () =>
      area.setAttribute("rows", String(Math.min(20, Math.max(2, area.value.split("\n").length, Math.ceil(area.value.length / 70)))));
    area.addEventListener("input", grow);
    area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && (asks || event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        save();
      }
    });
    const buttons = element(
      "div",
      { class: "dialog-end" },
      element("button", { type: "button", onclick: close }, "Cancel"),
      element("button", { type: "button", class: "primary", onclick: save }, asks ? "Send" : "Save"),
    );
    const editor = element("div", { class: "editor" }, area, buttons);
    this.#parts.body.hidden = this.#parts.tools.hidden = true;
    this.element.append(editor);
    grow();
    area.focus();
  }
}

function toolCall(call) {
  let shown = call.arguments;
  try {
    shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    // As the model wrote it.
  }
  return element(
    "details",
    { class: "call", open: true },
    element("summary", {}, icon("tool"), element("span", {}, visible(call.name))),
    codeBlock(visible(shown), "json"),
  );
}

/** "120 tokens · 31.4 tokens/s · first after 0.2 s"; what is not known is left out, what is estimated has a ~. */
function statistics(node) {
  const parts = [];
  const count = node.usage?.answer ?? node.pieces;
  if (count) parts.push(`${node.usage ? "" : "~"}${count} ${count === 1 ? "token" : "tokens"}`);
  if (count > 1 && node.seconds > 0.02) {
    // What came all at once was written before it came.
    const speed = (count - 1) / node.seconds;
    parts.push(`${speed.toFixed(speed < 100 ? 1 : 0)} tokens/s`);
  }
  if (node.first !== undefined)
    parts.push(`first after ${node.first < 1 ? `${Math.round(node.first * 1000)} ms` : `${node.first.toFixed(1)} s`}`);
  return parts.join(" · ");
}
