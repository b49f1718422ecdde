// Markdown to DOM nodes. What a model writes is hostile input: nothing here makes markup of text, every node is made by
// name, links lead to other sites or nowhere, pictures are not loaded, and the work grows with the length of the text.

import { copyButton, element, visible } from "./dom.js";
import { highlight } from "./highlight.js";

const DEEPEST = 16; // blocks in blocks, and emphasis in emphasis; what is deeper is text
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(.*)|$)/;
const TASK = /^\[([ xX])\] +/;
const COLUMN = /^:?-+:?$/;

/** Shows a text that grows in `target`. Only blocks that have changed are made again: a selection in others stays. */
export class Markdown {
  #target;
  #shown = [];

  constructor(target) {
    this.#target = target;
  }

  /** The text as it is now. Returns the plain texts of blocks that are finished since the last time. */
  show(text, whole = false) {
    const found = split(visible(text).split("\n"));
    let same = 0;
    while (same < found.length && same < this.#shown.length && found[same].source === this.#shown[same].source) same++;
    for (const old of this.#shown.splice(same)) old.node.remove();
    for (const block of found.slice(same)) {
      const node = render(block, 0);
      this.#target.append(node);
      this.#shown.push({ source: block.source, node, told: false });
    }
    const finished = this.#shown.slice(0, whole ? undefined : -1).filter((block) => !block.told);
    for (const block of finished) block.told = true;
    return finished.map((block) => block.node.textContent);
  }
}

/** Lines to blocks, each with its kind, its source, and what its kind needs. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at++;
      continue;
    }
    const block =
      fence(lines, at) ??
      heading(lines, at) ??
      rule(lines, at) ??
      quote(lines, at) ??
      list(lines, at) ??
      table(lines, at) ??
      paragraph(lines, at);
    block.source = lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function fence(lines, at) {
  const opening = FENCE.exec(lines[at]);
  if (!opening) return null;
  const mark = opening[1];
  const indent = lines[at].search(/\S/);
  const code = [];
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) {
      end++;
      break;
    }
    const spaces = lines[end].search(/\S|$/);
    code.push(lines[end].slice(Math.min(indent, spaces)));
  }
  return { kind: "code", language: opening[2].trim().split(/\s/)[0].slice(0, 30), code: code.join("\n"), end };
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  let text = (found[2] ?? "").trim();
  let cut = text.length;
  while (cut > 0 && text[cut - 1] === "#") cut--;
  if (cut === 0 || text[cut - 1] === " ") text = text.slice(0, cut).trim();
  return { kind: "heading", level: found[1].length, text, end: at + 1 };
}

function rule(lines, at) {
  const marks = lines[at].replace(/[ \t]/g, "");
  if (marks.length < 3 || !"-*_".includes(marks[0]) || marks !== marks[0].repeat(marks.length)) return null;
  return { kind: "rule", end: at + 1 };
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  if (end === at) return null;
  return { kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")), end };
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first || first[1].length > 3) return null;
  const mark = first[2].at(-1);
  const items = [];
  let end = at;
  let loose = false;
  while (end < lines.length) {
    const opening = ITEM.exec(lines[end]);
    if (!opening || opening[1].length > first[1].length + 1 || opening[2].at(-1) !== mark || rule(lines, end)) break;
    const width = opening[1].length + opening[2].length + (opening[3]?.length ?? 1);
    const item = [opening[4] ?? ""];
    end++;
    let next = end;
    while (next < lines.length) {
      const line = lines[next];
      if (line.trim() === "") {
        next++;
        continue;
      }
      // Models often indent by two what belongs three deep.
      const inside = line.search(/\S/) >= Math.min(width, opening[1].length + 2);
      if (!inside && (next > end || starts(lines, next))) break;
      while (end < next) item.push(lines[end++]);
      item.push(line.slice(Math.min(line.search(/\S/), width)));
      end = ++next;
    }
    items.push(item);
    if (next > end && next < lines.length && ITEM.test(lines[next]) && lines[next].search(/\S/) <= first[1].length + 1) {
      loose = true;
      end = next;
    }
  }
  const ordered = !"-*+".includes(mark);
  return items.length ? { kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, loose, end } : null;
}

function table(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return null;
  const columns = cells(lines[at + 1]);
  const head = cells(lines[at]);
  if (head.length !== columns.length || !columns.every((cell) => COLUMN.test(cell))) return null;
  const align = columns.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  let end = at + 2;
  const rows = [];
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") rows.push(cells(lines[end++]).slice(0, head.length));
  return { kind: "table", head, align, rows, end };
}

function cells(line) {
  const found = [""];
  let code = false;
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[++at];
    else if (text[at] === "|" && !code) found.push("");
    else {
      if (text[at] === "`") code = !code;
      found[found.length - 1] += text[at];
    }
  }
  return found.map((cell) => cell.trim());
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !starts(lines, end)) end++;
  const text = lines
    .slice(at, end)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
  return { kind: "paragraph", text, end };
}

/** Whether a line ends a paragraph because something else begins there. */
function starts(lines, at) {
  const line = lines[at];
  return (
    FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || rule(lines, at) !== null || table(lines, at) !== null
  );
}

function render(block, depth) {
  switch (block.kind) {
    case "code":
      return codeBlock(block.code, block.language);
    case "heading":
      // Under the headings of the page itself, which has two levels.
      return element(`h${Math.min(6, block.level + 2)}`, { class: `level${block.level}` }, inline(block.text));
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, ...within(block.lines, depth));
    case "list":
      return element(
        block.ordered ? "ol" : "ul",
        { start: block.start !== 1 && block.start },
        ...block.items.map((item) => listItem(item, block.loose, depth)),
      );
    case "table":
      return tableElement(block);
    default:
      return element("p", {}, inline(block.text));
  }
}

function within(lines, depth) {
  if (depth >= DEEPEST) return [lines.join("\n")];
  return split(lines).map((block) => render(block, depth + 1));
}

function listItem(lines, loose, depth) {
  const task = TASK.exec(lines[0]);
  const box =
    task &&
    element("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "to do" : "done" });
  if (task) lines = [lines[0].slice(task[0].length), ...lines.slice(1)];
  const inner = within(lines, depth);
  // A tight item has its text without a paragraph around it.
  const parts = inner.flatMap((node) => (!loose && node instanceof HTMLParagraphElement ? [...node.childNodes] : [node]));
  return element("li", { class: task && "task" }, box, ...parts);
}

function tableElement({ head, align, rows }) {
  const cell = (tag, text, column) => element(tag, { class: align[column] }, inline(text));
  const line = (tag, texts) => element("tr", {}, ...texts.map((text, column) => cell(tag, text, column)));
  const made = element("table", {}, element("thead", {}, line("th", head)), element("tbody", {}, ...rows.map((row) => line("td", row))));
  return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, made);
}

/** Code with its language and a button that copies it. */
export function codeBlock(code, language = "") {
  const name = language || "text";
  const head = element(
    "div",
    { class: "code-head" },
    element("span", {}, name),
    copyButton(() => code, "Copy code"),
  );
  const body = element("pre", { tabindex: "0", "aria-label": `Code, ${name}` }, element("code", {}, highlight(code, language)));
  return element("div", { class: "code" }, head, body);
}

// --- inside of a paragraph -----------------------------------------------------------------------------------------

const WORD = /[\p{L}\p{N}]/u;
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*"|\s+'[^']*')?\s*\)/y;
const POINTED = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"`|]{1,2000}/y;
const BREAK = /<br *\/?>/iy;

/** The address if a link may lead there: to another site or a mailbox; null otherwise. */
export function safeAddress(address) {
  try {
    const url = new URL(address); // without a base: what is relative is refused
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, ...children) {
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address }, ...children);
}

