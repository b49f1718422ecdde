// What the browser keeps: conversations, one entry each, drafts, and what was set. Nothing of it leaves this machine.

import { Conversation, newId } from "./conversation.js";

const PREFIX = "localinfer.";
const CHAT = `${PREFIX}chat.`;
const FORMAT = "localinfer-conversations";
export const CAPACITY = 4_500_000; // characters of all conversations; browsers give a site about five million

export class FullError extends Error {}

export class Store {
  #storage;

  constructor() {
    try {
      this.#storage = window.localStorage;
      this.#storage.setItem(`${PREFIX}probe`, "1");
      this.#storage.removeItem(`${PREFIX}probe`);
    } catch {
      if (this.#storage?.length === undefined) this.#storage = null; // a full one can still be read
    }
  }

  /** Whether anything can be kept: private windows and strict settings may forbid it. */
  get works() {
    return this.#storage !== null && this.#storage !== undefined;
  }

  conversations() {
    const found = [];
    for (const key of this.#keys()) {
      try {
        found.push(Conversation.from(JSON.parse(this.#storage.getItem(key))));
      } catch {
        // Another version's, or damaged: left where it is.
      }
    }
    return found.sort((a, b) => b.updated - a.updated);
  }

  /** One conversation by its key, as other tabs name it in their events; null if it is none. */
  read(key) {
    if (!key?.startsWith(CHAT)) return null;
    try {
      return Conversation.from(JSON.parse(this.#storage.getItem(key)));
    } catch {
      return null;
    }
  }

  idOf(key) {
    return key?.startsWith(CHAT) ? key.slice(CHAT.length) : null;
  }

  /** FullError if there is no room for it; what was kept of it before stays. */
  save(conversation) {
    if (!this.works || conversation.nodes.length === 0) return;
    const text = JSON.stringify(conversation);
    const key = CHAT + conversation.id;
    const others = this.used() - (this.#storage.getItem(key)?.length ?? 0);
    if (others + text.length > CAPACITY) throw new FullError();
    this.#set(key, text);
  }

  remove(conversation) {
    if (this.works) this.#storage.removeItem(CHAT + conversation.id);
  }

  /** Characters that conversations take. */
  used() {
    return this.#keys().reduce((sum, key) => sum + this.#storage.getItem(key).length, 0);
  }

  get(name) {
    return this.works ? this.#storage.getItem(PREFIX + name) : null;
  }

  /** Small things; null takes one away. */
  set(name, value) {
    if (!this.works) return;
    if (value === null || value === "") this.#storage.removeItem(PREFIX + name);
    else this.#set(PREFIX + name, value);
  }

  /** All of these as the text of a file. */
  export(conversations) {
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  }

  /** The conversations of such a text, under new ids where one is taken. Error in words if it is none. */
  import(text, taken) {
    let data;
    try {
      data = JSON.parse(text);
    } catch {
      throw new Error("The file is no JSON.");
    }
    if (data?.format !== FORMAT || !Array.isArray(data.conversations))
      throw new Error("The file holds no conversations that this page exported.");
    return data.conversations.map((raw, index) => {
      try {
        const made = Conversation.from(raw);
        if (taken.has(made.id)) made.id = newId();
        return made;
      } catch (error) {
        throw new Error(`Conversation ${index + 1} of the file cannot be read: ${error.message}.`);
      }
    });
  }

  #keys() {
    return this.works ? Object.keys(this.#storage).filter((key) => key.startsWith(CHAT)) : [];
  }

  #set(key, text) {
    try {
      this.#storage.setItem(key, text);
    } catch {
      throw new FullError();
    }
  }
}
