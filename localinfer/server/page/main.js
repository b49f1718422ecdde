// The page: what is open, what is running, and what happens when something is pressed.

import { ServerError, answer, models } from "./api.js";
import { Conversation, messages } from "./conversation.js";
import { announce, element, icon } from "./dom.js";
import { requestFields, showSettings } from "./settings.js";
import { showList } from "./sidebar.js";
import { CAPACITY, FullError, Store } from "./store.js";
import { Thread } from "./thread.js";

const SAVE_EVERY = 1000; // milliseconds, while an answer comes
const ASK_AGAIN = 4000; // milliseconds, while the server cannot be reached
const UNDO_TIME = 8000;
const TYPING_LINES = 10;
const NARROW = "(max-width: 760px)"; // as in style.css

const $ = (id) => document.getElementById(id);
const store = new Store();
const running = new Map(); // conversation id → {node, controller}
let conversations = store.conversations();
let current = conversations.find((each) => each.id === store.get("open")) ?? fresh();
let served = []; // models
let key = keptKey();
let afterKey = null; // what waits for the key

const thread = new Thread($("thread"), $("scroll"), { edit, regenerate, retry, pick, results, start });

// --- showing -------------------------------------------------------------------------------------------------------

function show() {
  thread.show(current, running.get(current.id)?.node, modelName());
  showConversations();
  showRunning();
  showContext();
  showModels();
  document.title = current.title ? `${current.title} · localinfer` : "localinfer";
}

function showConversations() {
  showList($("list"), conversations, current, $("search").value, { open, rename, remove });
  const share = Math.round((100 * store.used()) / CAPACITY);
  $("storage").textContent = !store.works
    ? "This browser keeps nothing: export what you need."
    : `Kept in this browser${share ? `, ${share} % full` : ""}`;
}

function showRunning() {
  const busy = running.has(current.id);
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("send").disabled = $("input").value.trim() === "";
}

/** What of the context the shown messages take, as far as the server has told. */
function showContext() {
  const size = modelCard()?.context_length;
  const path = current.path();
  const last = path.findLastIndex((node) => node.usage || node.pieces);
  const node = path[last];
  $("context").hidden = !size || !node;
  if (!size || !node) return;
  const before = path.slice(0, last).findLast((each) => each.usage)?.usage;
  const asked = node.usage ?? current.siblings(node).find((each) => each.usage)?.usage; // the same prompt
  const prompt = asked ? asked.prompt : before ? before.prompt + before.answer : 0;
  const used = prompt + (node.usage?.answer ?? node.pieces);
  $("context-meter").max = size;
  $("context-meter").high = size * 0.8;
  $("context-meter").low = size * 0.6;
  $("context-meter").optimum = 0;
  $("context-meter").value = used;
  const about = node.usage ? "" : "~";
  $("context-text").textContent = `${about}${used.toLocaleString("en")} / ${size.toLocaleString("en")}`;
  $("context").title = `${about}${used} of ${size} tokens of the context are in use`;
}

function showModels() {
  const picked = modelName();
  $("model").replaceChildren(
    ...served.map((card) => element("option", { value: card.id }, card.id + (card.state === "unloaded" ? " (not loaded)" : ""))),
  );
  if (!served.length) $("model").append(element("option", { value: "" }, "no model"));
  $("model").value = picked;
}

function modelCard() {
  return served.find((card) => card.id === current.settings.model) ?? served[0];
}

function modelName() {
  return modelCard()?.id ?? "";
}

function banner(text, label, action) {
  $("banner").hidden = !text;
  $("banner").replaceChildren(element("span", {}, text ?? ""), label ? element("button", { type: "button", onclick: action }, label) : "");
}

let toastTimer;
function toast(text, label, action) {
  clearTimeout(toastTimer);
  const hide = () => $("toast").replaceChildren();
  $("toast").replaceChildren(
    element(
      "div",
      {},
      element("span", {}, text),
      label &&
        element(
          "button",
          {
            type: "button",
            onclick: () => {
              hide();
              action();
            },
          },
          label,
        ),
    ),
  );
  toastTimer = setTimeout(hide, UNDO_TIME);
}