/** Text with emphasis, code and links, as a fragment. */
export function inline(text) {
  const pieces = []; // nodes, texts, and runs of marks that may begin or end emphasis
  const brackets = []; // places in `pieces`
  const ticks = runs(text);
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) pieces.push(plain);
    plain = "";
  };
  const add = (piece) => {
    flush();
    pieces.push(piece);
  };
  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(text);
  };
  while (at < text.length) {
    const character = text[at];
    let found;
    if (character === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (character === "\n") {
      plain = plain.replace(/ {1,8}$/, "");
      add(element("br"));
      at++;
    } else if (character === "`") {
      const length = runLength(text, at);
      const end = ticks.next(length, at + length);
      if (end < 0) plain += "`".repeat(length);
      else add(codeSpan(text.slice(at + length, end)));
      at = end < 0 ? at + length : end + length;
    } else if (character === "*" || character === "_" || character === "~") {
      const length = runLength(text, at);
      add(marks(text, at, length));
      at += length;
    } else if (character === "[" || (character === "!" && text[at + 1] === "[")) {
      flush();
      brackets.push({ place: pieces.length, picture: character === "!" });
      pieces.push(character === "!" ? "![" : "[");
      at += character === "!" ? 2 : 1;
    } else if (character === "]") {
      at++;
      const bracket = brackets.pop();
      const address = bracket && (found = match(TARGET)) ? safeAddress(found[1]) : null;
      if (address) {
        flush();
        const inner = pieces.splice(bracket.place).slice(1);
        add(link(address, bracket.picture && "picture: ", withoutLinks(emphasize(inner))));
        brackets.length = 0; // links hold no links
        at += found[0].length;
      } else plain += "]";
    } else if (character === "<" && (found = match(POINTED)) && safeAddress(found[1])) {
      add(link(safeAddress(found[1]), found[1]));
      at += found[0].length;
    } else if (character === "<" && (found = match(BREAK))) {
      add(element("br"));
      at += found[0].length;
    } else if (character === "h" && !WORD.test(text[at - 1] ?? " ") && (found = match(BARE))) {
      const address = trimmed(found[0]);
      const safe = safeAddress(address);
      if (safe) add(link(safe, address));
      else plain += address;
      at += address.length;
    } else {
      plain += character;
      at++;
    }
  }
  flush();
  return emphasize(pieces);
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end++;
  return end - at;
}

