"""How the answers to a prompt are read: with the marks of thoughts and calls, which may be special tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from localinfer.text.answer_reader import AnswerReader
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import ReasoningFormat, ToolFormat

_TAIL = 16  # tokens of a prompt that may end with the mark of a thought


class Decoder(Protocol):
    """Turns the tokens of one answer into text, piece by piece."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class AnswerMarks:
    """What the answers to one prompt may consist of: thoughts if there is `reasoning`, calls of `tools` (names and
    JSON schemas) if there are `calls`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reasoning: ReasoningFormat | None,
        calls: ToolFormat | None,
        tools: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._calls = calls
        self.tools = tools
        self.thinking = False  # whether the prompt has opened a thought

    def look_at(self, prompt: Sequence[int]) -> None:
        """The prompt may have opened a thought already."""
        if (form := self._reasoning) is not None:
            tail = self._tokenizer.decode(list(prompt)[-_TAIL:])
            self.thinking = tail.rstrip().endswith(form.open)

    def reader(self) -> AnswerReader:
        """Reads one answer."""
        return AnswerReader(self._reasoning, self._calls, self.tools, thinking=self.thinking)

    def decoder(self, skip_special: bool = True) -> Callable[[], Decoder]:
        """Makes a decoder that shows the special tokens that marks are made of, if no other."""
        tokenizer = self._tokenizer
        marks: list[str] = []
        if self._reasoning is not None:
            marks += (self._reasoning.open, self._reasoning.close)
        if self._calls is not None:
            marks += self._calls.marks
        shown = {
            token
            for mark in marks
            for token in tokenizer.encode(mark, add_special=False, parse_special=True)
            if tokenizer.is_special(token)
        }
        if not shown or not skip_special:
            return lambda: tokenizer.detokenizer(skip_special=skip_special)
        return lambda: _MarksShown(tokenizer.detokenizer(skip_special=False), tokenizer.is_special, shown)


class _MarksShown:
    """A decoder that passes over special tokens, but for some."""

    def __init__(self, inner: Decoder, is_special: Callable[[int], bool], shown: set[int]) -> None:
        self._inner = inner
        self._is_special = is_special
        self._shown = shown

    def push(self, token: int) -> str:
        if self._is_special(token) and token not in self._shown:
            return ""
        return self._inner.push(token)

    def finish(self) -> str:
        return self._inner.finish()


def new_call_id() -> str:
    """Unique, and of the letters and digits that every template takes (Mistral's want nine of them)."""
    return secrets.token_hex(5)[:9]
