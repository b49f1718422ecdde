// A conversation is a tree: to edit or to ask again adds a sibling, and nothing is overwritten.
//
// A node: {id, parent, role: "user" | "assistant" | "tool", text, picked, created} and, where they apply,
// reasoning, calls [{id, name, arguments}], callId, name, model, finish, error, usage {prompt, answer, cached}, pieces
// (events that brought something, about one a token), seconds (from the first to the last), first (seconds until then). `picked` is the child that is shown; the conversation itself has the one of its first messages.

const LONGEST_TITLE = 80;
const ROLES = ["user", "assistant", "tool"];

/** An id that no other has. (crypto.randomUUID is not there on pages over plain HTTP.) */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(10))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  constructor(settings = {}) {
    const now = Date.now();
    Object.assign(this, { id: newId(), title: "", created: now, updated: now, settings: { ...settings }, picked: null, nodes: [] });
  }

  /** From JSON, which may come from anywhere. Error in words if it is no conversation. */
  static from(data) {
    const made = new Conversation(settingsFrom(data?.settings));
    if (!Array.isArray(data?.nodes)) throw new Error("it has no list of messages");
    const known = new Set();
    for (const raw of data.nodes) {
      const node = nodeFrom(raw);
      if (known.has(node.id) || (node.parent !== null && !known.has(node.parent))) throw new Error("its messages do not hang together");
      known.add(node.id);
      made.nodes.push(node);
    }
    if (typeof data.id === "string" && /^[\w-]{1,64}$/.test(data.id)) made.id = data.id;
    made.title = string(data.title).slice(0, LONGEST_TITLE);
    made.created = number(data.created) ?? made.created;
    made.updated = number(data.updated) ?? made.updated;
    made.picked = data.picked === null ? null : string(data.picked);
    return made;
  }

  get(id) {
    return this.nodes.find((node) => node.id === id) ?? null;
  }

  children(parent) {
    return this.nodes.filter((node) => node.parent === parent);
  }

  siblings(node) {
    return this.children(node.parent);
  }

  /** The messages that are shown, from the first. */
  path() {
    const found = [];
    let parent = null;
    let picked = this.picked;
    for (;;) {
      const children = this.children(parent);
      const next = children.find((child) => child.id === picked) ?? children.at(-1);
      if (!next) return found;
      found.push(next);
      parent = next.id;
      picked = next.picked;
    }
  }

  /** The messages from the first to this one, wherever it is. */
  pathTo(node) {
    const found = [];
    for (let at = node; at; at = this.get(at.parent)) found.unshift(at);
    return found;
  }

  add(parent, fields) {
    const node = { id: newId(), parent: parent?.id ?? null, role: "user", text: "", picked: null, created: Date.now(), ...fields };
    this.nodes.push(node);
    this.pick(node);
    this.updated = node.created;
    if (!this.title && node.role === "user") this.title = node.text.trim().split("\n")[0].slice(0, LONGEST_TITLE);
    return node;
  }

  pick(node) {
    (node.parent === null ? this : this.get(node.parent)).picked = node.id;
  }

  /** Takes out a node without children. */
  remove(node) {
    this.nodes = this.nodes.filter((other) => other !== node);
  }
}

/** The messages for the server. An answer that never came is left out, and what was then said twice becomes one. */
export function messages(path, system) {
  const found = system?.trim() ? [{ role: "system", content: system }] : [];
  for (const node of path) {
    if (node.role === "tool") {
      found.push({ role: "tool", tool_call_id: node.callId, name: node.name, content: node.text });
    } else if (node.role === "user") {
      if (found.at(-1)?.role === "user") found.at(-1).content += `\n\n${node.text}`;
      else found.push({ role: "user", content: node.text });
    } else if (node.text || node.calls?.length) {
      const message = { role: "assistant", content: node.text };
      if (node.reasoning) message.reasoning_content = node.reasoning;
      if (node.calls?.length) {
        message.tool_calls = node.calls.map((call) => ({
          id: call.id,
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        }));
      }
      found.push(message);
    }
  }
  return found;
}

function nodeFrom(raw) {
  if (typeof raw !== "object" || raw === null || !/^[\w-]{1,64}$/.test(raw.id) || !ROLES.includes(raw.role))
    throw new Error("one of its messages is none");
  const node = { id: raw.id, parent: raw.parent === null ? null : string(raw.parent), role: raw.role, text: string(raw.text) };
  node.picked = raw.picked ? string(raw.picked) : null;
  node.created = number(raw.created) ?? Date.now();
  for (const name of ["reasoning", "callId", "name", "model", "finish", "error"]) if (typeof raw[name] === "string") node[name] = raw[name];
  for (const name of ["seconds", "first", "pieces"]) if (number(raw[name]) !== null) node[name] = raw[name];
  if (Array.isArray(raw.calls))
    node.calls = raw.calls.map((call) => ({ id: string(call?.id), name: string(call?.name), arguments: string(call?.arguments) }));
  if (raw.usage)
    node.usage = { prompt: number(raw.usage.prompt) ?? 0, answer: number(raw.usage.answer) ?? 0, cached: number(raw.usage.cached) ?? 0 };
  return node;
}

/** Settings are texts by name; what they mean is in settings.js. */
function settingsFrom(raw) {
  const entries = Object.entries(raw ?? {}).filter(([name, value]) => /^[a-z_]{1,40}$/.test(name) && typeof value === "string");
  return Object.fromEntries(entries);
}

function string(value) {
  return typeof value === "string" ? value : "";
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