// --- keeping -------------------------------------------------------------------------------------------------------

function save(conversation) {
  if (!conversations.includes(conversation)) return; // deleted meanwhile
  try {
    store.save(conversation);
    if (conversation.unsaved) banner(null);
    conversation.unsaved = false;
  } catch (error) {
    if (!(error instanceof FullError)) throw error;
    conversation.unsaved = true;
    banner(
      "There is no room left in this browser: what is new is lost when this page is closed. Export the conversations, and delete some.",
      "Export",
      exportAll,
    );
  }
}

function remember(name, value) {
  try {
    store.set(name, value);
  } catch (error) {
    if (!(error instanceof FullError)) throw error; // a draft that finds no room is not worth a word
  }
}

function fresh() {
  let settings = {};
  try {
    settings = JSON.parse(store.get("settings") ?? "{}");
  } catch {
    // As if nothing had been set.
  }
  return new Conversation(settings);
}

function keptKey() {
  try {
    return sessionStorage.getItem("localinfer.key") ?? store.get("key") ?? "";
  } catch {
    return "";
  }
}

function exportAll() {
  const all = conversations.includes(current) || !current.nodes.length ? conversations : [current, ...conversations];
  const address = URL.createObjectURL(new Blob([store.export(all)], { type: "application/json" }));
  element("a", { href: address, download: `localinfer-conversations-${new Date().toISOString().slice(0, 10)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function importFile(file) {
  try {
    const taken = new Set(conversations.map((each) => each.id));
    const found = store.import(await file.text(), taken);
    for (const each of found) store.save(each);
    conversations = [...conversations, ...found].sort((a, b) => b.updated - a.updated);
    showConversations();
    toast(`${found.length} ${found.length === 1 ? "conversation" : "conversations"} imported`);
  } catch (error) {
    conversations = store.conversations();
    showConversations();
    toast(error instanceof FullError ? "There is no room for all of them in this browser." : error.message);
  }
}

// --- conversations -------------------------------------------------------------------------------------------------

function open(conversation) {
  keepDraft();
  current = conversation;
  remember("open", conversation.nodes.length ? conversation.id : null);
  $("input").value = store.get(draftName()) ?? "";
  fit();
  drawer(false);
  show();
  thread.toEnd();
  $("input").focus();
}

function rename(conversation, title) {
  conversation.title = title;
  save(conversation);
  show();
}

function remove(conversation) {
  running.get(conversation.id)?.controller.abort();
  conversations = conversations.filter((each) => each !== conversation);
  store.remove(conversation);
  remember(`draft.${conversation.id}`, null);
  const wasOpen = conversation === current;
  if (wasOpen) open(fresh());
  else showConversations();
  toast("Conversation deleted", "Undo", () => {
    conversations = [conversation, ...conversations].sort((a, b) => b.updated - a.updated);
    save(conversation);
    if (wasOpen) open(conversation);
    else showConversations();
  });
}

function draftName() {
  return `draft.${current.nodes.length ? current.id : "new"}`;
}

function keepDraft() {
  remember(draftName(), $("input").value);
}

// --- asking --------------------------------------------------------------------------------------------------------

function start(text) {
  $("input").value = text;
  fit();
  send();
}

function send() {
  const text = $("input").value;
  if (text.trim() === "" || running.has(current.id)) return;
  remember(draftName(), null);
  const asked = current.add(current.path().at(-1), { role: "user", text });
  $("input").value = "";
  fit();
  ask(current, asked);
}

function edit(node, text) {
  if (isBusy()) return;
  const sibling = current.add(current.get(node.parent), {
    role: node.role,
    text,
    ...(node.role === "assistant" && { model: node.model, finish: "edited" }),
  });
  if (node.role === "user") return ask(current, sibling);
  save(current);
  show();
}

function regenerate(node) {
  ask(current, current.get(node.parent));
}

/** An answer that failed before anything came is replaced; any other stays beside the new one. */
function retry(node) {
  const asked = current.get(node.parent);
  if (!node.text && !node.reasoning && !node.calls?.length && !current.children(node.id).length) current.remove(node);
  ask(current, asked);
}

function pick(node) {
  current.pick(node);
  save(current);
  show();
}

function results(node, texts) {
  if (isBusy()) return;
  let last = node;
  for (const [index, call] of node.calls.entries())
    last = current.add(last, { role: "tool", callId: call.id, name: call.name, text: texts[index] });
  ask(current, last);
}

/** Adds an answer to `asked` and lets the server write it. Nothing of the conversation is lost, whatever happens. */
async function ask(conversation, asked) {
  if (running.has(conversation.id)) return;
  const body = { model: modelName() || undefined, messages: messages(conversation.pathTo(asked), conversation.settings.system) };
  const node = conversation.add(asked, { role: "assistant", model: modelName() });
  const controller = new AbortController();
  running.set(conversation.id, { node, controller });
  conversations = [conversation, ...conversations.filter((each) => each !== conversation)];
  if (conversation === current) {
    remember("open", conversation.id);
    show();
    thread.toEnd();
  }
  save(conversation);
  announce("Answering");
  const paint = painter(conversation, node);
  try {
    Object.assign(body, requestFields(conversation.settings));
    const begun = performance.now();
    let first = 0;
    for await (const event of answer(body, key, controller.signal)) {
      const now = performance.now();
      if (take(node, event)) {
        first ||= now;
        node.pieces = (node.pieces ?? 0) + 1;
        node.first = (first - begun) / 1000;
        node.seconds = (now - first) / 1000;
      }
      paint();
    }
    banner(null);
  } catch (error) {
    if (controller.signal.aborted) node.finish = "stopped";
    else node.error = error.message;
    if (error.status) banner(null); // it answers
    if (error.status === 401) askForKey(() => conversation === current && retry(node));
    else if (error instanceof ServerError && error.status === 0 && !controller.signal.aborted) lost();
    else if (!(error instanceof ServerError) && !controller.signal.aborted && !error.message.startsWith("Settings")) console.error(error);
  } finally {
    running.delete(conversation.id);
    paint.over();
    save(conversation);
    announce(node.error ?? (node.finish === "stopped" ? "Stopped" : "The answer is complete"));
    if (conversation === current) finished(node);
    showConversations();
  }
}

/** Shows a finished answer, and what can be done with it now, where it stands. */
function finished(node) {
  const following = thread.follows;
  thread.update(node, false);
  if (node.calls?.length) show();
  showRunning();
  showContext();
  if (following) thread.toEnd();
}

/** Puts what an event brings into the node; whether it brought something to read. */
function take(node, event) {
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  node.text += delta.content ?? "";
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) {
    const calls = (node.calls ??= []);
    const call = (calls[part.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= part.id ?? "";
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (choice?.finish_reason) node.finish = choice.finish_reason;
  const usage = event.usage;
  if (usage)
    node.usage = { prompt: usage.prompt_tokens, answer: usage.completion_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0 };
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);
}

/** Paints at most once a frame, and saves now and then. */
function painter(conversation, node) {
  let frame = 0;
  let saved = performance.now();
  const paint = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (conversation !== current) return;
      thread.update(node, true);
      showContext();
    });
    if (performance.now() - saved > SAVE_EVERY) {
      saved = performance.now();
      save(conversation);
    }
  };
  paint.over = () => cancelAnimationFrame(frame);
  return paint;
}

function isBusy() {
  const busy = running.has(current.id);
  if (busy) toast("An answer is being written: stop it first, or wait.");
  return busy;
}

function stop() {
  running.get(current.id)?.controller.abort();
}

function editLast() {
  const last = current.path().findLast((node) => node.role === "user");
  if (last && !running.has(current.id)) thread.edit(last);
}

// --- the server ----------------------------------------------------------------------------------------------------

async function loadModels() {
  try {
    served = await models(key);
    banner(null);
    showModels();
    showContext();
    if (!current.nodes.length) show(); // elsewhere, something may be being edited
    return true;
  } catch (error) {
    if (error.status) banner(null); // it answers
    if (error.status === 401) askForKey(null, key ? "The server does not take this key." : "");
    else lost(error.message);
    return false;
  }
}

let asking = 0;
function lost(message = "The server cannot be reached. It may have stopped, or the connection is gone.") {
  banner(`${message} Nothing of what you wrote is lost.`, "Try now", again);
  clearTimeout(asking);
  asking = setTimeout(again, ASK_AGAIN);
}

async function again() {
  clearTimeout(asking);
  if (await loadModels()) announce("The server is there again");
}

function askForKey(then, wrong = "") {
  afterKey = then ?? afterKey;
  $("key-error").textContent = wrong;
  if (!$("key").open) $("key").showModal();
  $("key-input").focus();
}

async function useKey() {
  key = $("key-input").value.trim();
  if (!key) return;
  try {
    sessionStorage.setItem("localinfer.key", key);
  } catch {
    // For as long as this page is open, then.
  }
  remember("key", $("key-keep").checked ? key : null);
  $("key-error").textContent = "";
  if (!(await loadModels())) return;
  $("key").close();
  $("key-input").value = "";
  const then = afterKey;
  afterKey = null;
  then?.();
}

// --- what is pressed -----------------------------------------------------------------------------------------------

function fit() {
  const input = $("input");
  input.rows = 1;
  const line = parseFloat(getComputedStyle(input).lineHeight);
  const padding = input.clientHeight - line;
  input.rows = Math.max(1, Math.min(TYPING_LINES, Math.round((input.scrollHeight - padding) / line)));
  showRunning();
}

function drawer(isOpen) {
  const narrow = matchMedia(NARROW).matches;
  const shown = narrow ? isOpen : true;
  document.body.classList.toggle("drawer", narrow && isOpen);
  $("shade").hidden = !(narrow && isOpen);
  $("sidebar").inert = !shown;
  $("menu").setAttribute("aria-expanded", String(shown));
}

const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "auto";
  $("theme").replaceChildren(icon(theme));
  $("theme").setAttribute("aria-label", THEMES[theme]);
  $("theme").title = THEMES[theme];
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  remember("theme", next === "auto" ? null : next);
  showTheme();
}

function settingsChanged() {
  remember("settings", JSON.stringify(current.settings));
  save(current);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("input").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  // A phone's keyboard has no Shift+Enter: there the button sends.
  if (event.key === "Enter" && !event.shiftKey && !matchMedia("(pointer: coarse)").matches) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && $("input").value === "") {
    event.preventDefault();
    editLast();
  }
});
$("input").addEventListener("input", () => {
  fit();
  keepDraft();
});
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open(fresh());
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("drawer")) drawer(false);
    else stop();
  }
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => open(fresh()));
$("search").addEventListener("input", showConversations);
$("export").addEventListener("click", exportAll);
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  if ($("file").files.length) await importFile($("file").files[0]);
  $("file").value = "";
});
$("menu").addEventListener("click", () => drawer(!document.body.classList.contains("drawer")));
$("shade").addEventListener("click", () => drawer(false));
$("theme").addEventListener("click", nextTheme);
$("model").addEventListener("change", () => {
  current.settings.model = $("model").value;
  settingsChanged();
  show();
});
$("open-settings").addEventListener("click", () => {
  showSettings($("fields"), current.settings, settingsChanged);
  $("settings").showModal();
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
}
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey();
});
$("bottom").addEventListener("click", () => thread.toEnd());
$("scroll").addEventListener("scroll", () => ($("bottom").hidden = thread.follows));
matchMedia(NARROW).addEventListener("change", () => drawer(false));
window.addEventListener("pagehide", () => {
  for (const [id] of running) {
    const conversation = conversations.find((each) => each.id === id);
    if (conversation) save(conversation);
  }
});
// Another tab has changed something.
window.addEventListener("storage", (event) => {
  const id = store.idOf(event.key);
  if (id === null || running.has(id)) return;
  const theirs = store.read(event.key);
  conversations = [theirs, ...conversations.filter((each) => each.id !== id)].filter(Boolean).sort((a, b) => b.updated - a.updated);
  if (theirs && current.id === id) {
    current = theirs;
    show();
  } else showConversations();
});

showTheme();
drawer(false);
$("input").value = store.get(draftName()) ?? "";
fit();
show();
thread.toEnd();
loadModels();
