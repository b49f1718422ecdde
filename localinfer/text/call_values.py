"""Values of arguments that are not written as JSON: typed by a schema, in Gemma's notation, or as Python has them.

Readers raise Incomplete where more text may complete a value, ValueError where none can.
"""

from __future__ import annotations

import json
import re
from typing import Any

_DEPTH = 64  # of lists and objects in each other
_WORDS = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", "a": "\a", "v": "\v", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}
_WORD = re.compile(r"[^\s,:\[\](){}'\"=]+")
_PYTHON_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,255}")


class Incomplete(Exception):
    """More text may make a value, or a call, of it."""


def typed(text: str, schema: Any) -> Any:
    """What a text stands for: itself where the schema wants a text, else JSON, else the text that it is."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds and text.strip() != "null"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.strip() in _WORDS:  # templates write as Python has it where they forget that it is no JSON
        return _WORDS[text.strip()]
    if text.lstrip().startswith(("[", "{")):
        try:
            value, end = Python(text).value(0)
        except (ValueError, Incomplete):
            return text
        return text if text[end:].strip() else value
    return text


class Notation:
    """Reads `{key:value,other:[1,true]}` with texts between two marks."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote

    def value(self, place: int, depth: int = 0) -> tuple[Any, int]:
        """The value that begins at a place, and where it ends."""
        text = self._text
        if depth > _DEPTH:
            raise ValueError("it nests too deep")
        if place >= len(text) or self._quote.startswith(text[place:]):
            raise Incomplete
        if text.startswith(self._quote, place):
            begin = place + len(self._quote)
            end = text.find(self._quote, begin)
            if end < 0:
                raise Incomplete
            return text[begin:end], end + len(self._quote)
        if text[place] == "{":
            return self._members(place, "}", depth)
        if text[place] == "[":
            return self._members(place, "]", depth)
        match = re.compile(r"[^,\]}{\[]+").match(text, place)
        if match is None:
            raise ValueError("no value")
        if match.end() == len(text):
            raise Incomplete
        return _word(match[0].strip()), match.end()

    def _members(self, place: int, close: str, depth: int) -> tuple[Any, int]:
        text = self._text
        found: dict[str, Any] = {}
        place += 1
        while True:
            if place >= len(text):
                raise Incomplete
            if text[place] == close:
                return (found if close == "}" else list(found.values())), place + 1
            if text[place] == ",":
                place += 1
                continue
            key = str(len(found))
            if close == "}":
                colon = text.find(":", place)
                if colon < 0:
                    raise Incomplete
                key, place = text[place:colon].strip().replace(self._quote, ""), colon + 1
            found[key], place = self.value(place, depth + 1)


class Python:
    """Reads calls and literals of Python; also JSON's words for true, false and null."""

    def __init__(self, text: str) -> None:
        self._text = text

    def call(self, place: int) -> tuple[str, dict[str, Any], int]:
        """Name, arguments and end of `name(key=value, ...)`. Arguments without a key make it none."""
        name, place = self._name(place)
        place = self._expect(place, "(")
        arguments: dict[str, Any] = {}
        while True:
            if self._at(place) == ")":
                return name, arguments, place + 1
            key, place = self._name(place)
            if key in arguments:
                raise ValueError("twice the same key")
            arguments[key], place = self.value(self._expect(place, "="))
            place = self._skip(place)
            if self._at(place) == ",":
                place = self._skip(place + 1)
            elif self._at(place) != ")":
                raise ValueError("no call")

    def value(self, place: int, depth: int = 0) -> tuple[Any, int]:
        """The value that begins at a place, behind white space, and where it ends."""
        if depth > _DEPTH:
            raise ValueError("it nests too deep")
        place = self._skip(place)
        first = self._at(place)
        if first in "'\"":
            return self._string(place)
        if first == "{":
            return self._members(place, depth)
        if first in "[(":
            return self._items(place, "]" if first == "[" else ")", depth)
        match = _WORD.match(self._text, place)
        if match is None:
            raise ValueError("no value")
        if match.end() == len(self._text):
            raise Incomplete
        return _word(match[0]), match.end()

    def _items(self, place: int, close: str, depth: int) -> tuple[list[Any], int]:
        found = []
        place = self._skip(place + 1)
        while self._at(place) != close:
            value, place = self.value(place, depth + 1)
            found.append(value)
            place = self._comma(place, close)
        return found, place + 1

    def _members(self, place: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        place = self._skip(place + 1)
        while self._at(place) != "}":
            key, place = self.value(place, depth + 1)
            found[str(key)], place = self.value(self._expect(place, ":"), depth + 1)
            place = self._comma(place, "}")
        return found, place + 1

    def _string(self, place: int) -> tuple[str, int]:
        text = self._text
        quote = text[place]
        if len(text) - place < 3 and text[place:] == quote * (len(text) - place):
            raise Incomplete  # it may be an empty text, or three quotes
        quote = quote * 3 if text.startswith(quote * 3, place) else quote
        place += len(quote)
        parts = []
        while True:
            match = re.compile(rf"(?:(?!{quote})[^\\])*").match(text, place)
            assert match is not None
            parts.append(match[0])
            place = match.end()
            if text.startswith(quote, place):
                return "".join(parts), place + len(quote)
            if place + 1 >= len(text):
                raise Incomplete
            escaped, place = self._escaped(place + 1)
            parts.append(escaped)

    def _escaped(self, place: int) -> tuple[str, int]:
        letter = self._text[place]
        if size := _HEX.get(letter, 0):
            digits = self._text[place + 1 : place + 1 + size]
            if len(digits) < size:
                raise Incomplete
            return chr(int(digits, 16)), place + 1 + size
        return _ESCAPES.get(letter, letter if letter in "'\"\\/" else "\\" + letter), place + 1

    def _name(self, place: int) -> tuple[str, int]:
        place = self._skip(place)
        match = _PYTHON_NAME.match(self._text, place)
        if match is None:
            raise ValueError("no name")
        if match.end() == len(self._text):
            raise Incomplete
        return match[0], match.end()

    def _comma(self, place: int, close: str) -> int:
        place = self._skip(place)
        if self._at(place) == ",":
            return self._skip(place + 1)
        if self._at(place) != close:
            raise ValueError("no comma")
        return place

    def _expect(self, place: int, mark: str) -> int:
        place = self._skip(place)
        if self._at(place) != mark:
            raise ValueError(mark)
        return self._skip(place + 1)

    def _skip(self, place: int) -> int:
        """Behind white space. Incomplete where nothing follows."""
        while place < len(self._text) and self._text[place].isspace():
            place += 1
        self._at(place)
        return place

    def _at(self, place: int) -> str:
        if place >= len(self._text):
            raise Incomplete
        return self._text[place]


def _word(word: str) -> Any:
    return _WORDS[word] if word in _WORDS else json.loads(word)
