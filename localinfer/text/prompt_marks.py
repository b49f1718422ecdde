"""Telling a template's own text from the texts that it was given.

The texts are marked with characters that occur nowhere else, rendered, and the marks are found again. Whether the marks
changed what the template does is checked by the caller: without them the result must be the plain one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from localinfer.errors import LocalInferError

# Unicode reserves the first for uses such as this, and the others for private use: more than a message can hold.
_MARKS = (range(0xFDD0, 0xFDF0), range(0x100000, 0x10FFFE))
# Text that could be a special token: <...>, <|...|>, [...].
_TOKEN_LIKE = re.compile(r"<[^<>\s][^<>\n]{0,78}>|\[[^\[\]\s]{1,40}\]")
_STRUCTURE = frozenset(("role", "type"))  # templates compare these
_CONTENTS = frozenset(("content", "reasoning_content", "thinking", "reasoning", "text", "arguments"))


class Arguments(dict[str, Any]):
    """Arguments of a tool call: an object for templates that look into it, JSON for those that paste it as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


class Composed(str):
    """A text of several parts, of which some are as good as the template's own: (text, whether it is)."""

    parts: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, bool]]) -> Composed:
        """All of them as one text."""
        found = tuple(parts)
        made = cls("".join(text for text, _ in found))
        made.parts = found
        return made


class Marker:
    """Marks the texts in what a template gets: contents as a whole, or (for templates that look into contents)
    only what looks like a special token in any text."""

    def __init__(self, given: Mapping[str, Any], whole_contents: bool) -> None:
        seen: set[str] = set()

        def collect(_: str, text: str) -> str:
            seen.update(text)
            return text

        copied(given, collect)
        free = (chr(code) for codes in _MARKS for code in codes if chr(code) not in seen)
        self._begin, self._end = next(free, ""), next(free, "")
        self._whole_contents = whole_contents
        self._texts: set[str] = set()
        self.marked = copied(given, self._mark)  # of the same form as `given`

    def parts(self, rendered: str) -> list[tuple[str, bool]] | None:
        """(text, whether the template wrote it); an empty untrusted part stands where a text was cut.

        None if contents were marked as a whole and a template took one apart, if it turned one around, or if no
        characters were left for marks.
        """
        if not self._end:
            return None
        parts: list[tuple[str, bool]] = []
        pieces = re.split(f"([{self._begin}{self._end}])", rendered)  # text, mark, text, mark, ..., text
        index, begin_cut = 0, False  # whether the last text that was cut has lost its begin
        while index < len(pieces):
            if pieces[index]:
                parts.append((pieces[index], True))
            marks = pieces[index + 1 : index + 4 : 2]
            if marks == [self._begin, self._end] and pieces[index + 2] in self._texts:
                parts.append((pieces[index + 2], False))
                index += 4
                continue
            if marks:  # a text was cut
                if self._whole_contents or (begin_cut and marks[0] == self._begin):
                    return None
                begin_cut = marks[0] == self._end
                parts.append(("", False))
            index += 2
        return parts

    def _mark(self, key: str, text: str) -> str:
        if key in _STRUCTURE:
            return text
        if isinstance(text, Composed):
            return "".join(part if ours else self._mark(key, part) for part, ours in text.parts)
        if not self._whole_contents or key not in _CONTENTS:
            return _TOKEN_LIKE.sub(lambda match: self._wrap(match[0]), text)
        core = text.strip()  # templates trim: the marks go inside of the whitespace
        before, _, after = text.partition(core) if core else (text, "", "")
        return before + self._wrap(core) + after if core else text

    def _wrap(self, text: str) -> str:
        # A template may write it as JSON, with or without what is not ASCII.
        self._texts.update((text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]))
        return f"{self._begin}{text}{self._end}"


def copied(value: Any, change: Callable[[str, str], str] | None = None, key: str = "") -> Any:
    """A deep copy in plain types, which a template may change at will; `change(key, text)` maps its texts.

    Lists hand their own key on to their items, and `arguments` to all that is in them.
    """
    if isinstance(value, str):
        return change(key, value) if change else str(value)
    if isinstance(value, Mapping):
        copy = {str(k): copied(v, change, "arguments" if key == "arguments" else str(k)) for k, v in value.items()}
        return Arguments(copy) if isinstance(value, Arguments) else copy
    if isinstance(value, list | tuple):
        return [copied(item, change, key) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise LocalInferError(
        f"a message holds a value of type {type(value).__name__}", "use texts, numbers, lists and objects"
    )
