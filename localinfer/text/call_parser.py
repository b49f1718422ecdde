"""Calls of tools in text, in the format of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localinfer.text.call_values import Incomplete, Notation, Python, typed
from localinfer.text.partial import begun
from localinfer.text.tool_format import ToolFormat, first_mark

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)  # ... and whole texts, in which they do not count
_NAME = r"[A-Za-z0-9_.-]{1,256}"
_ID = r"[A-Za-z0-9_.:-]{1,128}"
_PLACES = {"{id}": re.compile(_ID), "{number}": re.compile(r"\d{1,9}")}
_PARTS = re.compile(r"\{id\}|\{number\}|(?:(?!\{id\}|\{number\})\S)+")  # of a mark
_SPACE = r"\s{0,99}"
_ADDED = frozenset(("function", "type", "id", "tool_call_id", "index"))  # keys that say nothing to the tool
_LONGEST_HEAD = 4096  # no name or key, with what stands around it, is as long as this
# What an answer may begin with if its calls have no mark.
_BARE = {"object": re.compile(r"\{\s*\""), "python": re.compile(r"\[\s*[A-Za-z_][A-Za-z0-9_.-]*\s*\(")}
_BARE_BEGUN = {"object": re.compile(r"\{?\s*"), "python": re.compile(r"(\[\s*([A-Za-z_][A-Za-z0-9_.-]*\s*)?)?")}


@dataclass(frozen=True)
class Call:
    """A call of a tool; `arguments` are the text of a JSON object."""

    name: str
    arguments: str


class CallParser:
    """Finds calls of one format in text. `tools` maps the names of tools to their parameters' JSON schemas.

    What it says of a text holds for all longer ones, so that it does not matter in what pieces a text comes.
    """

    def __init__(self, form: ToolFormat, tools: Mapping[str, Any]) -> None:
        self._form = form
        self._tools = tools
        self._triggers = tuple(filter(None, (form.trigger, *form.also_open)))
        self._bare = "python" if form.style == "python" else "object" if form.style in ("object", "keyed") else ""
        self._decoder = json.JSONDecoder(object_pairs_hook=_once)
        self._key = _key_pattern(form.pair_middle, form.pair_middle_json)

    def plain(self, text: str, place: int) -> int:
        """What begins like a call may announce text: where that begins."""
        announced = self._form.call_open + self._form.plain_name + self._form.name_close
        return place + len(announced) if self._form.plain_name and text.startswith(announced, place) else place

    @property
    def trigger(self) -> str:
        """The mark before calls; "" for none."""
        return self._form.trigger

    def find(self, text: str, silent: bool) -> tuple[int, int] | None:
        """Where calls begin, and where their mark ends. `silent`: nothing was said before, which calls without a mark
        need."""
        found = [(place, place + len(mark)) for mark in self._triggers if (place := text.find(mark)) >= 0]
        if silent and not self._form.trigger and self._bare:
            place = len(text) - len(text.lstrip())
            if _BARE[self._bare].match(text, place):
                found.append((place, place + 1))
        return min(found, default=None)

    def held_back(self, text: str, silent: bool) -> int:
        """How many characters at the end may turn out to begin a call."""
        held = max((begun(text, mark) for mark in self._triggers), default=0)
        if silent and not self._form.trigger and self._bare and _BARE_BEGUN[self._bare].fullmatch(text.lstrip()):
            held = len(text)
        return held

    def first(self, text: str, place: int, final: bool) -> tuple[list[Call], int]:
        """The call that begins at a place, or the list of them, and its end. Incomplete, or ValueError for none.

        `final`: nothing more comes, and the marks that close a call may be missing.
        """
        place = self._optional(text, place, (self._form.open, *self._form.also_open))
        return self._one(text, place, final)

    def next(self, text: str, place: int, final: bool) -> tuple[list[Call], int]:
        """The same behind a call; no calls and the place where text goes on, if there are no more."""
        form = self._form
        for close in (form.close.strip(), first_mark(form.close)):
            while close and (behind := self._behind(text, place, close, final)) is not None:
                place = behind
        place = _skip(text, place)
        try:
            start = self._optional(text, place, (form.between,) if form.between.strip() else (",", ";"))
            if not self._announced(text, start):
                return [], place
            return self._one(text, self._optional(text, start, (form.open, *form.also_open)), final)
        except Incomplete:
            if not final:
                raise
        except ValueError:
            pass
        return [], place

    def _announced(self, text: str, place: int) -> bool:
        """Whether a call may begin there."""
        if place == len(text):
            raise Incomplete
        marks = [mark for mark in (self._form.open.strip(), first_mark(self._form.call_open)) if mark]
        if any(text.startswith(mark, place) for mark in marks):
            return True
        if any(mark.startswith(text[place:]) for mark in marks):
            raise Incomplete
        if self._form.call_open.strip():
            return False
        return text[place] in "{[" or (self._form.style == "python" and text[place].isidentifier())

    def _one(self, text: str, place: int, final: bool) -> tuple[list[Call], int]:
        style, mark = self._form.style, self._form.call_open.strip()
        if mark:
            place = self._expect(text, place, mark, optional=style in ("object", "keyed"))
        read = {
            "object": self._objects,
            "keyed": self._objects,
            "split": self._split,
            "pairs": self._pairs,
            "notation": self._notation,
            "python": self._python,
        }[style]
        calls, place = read(text, place)
        for part in self._form.call_close.split():
            behind = self._behind(text, place, part, final)
            if behind is None:
                break
            place = behind
        return calls, place

    def _behind(self, text: str, place: int, mark: str, final: bool) -> int | None:
        """Behind a mark that may stand there; Incomplete if it may be under way."""
        place = _skip(text, place)
        if text.startswith(mark, place):
            return place + len(mark)
        if not final and mark.startswith(text[place:]):
            raise Incomplete
        return None

    def _optional(self, text: str, place: int, marks: tuple[str, ...]) -> int:
        """Behind any of the marks, in whatever number, and the white space around them: models are not exact there."""
        stripped = [mark.strip() for mark in marks if mark.strip()]
        while True:
            place = _skip(text, place)
            found = next((mark for mark in stripped if text.startswith(mark, place)), None)
            if found is None:
                if any(mark.startswith(text[place:]) for mark in stripped):
                    raise Incomplete
                return place
            place += len(found)

    def _expect(self, text: str, place: int, mark: str, optional: bool = False) -> int:
        """Behind the mark, any white space in it, and the white space around it."""
        begin = place = _skip(text, place)
        for part in _PARTS.findall(mark):
            match = _PLACES[part].match(text, place) if part in _PLACES else None
            if match is not None and match.end() < len(text):
                place = _skip(text, match.end())
            elif part not in _PLACES and text.startswith(part, place):
                place = _skip(text, place + len(part))
            elif match is not None or part.startswith(text[place:]):
                raise Incomplete
            elif optional:
                return begin
            else:
                raise ValueError(mark)
        return place

    def _json(self, text: str, place: int) -> tuple[Any, int]:
        try:
            return self._decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            # Where the text ends in the middle of a value, more of it may help.
            if error.pos >= len(text.rstrip()) or _is_open(text[place:]):
                raise Incomplete from None
            raise
        except RecursionError as error:
            raise ValueError("it nests too deep") from error

    def _objects(self, text: str, place: int) -> tuple[list[Call], int]:
        place = _skip(text, place)
        if place == len(text):
            raise Incomplete
        if text[place] not in "[{":
            raise ValueError("no object")
        value, end = self._json(text, place)
        found = [call for item in (value if isinstance(value, list) else [value]) for call in self._calls(item)]
        if not found:
            raise ValueError("no call")
        return found, end

    def _calls(self, item: Any) -> list[Call]:
        """The call that an object stands for, or all of `{NAME: arguments, ...}`."""
        if isinstance(item, dict) and self._form.style == "keyed" and self._form.name_key not in item:
            return [_call(name, arguments) for name, arguments in item.items()]
        if isinstance(item, dict) and item.get("type", "function") != "function":
            raise ValueError("no function")
        if isinstance(item, dict) and isinstance(item.get("function"), dict) and _ADDED.issuperset(item):
            item = item["function"]
        if not isinstance(item, dict):
            raise ValueError("no object")
        name_key = next((key for key in (self._form.name_key, "name") if key in item), "")
        key = next((key for key in (self._form.arguments_key, "arguments", "parameters") if key in item), "")
        if not _ADDED.issuperset(item.keys() - {name_key, key}):
            raise ValueError("more than a call")
        return [_call(item.get(name_key), item.get(key, {}))]

    def _split(self, text: str, place: int) -> tuple[list[Call], int]:
        between = _loosely(self._form.name_close)
        match = re.compile(rf"({_NAME}?){between}(?=\S)").match(text, place)
        if match is None:
            return _wait_or_fail(text, place)
        if text[match.end()] != "{":
            raise ValueError("no object")
        arguments, end = self._json(text, match.end())
        if not isinstance(arguments, dict):
            raise ValueError("no object")
        return [Call(match[1], text[match.end() : end])], end

    def _pairs(self, text: str, place: int) -> tuple[list[Call], int]:
        form = self._form
        head = re.compile(rf"\s*({_NAME})").match(text, place)
        if head is None or head.end() == len(text):
            return _wait_or_fail(text, place)
        name, place = head[1], head.end()
        if "{" in form.name_close:
            match = re.compile(_loosely(form.name_close.replace("{name}", name))).match(text, place)
            if match is None:
                return _wait_or_fail(text, place)
            place = match.end()
        else:
            place = self._expect(text, place, form.name_close, optional=True)
        opened, closed = form.pair_open.strip(), next(iter(form.call_close.split()), "")
        properties = _properties(self._tools.get(name))
        arguments: dict[str, Any] = {}
        while True:
            place = _skip(text, place)
            if closed and text.startswith(closed, place):
                return [Call(name, _dumped(arguments))], place
            if text.startswith(opened, place):
                key, value, place = self._pair(text, place + len(opened), properties)
                if key in arguments:
                    raise ValueError("twice the same key")
                arguments[key] = value
            elif closed.startswith(text[place:]) or opened.startswith(text[place:]):
                raise Incomplete
            else:
                raise ValueError("no pair")

    def _pair(self, text: str, place: int, properties: Mapping[str, Any]) -> tuple[str, Any, int]:
        """Key, value and end of the pair whose mark ends at a place."""
        form = self._form
        match = self._key.match(text, place)
        if match is None:
            if len(text) - place > _LONGEST_HEAD:
                raise ValueError("no key")
            raise Incomplete
        key = match["key"].strip()
        close = form.pair_close.replace("{key}", key)
        end = text.find(close.strip(), match.end())
        if end < 0:
            raise Incomplete
        value = text[match.end() : end]
        # A line's end belongs to the marks if the template writes it there.
        if form.pair_middle.endswith("\n"):
            value = value.removeprefix("\n")
        if close.startswith("\n"):
            value = value.removesuffix("\n")
        if form.pair_middle_json:
            found = value if match["kind"] in form.pair_middle else typed(value, None)
        else:
            found = typed(value, properties.get(key))
        return key, found, end + len(close.strip())

    def _notation(self, text: str, place: int) -> tuple[list[Call], int]:
        match = re.compile(rf"\s*({_NAME})(?=\{{)").match(text, place)
        if match is None:
            return _wait_or_fail(text, place)
        value, end = Notation(text, self._form.pair_middle).value(match.end())
        return [Call(match[1], _dumped(value))], end

    def _python(self, text: str, place: int) -> tuple[list[Call], int]:
        place = _skip(text, place)
        if place == len(text):
            raise Incomplete
        if text[place] == "{" or re.compile(r"\[\s*\{").match(text, place):
            return self._objects(text, place)  # these models can be told to write JSON
        if re.compile(r"\[\s*").fullmatch(text, place):
            raise Incomplete
        listed = text[place] == "["
        reader = Python(text)
        calls = []
        place += listed
        while True:
            name, arguments, place = reader.call(place)
            calls.append(_call(name, arguments))
            if not listed:
                return calls, place
            place = _skip(text, place)
            if place == len(text):
                raise Incomplete
            if text[place] == "]":
                return calls, place + 1
            if text[place] != ",":
                raise ValueError("no call")
            place += 1


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, of which a key that comes twice would lose a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("twice the same key")
    return found


def _call(name: Any, arguments: Any) -> Call:
    if isinstance(arguments, str):  # some models write the object as a text
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("no call")
    return Call(name, _dumped(arguments))


def _wait_or_fail(text: str, place: int) -> tuple[list[Call], int]:
    """A name may be under way; what is longer than any, is none."""
    if len(text) - place > _LONGEST_HEAD:
        raise ValueError("no call")
    raise Incomplete


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


def _skip(text: str, place: int) -> int:
    """Behind white space."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _loosely(mark: str) -> str:
    """A pattern of the mark with white space in it and around it, and of the ids and numbers in it."""
    if mark.isspace():
        return r"\s{1,99}"
    pattern = _SPACE.join(("", *(re.escape(part) for part in mark.split()), ""))
    return pattern.replace(r"\{id\}", _ID).replace(r"\{number\}", r"\d{1,9}")


def _key_pattern(middle: str, other: str) -> re.Pattern[str]:
    """A key, what stands between it and its value, and, as `kind`, the word in which that tells texts from others."""
    if not other:
        marks = _SPACE.join(re.escape(part) for part in middle.split())
    else:
        words, others = re.split(r"(\w+)", middle), re.split(r"(\w+)", other)
        kind = next((i for i, (a, b) in enumerate(zip(words, others, strict=False)) if a != b), 1)
        before, behind = "".join(words[:kind]), "".join(words[kind + 1 :])
        marks = rf"{re.escape(before.strip())}(?P<kind>\w{{1,64}}){re.escape(behind.strip())}"
    return re.compile(rf"\s*(?P<key>.{{1,512}}?){_SPACE}{marks}", re.DOTALL)


def _properties(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
