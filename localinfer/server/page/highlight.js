// Colours for code, by what nearly all languages share: comments, strings, numbers, and words that are no names.

import { element } from "./dom.js";

const LONGEST = 60_000; // characters of code; longer ones stay plain
const HASH = new Set(
  "py python sh bash shell zsh fish console rb ruby pl perl r yaml yml toml ini conf make makefile dockerfile cmake elixir ex julia jl nix powershell ps1 gitignore".split(
    " ",
  ),
);
const DASH = new Set("sql lua haskell hs ada vhdl elm".split(" "));
const NONE = new Set("text txt plain markdown md diff html xml svg csv output log latex tex".split(" "));
const KEYWORDS = new Set(
  (
    "and as assert async await auto begin bool boolean break byte case catch char class const constexpr continue def default defer del delete do double elif else " +
    "elsif end enum except export extends extern false final finally float fn for foreach from func function global go goto if impl implements import in include " +
    "int interface is lambda let local long loop match mod module mut namespace new nil none not null nullptr object of operator or override package pass private " +
    "protected pub public raise ref return self short signed sizeof static string struct super switch template then this throw throws trait true try type typedef " +
    "typename typeof undefined union unless unsigned unsafe until use using val var virtual void volatile when where while with yield echo fi done esac local None True False"
  ).split(" "),
);
const SQL = new Set(
  (
    "and as asc between by case count create delete desc distinct drop else end exists from full group having in index inner insert into is join left like limit " +
    "not null on or order outer primary key right select set table then union update values view when where with"
  ).split(" "),
);
const STRING = String.raw`"""[^]*?(?:"""|$)|"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'|` + "`(?:[^`\\\\]|\\\\[^])*`";
const WORDS = String.raw`(?<number>\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b)|(?<word>[A-Za-z_$][\w$]*)`;

/** The code as a fragment of texts and spans. */
export function highlight(code, language) {
  const fragment = document.createDocumentFragment();
  const name = language.toLowerCase();
  if (!name || NONE.has(name) || code.length > LONGEST) {
    fragment.append(code);
    return fragment;
  }
  const comment = HASH.has(name) ? "#[^\\n]*" : DASH.has(name) ? "--[^\\n]*" : String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
  const pattern = new RegExp(`(?<comment>${comment})|(?<string>${STRING})|${WORDS}`, "g");
  let at = 0;
  for (const found of code.matchAll(pattern)) {
    const { comment, string, number, word } = found.groups;
    const kind = comment
      ? "comment"
      : string
        ? "string"
        : number
          ? "number"
          : word && (name === "sql" ? SQL.has(word.toLowerCase()) : KEYWORDS.has(word))
            ? "keyword"
            : null;
    if (!kind) continue;
    fragment.append(code.slice(at, found.index), element("span", { class: kind }, found[0]));
    at = found.index + found[0].length;
  }
  fragment.append(code.slice(at));
  return fragment;
}
