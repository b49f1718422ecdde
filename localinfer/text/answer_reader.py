"""An answer as it comes, told apart: what the model thinks, what it says, and which tools it calls.

Text is let out as soon as it cannot be part of a mark any more. A call comes out whole, when its end has been read.
What begins like a call and is none (no JSON, no name, cut off) comes out as text, in the end: nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localinfer.text.partial import begun
from localinfer.text.tool_format import ReasoningFormat, ToolFormat

_PYTHON = {"None": None, "True": True, "False": False}  # what templates write where they forget that it is no JSON
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)  # ... and whole texts, in which they do not count
_NAME = r"[A-Za-z0-9_.-]{1,256}"
_ID = r"[A-Za-z0-9_.:-]{1,128}"


@dataclass(frozen=True)
class Said:
    """A piece of what the model says, or of what it thinks."""

    kind: Literal["content", "reasoning"]
    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool; `arguments` are the text of a JSON object."""

    name: str
    arguments: str


Piece = Said | Call


class AnswerReader:
    """Reads one answer. `tools` maps the names of tools to their parameters' JSON schemas.

    Without `calls` nothing is taken for a call, without `reasoning` nothing for a thought. `thinking` says that the
    prompt has opened the thought already.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None = None,
        calls: ToolFormat | None = None,
        tools: Mapping[str, Any] | None = None,
        *,
        thinking: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._parser = CallParser(calls, tools or {}) if calls is not None else None
        self._state: Callable[[bool], list[Piece]] = self._think if thinking else self._start  # reads what comes next
        self._text = ""  # not let out yet
        self._fresh = thinking  # white space behind a mark is left out
        self._silent = True  # nothing but white space has been said

    def push(self, text: str) -> list[Piece]:
        """What is certain with this piece of text."""
        self._text += text
        return self._read(final=False)

    def finish(self) -> list[Piece]:
        """What is left when nothing more comes."""
        return self._read(final=True)

    def whole(self, text: str) -> list[Piece]:
        """The pieces of an answer that has ended, neighbours of one kind as one."""
        pieces: list[Piece] = []
        for piece in [*self.push(text), *self.finish()]:
            last = pieces[-1] if pieces else None
            if isinstance(piece, Said) and isinstance(last, Said) and piece.kind == last.kind:
                pieces[-1] = Said(piece.kind, last.text + piece.text)
            else:
                pieces.append(piece)
        return pieces

    def _read(self, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            before = self._state, len(self._text)
            pieces += self._state(final)
            if (self._state, len(self._text)) == before:
                return pieces

    def _start(self, final: bool) -> list[Piece]:
        """Perhaps it thinks first."""
        if self._reasoning is not None:
            stripped = self._text.lstrip()
            if stripped.startswith(self._reasoning.open):
                self._text = stripped.removeprefix(self._reasoning.open)
                self._state, self._fresh = self._think, True
                return []
            if self._reasoning.open.startswith(stripped) and not final:
                return []
        self._state = self._say
        return []

    def _think(self, final: bool) -> list[Piece]:
        assert self._reasoning is not None
        if self._fresh:
            self._text = self._text.lstrip()
            self._fresh = not self._text
        thought, closed, rest = self._text.partition(self._reasoning.close)
        if closed:
            self._text = rest.lstrip()
            self._state, self._fresh = self._say, not self._text
            return _said("reasoning", thought.rstrip())
        keep = 0 if final else _uncertain(thought, self._reasoning.close)
        return self._let_out("reasoning", keep)

    def _say(self, final: bool) -> list[Piece]:
        if self._fresh:
            self._text = self._text.lstrip()
            self._fresh = not self._text
        if self._parser is None:
            return self._let_out("content", 0)
        found = self._parser.find(self._text, self._silent)
        if found is not None:
            content = self._text[:found]
            self._text = self._text[found:]
            self._state = self._call
            return _said("content", content.rstrip())
        keep = 0 if final else self._parser.held_back(self._text, self._silent)
        return self._let_out("content", keep)

    def _call(self, final: bool) -> list[Piece]:
        assert self._parser is not None
        calls, rest, over = self._parser.take(self._text, final)
        self._text = rest
        if over:
            self._state, self._silent, self._fresh = self._say, False, False
            # What follows the calls, or was taken for one, is text, even where it begins like a call.
            return [*calls, *self._let_out("content", 0)]
        return list(calls)

    def _let_out(self, kind: Literal["content", "reasoning"], keep: int) -> list[Piece]:
        """All that is held, but for its last `keep` characters."""
        end = len(self._text) - keep
        out, self._text = self._text[:end], self._text[end:]
        if kind == "content" and out.strip():
            self._silent = False
        return _said(kind, out)


class CallParser:
    """Finds calls of one format in text."""

    def __init__(self, form: ToolFormat, tools: Mapping[str, Any]) -> None:
        self._form = form
        self._tools = tools
        around = {mark.strip() for mark in (form.open, form.close, form.between)}
        self._around = around - {"", form.call_open.strip()}
        self._decoder = json.JSONDecoder()

    def find(self, text: str, silent: bool) -> int | None:
        """Where calls begin. `silent`: nothing was said before, which calls without a mark of their own need."""
        if trigger := self._form.trigger:
            place = text.find(trigger)
            return place if place >= 0 else None
        stripped = text.lstrip()
        return len(text) - len(stripped) if silent and re.match(r"\{\s*\"", stripped) else None

    def held_back(self, text: str, silent: bool) -> int:
        """How many characters at the end may turn out to belong to calls, or to be white space before them."""
        if not self._form.trigger:
            return len(text) if silent and re.fullmatch(r"\s*\{?\s*", text) else 0
        return _uncertain(text, self._form.trigger)

    def take(self, text: str, final: bool) -> tuple[list[Call], str, bool]:
        """Complete calls, the text behind them, and whether that is no call any more."""
        calls: list[Call] = []
        place = 0
        while True:
            place = self._skip_between(text, place)
            rest = text[place:]
            if not rest or (not final and any(mark.startswith(rest) for mark in self._around)):
                return calls, rest, final
            try:
                found, end = self._one(text, place, final)
            except _Incomplete:
                return calls, text[place:], final
            except ValueError:
                return calls, text[place:], True
            calls += found
            place = end

    def _skip_between(self, text: str, place: int) -> int:
        """Marks around calls, and white space, in whatever number: models are not exact there."""
        while True:
            begin = place
            place += len(text[place:]) - len(text[place:].lstrip())
            for mark in self._around:
                if text.startswith(mark, place):
                    place += len(mark)
            if place == begin:
                return place

    def _one(self, text: str, place: int, final: bool) -> tuple[list[Call], int]:
        """A call, or a list of them, and where it ends. _Incomplete if more text may make one, ValueError if not.

        If nothing more comes, the mark that closes it may be missing.
        """
        place = self._expect(text, place, self._form.call_open.strip(), optional=self._form.style == "object")
        calls, place = {
            "object": self._object,
            "split": self._split,
            "pairs": self._pairs,
            "notation": self._notation,
        }[self._form.style](text, place)
        behind = text[place:]
        mark = self._form.call_close.strip()
        if mark:
            stripped = behind.lstrip()
            if stripped.startswith(mark):
                place += len(behind) - len(stripped) + len(mark)
            elif mark.startswith(stripped) and not final:
                raise _Incomplete
        return calls, place

    def _expect(self, text: str, place: int, mark: str, optional: bool = False) -> int:
        """Behind the mark and the white space around it."""
        place += len(text[place:]) - len(text[place:].lstrip())
        if text.startswith(mark, place):
            place += len(mark)
            return place + len(text[place:]) - len(text[place:].lstrip())
        if mark.startswith(text[place:]):
            raise _Incomplete
        if optional:
            return place
        raise ValueError(mark)

    def _json(self, text: str, place: int) -> tuple[Any, int]:
        try:
            return self._decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            # Where the text ends in the middle of a value, more of it may help.
            if error.pos >= len(text.rstrip()) or _is_open(text[place:]):
                raise _Incomplete from None
            raise
        except RecursionError as error:
            raise ValueError("it nests too deep") from error

    def _object(self, text: str, place: int) -> tuple[list[Call], int]:
        if place == len(text):
            raise _Incomplete
        if text[place] not in "[{":
            raise ValueError("no object")
        value, end = self._json(text, place)
        found = []
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and isinstance(item.get("function"), dict):
                item = item["function"]
            name = item.get("name") if isinstance(item, dict) else None
            keys = (self._form.arguments_key, "arguments", "parameters")
            arguments: Any = next((item[key] for key in keys if key in item), {}) if name else None
            if isinstance(arguments, str):  # some models write the object as a text
                arguments = json.loads(arguments)
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise ValueError("no call")
            found.append(Call(name, _dumped(arguments)))
        if not found:
            raise ValueError("no call")
        return found, end

    def _split(self, text: str, place: int) -> tuple[list[Call], int]:
        between = re.escape(self._form.name_close).replace(r"\{id\}", _ID).replace(r"\{number\}", r"\d+")
        match = re.compile(rf"({_NAME}?)\s*{between}\s*").match(text, place)
        if match is None:
            return _wait_or_fail(text, place)
        if match.end() == len(text):
            raise _Incomplete
        arguments, end = self._json(text, match.end())
        if not isinstance(arguments, dict):
            raise ValueError("no object")
        return [Call(match[1], text[match.end() : end])], end

    def _pairs(self, text: str, place: int) -> tuple[list[Call], int]:
        form = self._form
        end = text.find(form.call_close.strip(), place)
        if end < 0:
            return _wait_or_fail(text, place)
        inside = text[place:end]
        match = re.match(rf"\s*({_NAME})", inside)
        if match is None:
            raise ValueError("no name")
        pair = re.compile(
            rf"{re.escape(form.pair_open.strip())}\s*(.+?){_loosely(form.pair_middle)}(.*?){re.escape(form.pair_close.strip())}",
            re.DOTALL,
        )
        properties = _properties(self._tools.get(match[1]))
        arguments = {
            m[1].strip(): _value(m[2], properties.get(m[1].strip())) for m in pair.finditer(inside, match.end())
        }
        left = pair.sub("", inside[match.end() :]).replace(form.name_close.strip(), "").strip()
        if left:
            raise ValueError(f"{left[:40]!r} is in no pair")
        return [Call(match[1], _dumped(arguments))], end

    def _notation(self, text: str, place: int) -> tuple[list[Call], int]:
        match = re.compile(rf"\s*({_NAME})(?=\{{)").match(text, place)
        if match is None:
            return _wait_or_fail(text, place)
        value, end = _Notation(text, self._form.pair_middle).value(match.end())
        return [Call(match[1], _dumped(value))], end


class _Incomplete(Exception):
    """More text may make a call of it."""


class _Notation:
    """Reads `{key:value,other:[1,true]}` with texts between two marks."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote

    def value(self, place: int, depth: int = 0) -> tuple[Any, int]:
        text = self._text
        if depth > 64:
            raise ValueError("it nests too deep")
        if place >= len(text) or self._quote.startswith(text[place:]):
            raise _Incomplete
        if text.startswith(self._quote, place):
            begin = place + len(self._quote)
            end = text.find(self._quote, begin)
            if end < 0:
                raise _Incomplete
            return text[begin:end], end + len(self._quote)
        if text[place] == "{":
            return self._members(place, "}", depth)
        if text[place] == "[":
            return self._members(place, "]", depth)
        match = re.compile(r"[^,\]}{\[]+").match(text, place)
        if match is None:
            raise ValueError("no value")
        if match.end() == len(text):
            raise _Incomplete
        word = match[0].strip()
        return _PYTHON[word] if word in _PYTHON else json.loads(word), match.end()

    def _members(self, place: int, close: str, depth: int) -> tuple[Any, int]:
        text = self._text
        found: dict[str, Any] = {}
        place += 1
        while True:
            if place >= len(text):
                raise _Incomplete
            if text[place] == close:
                return (found if close == "}" else list(found.values())), place + 1
            if text[place] == ",":
                place += 1
                continue
            key = str(len(found))
            if close == "}":
                colon = text.find(":", place)
                if colon < 0:
                    raise _Incomplete
                key, place = text[place:colon].strip().replace(self._quote, ""), colon + 1
            found[key], place = self.value(place, depth + 1)


def _wait_or_fail(text: str, place: int) -> tuple[list[Call], int]:
    """A name may be under way; what is longer than any, is none."""
    if len(text) - place > 4096 and "\n" in text[place:]:
        raise ValueError("no call")
    raise _Incomplete


def _is_open(text: str) -> bool:
    """Whether brackets, or a text, are still open at the end."""
    depth = 0
    for token in _BRACKETS.findall(text):  # a text that is long is one token: this is asked with every piece of it
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
            if depth <= 0:
                return False
    return True


def _uncertain(text: str, mark: str) -> int:
    """How many characters at the end of the text are the beginning of the mark, or white space before that."""
    return len(text) - len(text[: len(text) - begun(text, mark)].rstrip())


def _loosely(mark: str) -> str:
    """A pattern of the mark with any white space in it."""
    return r"\s*".join(re.escape(part) for part in mark.split()) + r"\s*" if mark.split() else r"\s*"


def _properties(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _value(text: str, schema: Any) -> Any:
    """An argument: a text where the schema wants one, else JSON, else the text that it is."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds and text.strip() != "null"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _said(kind: Literal["content", "reasoning"], text: str) -> list[Piece]:
    return [Said(kind, text)] if text else []