/** Where runs of backticks of each length are; `next` is asked for places that only grow. */
function runs(text) {
  const places = new Map();
  for (const found of text.matchAll(/`+/g)) {
    if (!places.has(found[0].length)) places.set(found[0].length, { starts: [], used: 0 });
    places.get(found[0].length).starts.push(found.index);
  }
  return {
    next(length, from) {
      const known = places.get(length);
      if (!known) return -1;
      while (known.used < known.starts.length && known.starts[known.used] < from) known.used++;
      return known.starts[known.used] ?? -1;
    },
  };
}

function codeSpan(code) {
  const text = code.replaceAll("\n", " ");
  const padded = text.length > 2 && text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "";
  return element("code", {}, padded ? text.slice(1, -1) : text);
}

/** Addresses at the end of a sentence or in parentheses. */
function trimmed(address) {
  let end = address.length;
  for (;;) {
    const last = address[end - 1];
    if (".,;:!?'*_~".includes(last)) end--;
    else if ((last === ")" && !address.slice(0, end).includes("(")) || (last === "]" && !address.slice(0, end).includes("["))) end--;
    else return address.slice(0, end);
  }
}

function withoutLinks(fragment) {
  for (const inner of fragment.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
  return fragment;
}

/** A run of * _ or ~, by CommonMark's rules of what may open and close. */
function marks(text, at, length) {
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const space = /\s/;
  const punctuation = /[\p{P}\p{S}]/u;
  const opens = !space.test(after) && (!punctuation.test(after) || space.test(before) || punctuation.test(before));
  const closes = !space.test(before) && (!punctuation.test(before) || space.test(after) || punctuation.test(after));
  const inWord = text[at] === "_" && opens && closes;
  return {
    mark: text[at],
    count: length,
    opens: opens && (!inWord || punctuation.test(before)),
    closes: closes && (!inWord || punctuation.test(after)),
  };
}

/** Nodes, texts and marks to a fragment: what stands between fitting marks gets an element around it. */
function emphasize(pieces) {
  const out = []; // {node or mark, depth}
  const openers = { "*": [], _: [], "~": [] };
  for (const piece of pieces) {
    if (typeof piece === "string" || piece instanceof Node) {
      out.push({ node: piece, depth: 0 });
      continue;
    }
    let { count } = piece;
    const stack = openers[piece.mark];
    while (piece.closes && count > 0 && stack.length) {
      const place = stack.at(-1);
      const opener = out[place];
      const used = Math.min(2, count, opener.count);
      if (place === out.length - 1 || (piece.mark === "~" && used !== 2)) break;
      const inner = out.slice(place + 1);
      const depth = 1 + inner.reduce((most, part) => Math.max(most, part.depth), 0);
      if (depth > DEEPEST) {
        stack.length = 0; // whatever begins before that is deeper still
        break;
      }
      const tag = piece.mark === "~" ? "del" : used === 2 ? "strong" : "em";
      out.length = place + 1;
      out.push({ node: element(tag, {}, ...inner.map(literal)), depth });
      for (const others of Object.values(openers)) while (others.length && others.at(-1) > place) others.pop();
      opener.count -= used;
      count -= used;
      if (opener.count === 0) stack.pop();
    }
    if (count === 0) continue;
    if (piece.opens) stack.push(out.length);
    out.push({ mark: piece.mark, count, depth: 0 });
  }
  const fragment = document.createDocumentFragment();
  for (const part of out) fragment.append(literal(part));
  return fragment;
}

function literal(part) {
  return part.node ?? part.mark.repeat(part.count);
}
