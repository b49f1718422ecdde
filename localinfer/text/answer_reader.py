"""An answer as it comes, told apart: what the model thinks, what it says, and which tools it calls.

Text is let out as soon as it cannot be part of a mark any more. A call comes out whole, when its end has been read.
What begins like a call and is none (no JSON, no name, cut off) comes out as text, in the end: nothing is lost, and in
what pieces an answer comes makes no difference.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from localinfer.text.call_parser import Call, CallParser
from localinfer.text.call_values import Incomplete
from localinfer.text.partial import begun
from localinfer.text.tool_format import ReasoningFormat, ToolFormat

__all__ = ["SEAL", "AnswerReader", "Call", "Kind", "Piece", "Reader", "Said"]

# Stands before a mark that is a special token, so that no text can pretend to be one. Unicode has no character there.
SEAL = "\ufdd0"

Kind = Literal["content", "reasoning"]


@dataclass(frozen=True)
class Said:
    """A piece of what the model says, or of what it thinks."""

    kind: Kind
    text: str


Piece = Said | Call


class Reader(ABC):
    """Reads one answer, piece by piece."""

    _text: str  # not let out yet
    _state: Callable[[bool], list[Piece]]  # reads what comes next; told whether nothing more comes

    def push(self, text: str) -> list[Piece]:
        """What is certain with this piece of text."""
        self._text += text
        return self._read(final=False)

    def finish(self) -> list[Piece]:
        """What is left when nothing more comes."""
        return self._read(final=True)

    def whole(self, text: str) -> list[Piece]:
        """The pieces of an answer that has ended, neighbours of one kind as one."""
        return joined([*self.push(text), *self.finish()])

    def _read(self, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            before = self._state, len(self._text)
            pieces += self._state(final)
            if (self._state, len(self._text)) == before:
                return pieces


class AnswerReader(Reader):
    """Reads an answer that is a thought, perhaps, then text and calls.

    `tools` maps the names of tools to their parameters' JSON schemas. Without `calls` nothing is taken for a call,
    without `reasoning` nothing for a thought. `thinking` says that the prompt has opened the thought already,
    `begun` is the mark of a call that it ends with. Marks in the formats may begin with SEAL, which no piece has.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None = None,
        calls: ToolFormat | None = None,
        tools: Mapping[str, Any] | None = None,
        *,
        thinking: bool = False,
        begun: str = "",
    ) -> None:
        self._reasoning = reasoning
        self._parser = CallParser(calls, tools or {}) if calls is not None else None
        self._state = self._think if thinking else self._start
        self._text = begun
        self._given = len(begun)  # characters of the text that the model has not written
        self._fresh = thinking  # white space behind a mark is left out
        self._silent = True  # nothing but white space has been said
        self._answer_close = ""  # the mark that will end what is said
        self._found = 0, 0  # where what looks like a call begins, and where its mark ends

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
        self._state = self._open_answer
        return []

    def _think(self, final: bool) -> list[Piece]:
        assert self._reasoning is not None
        if self._fresh:
            self._text = self._text.lstrip()
            self._fresh = not self._text
        thought, closed, rest = self._text.partition(self._reasoning.close)
        if self._ends_thoughts and (found := self._found_call(thought)) is not None:
            closed, thought, rest = "call", self._text[: found[0]], self._text[found[0] :]
        if closed:
            self._text = rest
            self._state, self._fresh = self._open_answer, True
            return _said("reasoning", thought.rstrip())
        held = begun(thought, self._reasoning.close)
        if self._ends_thoughts and self._parser is not None:
            held = max(held, self._parser.held_back(thought, silent=False))
        return self._let_out("reasoning", 0 if final else _white_before(thought, held))

    def _open_answer(self, final: bool) -> list[Piece]:
        """Marks may stand before what is said."""
        stripped = self._text.lstrip()
        between = self._reasoning.after.strip() if self._reasoning is not None and self._fresh else ""
        if between and not stripped.startswith(between) and between.startswith(stripped) and not final:
            return []
        stripped = stripped.removeprefix(between).lstrip() if between else stripped
        mark = self._reasoning.answer_open.strip() if self._reasoning is not None else ""
        if mark and stripped.startswith(mark):
            assert self._reasoning is not None
            self._text, self._fresh = stripped.removeprefix(mark), True
            self._answer_close = self._reasoning.answer_close.strip()
        elif mark and mark.startswith(stripped) and not final:
            return []
        elif self._fresh:
            self._text = stripped
        self._state = self._say
        return []

    def _say(self, final: bool) -> list[Piece]:
        if self._fresh:
            self._text = self._text.lstrip()
            self._fresh = not self._text
        if self._answer_close and self._answer_close in self._text:
            said, _, rest = self._text.partition(self._answer_close)
            if self._found_call(said) is None:
                self._text, self._answer_close, self._fresh = rest, "", True
                return _said("content", said.rstrip())
        if (found := self._found_call(self._text)) is not None:
            return self._let_out_up_to_call(found[0])
        if self._reopens and (place := self._text.find(self._open_mark)) >= 0:
            said, self._text = self._text[:place], self._text[place + len(self._open_mark) :]
            self._state, self._fresh = self._think, True
            return _said("content", said.rstrip())
        held = self._parser.held_back(self._text, self._silent) if self._parser is not None else 0
        for mark in filter(None, (self._answer_close, self._open_mark if self._reopens else "")):
            held = max(held, begun(self._text, mark))
        if self._parser is None and not self._answer_close and not self._reopens:
            return self._let_out("content", 0)
        return self._let_out("content", 0 if final else _white_before(self._text, held))

    def _call(self, final: bool) -> list[Piece]:
        """The text is white space, perhaps, and what begins like a call."""
        assert self._parser is not None
        place, behind_mark = self._found
        try:
            calls, end = self._parser.first(self._text, place, final)
        except Incomplete:
            if not final:
                return []
        except ValueError:
            pass
        else:
            self._text = self._text[end:]
            self._state = self._behind_call
            return [unsealed(call) for call in calls]
        self._state, self._silent = self._say, False
        if (begin := self._parser.plain(self._text, place)) > place:
            self._text, self._given = self._text[begin:], 0
            return []
        # It is none: its mark is text, and what follows is looked at again.
        out, self._text = self._text[self._given : behind_mark], self._text[behind_mark:]
        self._given = 0
        return _said("content", out)

    def _behind_call(self, final: bool) -> list[Piece]:
        assert self._parser is not None
        try:
            calls, end = self._parser.next(self._text, 0, final)
        except Incomplete:
            if not final:
                return []
            calls, end = [], 0
        self._text = self._text[end:]
        if not calls:
            self._state, self._silent, self._fresh = self._say, False, True
        return [unsealed(call) for call in calls]

    def _found_call(self, text: str) -> tuple[int, int] | None:
        return self._parser.find(text, self._silent) if self._parser is not None else None

    def _let_out_up_to_call(self, place: int) -> list[Piece]:
        said = self._text[:place].rstrip()
        found = self._found_call(self._text)
        assert found is not None
        self._text = self._text[len(said) :]
        self._found = found[0] - len(said), found[1] - len(said)
        self._state = self._call
        return _said("content", said)

    @property
    def _open_mark(self) -> str:
        return self._reasoning.open if self._reasoning is not None else ""

    @property
    def _reopens(self) -> bool:
        """Whether a thought may begin anywhere: only a special token is certain to be no text."""
        return self._open_mark.startswith(SEAL)

    @property
    def _ends_thoughts(self) -> bool:
        """Whether a call ends a thought that is not closed: only a special token is certain to begin one."""
        return self._parser is not None and self._parser.trigger.startswith(SEAL)

    def _let_out(self, kind: Kind, keep: int) -> list[Piece]:
        """All that is held, but for its last `keep` characters."""
        end = len(self._text) - keep
        out, self._text = self._text[:end], self._text[end:]
        if kind == "content" and out.strip():
            self._silent = False
        return _said(kind, out)


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same, neighbours of one kind as one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, Said) and isinstance(last, Said) and piece.kind == last.kind:
            found[-1] = Said(piece.kind, last.text + piece.text)
        else:
            found.append(piece)
    return found


def unsealed(call: Call) -> Call:
    """The call without seals."""
    return replace(call, name=call.name.replace(SEAL, ""), arguments=call.arguments.replace(SEAL, ""))


def _white_before(text: str, held: int) -> int:
    """The number of characters that are held back at the end of a text, and the white space before them."""
    return len(text) - len(text[: len(text) - held].rstrip())


def _said(kind: Kind, text: str) -> list[Piece]:
    text = text.replace(SEAL, "")
    return [Said(kind, text)] if text else []
