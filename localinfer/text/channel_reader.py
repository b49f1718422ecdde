"""An answer of a model that writes messages on channels, as gpt-oss does (OpenAI's Harmony format).

An answer is `HEADER<|message|>TEXT<|end|>`, again and again with `<|start|>` in front; the prompt ends in the first
header. A header is a role, a channel (`<|channel|>analysis`) and, for calls of tools, a recipient (`to=functions.NAME`)
and a type (`<|constrain|>json`), in no certain order. The channel "analysis" is what the model thinks; "final" and
"commentary" are said. What does not fit comes as text, with its marks: nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from localinfer.text.answer_reader import SEAL, Kind, Piece, Reader, Said, unsealed
from localinfer.text.call_parser import Call
from localinfer.text.partial import begun
from localinfer.text.tool_format import CHANNEL_MARKS

_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS = CHANNEL_MARKS
_LONGEST_HEADER = 400  # characters
_NAMESPACE = "functions."


class ChannelReader(Reader):
    """Reads an answer that is messages on channels.

    `tools` are those that may be called; without, calls are text. `begun` is what the prompt has of the first message,
    behind its `<|start|>`. `sealed` says that every mark has SEAL in front.
    """

    def __init__(self, tools: Mapping[str, Any] | None = None, *, begun: str = "assistant", sealed: bool = False):
        self._tools = tools
        seal = SEAL if sealed else ""
        self._message = seal + _MESSAGE
        self._breaks = tuple(seal + mark for mark in (_START, _CHANNEL))  # begin a message where none has ended
        self._ends = tuple(seal + mark for mark in _ENDS)
        self._beginnings = ("assistant", "to=", self._message, *self._breaks)  # of a header
        part = rf"(\s*to=[^\s<{SEAL}]+)?"
        channel = rf"(\s*{re.escape(seal + _CHANNEL)}\s*\w+)?"
        kind = rf"(\s*({re.escape(seal + _CONSTRAIN)})?\s*\w+)?"
        self._pattern = re.compile(rf"\s*({re.escape(seal + _START)})?(\s*assistant)?{part}{channel}{part}{kind}\s*")
        self._given, opened, _ = begun.partition(self._message)  # what the prompt has of the header
        self._raw = ""  # what the model has written of it
        self._text = ""
        self._kind: Kind = "content"
        self._said: set[Kind] = set()
        self._fresh = True  # nothing of this message has been let out
        self._state = self._header
        if opened:
            self._open(self._given, "")

    def _header(self, final: bool) -> list[Piece]:
        """Waits for all of a header. Text where none is, is said."""
        header, opened, rest = self._text.partition(self._message)
        stripped = header.lstrip()
        if any(mark.startswith(stripped) or stripped.startswith(mark) for mark in self._beginnings):
            if opened and len(header) <= _LONGEST_HEADER and self._pattern.fullmatch(header):
                self._text = rest
                self._open(self._given + header, header + opened)
                return []
            if not opened and not final and len(header) <= _LONGEST_HEADER + len(self._message):
                return []
        if final and not opened and self._is_begun(header):
            self._text = ""  # cut off: there are only marks
            return []
        mark = next((mark for mark in (*self._breaks, self._message) if stripped.startswith(mark)), "")
        taken = len(header) - len(stripped) + len(mark)
        text, self._text = self._text[:taken], self._text[taken:]
        self._kind, self._fresh, self._state = "content", True, self._say
        return self._out(text) if mark else []

    def _is_begun(self, header: str) -> bool:
        """Whether a text is the beginning of a header and nothing else, with a mark in it."""
        marks = (self._message, *self._breaks)
        cut = max(begun(header, mark) for mark in marks)
        whole = header[: len(header) - cut]
        return any(mark in whole for mark in self._breaks) and self._pattern.fullmatch(whole) is not None

    def _open(self, header: str, raw: str) -> None:
        """A message begins. `raw` is what the model wrote of its header."""
        header = header.replace(SEAL, "")
        channel = re.search(rf"{re.escape(_CHANNEL)}\s*(\w+)", header)
        called = re.search(r"\bto=([^\s<]+)", header)
        self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "content"
        self._recipient = "" if called is None else called[1]
        self._raw, self._fresh = raw, True
        self._state = self._call if self._recipient not in ("", "all", "user") else self._say

    def _say(self, final: bool) -> list[Piece]:
        end = self._end()
        if end is None:
            marks = (*self._ends, *self._breaks)
            place = len(self._text) - (0 if final else max(begun(self._text, mark) for mark in marks))
            behind = place
        else:
            place, behind = end
            self._next()
        text, self._text = self._text[:place], self._text[behind:]
        return self._out(text)

    def _call(self, final: bool) -> list[Piece]:
        """Waits for all of a call. What is none is text, with its header."""
        end = self._end()
        if end is None and not final:
            return []
        place, behind = end or (len(self._text), len(self._text))
        text, mark, self._text = self._text[:place], self._text[place:behind], self._text[behind:]
        self._next()
        name = self._recipient.removeprefix(_NAMESPACE)
        if self._tools is not None and (name != self._recipient or name in self._tools) and _is_object(text):
            return [unsealed(Call(name, text.strip()))]
        self._kind = "content"
        return self._out(self._raw + text + mark)

    def _end(self) -> tuple[int, int] | None:
        """Where the message ends, and where the next one begins."""
        found = [(place, place + len(mark)) for mark in self._ends if (place := self._text.find(mark)) >= 0]
        found += [(place, place) for mark in self._breaks if (place := self._text.find(mark)) >= 0]
        return min(found, default=None)

    def _next(self) -> None:
        self._given, self._state = "", self._header

    def _out(self, text: str) -> list[Piece]:
        """The text as a piece. Two messages of one kind are two paragraphs."""
        text = text.replace(SEAL, "")
        if not text:
            return []
        if self._fresh and self._kind in self._said:
            text = "\n\n" + text
        self._fresh = False
        self._said.add(self._kind)
        return [Said(self._kind, text)]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
