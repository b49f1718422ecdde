"""How the answers to a prompt are read: with the marks of thoughts and calls, which may be special tokens."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from localinfer.text.answer_reader import SEAL, AnswerReader, Reader
from localinfer.text.channel_reader import ChannelReader
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import CHANNEL_MARKS, ReasoningFormat, ToolFormat

_TAIL = 32  # tokens of a prompt that may end with the mark of a thought, or the beginning of a message

Format = TypeVar("Format", ReasoningFormat, ToolFormat)


class Decoder(Protocol):
    """Turns the tokens of one answer into text, piece by piece."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class AnswerMarks:
    """What the answers to one prompt may consist of: thoughts if there is `reasoning`, calls of `tools` (names and
    JSON schemas) if there are `calls`.

    A mark that is a special token is one by its id only: the same characters as text are text. So decoders write SEAL
    in front of it, and readers look for it there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        reasoning: ReasoningFormat | None,
        calls: ToolFormat | None,
        tools: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self.tools = tools
        self.thinking = False  # whether the prompt has opened a thought
        marks = (*(reasoning.marks if reasoning is not None else ()), *(calls.marks if calls is not None else ()))
        self._special = {
            token: tokenizer.token_bytes(token).decode("utf-8", "replace")
            for mark in filter(None, marks)
            for token in tokenizer.encode(mark, add_special=False, parse_special=True)
            if tokenizer.is_special(token)
        }
        self._reasoning = None if reasoning is None else self._sealed(reasoning)
        self._calls = None if calls is None else self._sealed(calls)
        self._message = "assistant"  # what the prompt has of the first message on a channel
        self._begun = ""  # what it has of a call

    def look_at(self, prompt: Sequence[int]) -> None:
        """The prompt may have opened a thought already, or begun a message."""
        decoder = self.decoder()()
        tail = "".join(map(decoder.push, list(prompt)[-_TAIL:])) + decoder.finish()
        if (form := self._reasoning) is not None:
            self.thinking = tail.rstrip().endswith(form.open)
            if form.channels and (start := self._seal(CHANNEL_MARKS[0])) in tail:
                self._message = tail.rpartition(start)[2]
        if (calls := self._calls) is not None and calls.plain_name and tail.endswith(calls.call_open):
            self._begun = calls.call_open

    def reader(self) -> Reader:
        """Reads one answer."""
        if self._reasoning is not None and self._reasoning.channels:
            tools = self.tools if self._calls is not None else None
            sealed = self._reasoning.open.startswith(SEAL)
            return ChannelReader(tools, begun=self._message, sealed=sealed)
        return AnswerReader(self._reasoning, self._calls, self.tools, thinking=self.thinking, begun=self._begun)

    def decoder(self, skip_special: bool = True) -> Callable[[], Decoder]:
        """Makes a decoder that shows the special tokens that marks are made of, if no other."""
        tokenizer = self._tokenizer
        if not self._special:
            return lambda: tokenizer.detokenizer(skip_special=skip_special)
        hidden = tokenizer.is_special if skip_special else lambda _: False
        return lambda: _MarksShown(tokenizer.detokenizer(skip_special=False), hidden, self._special)

    def _sealed(self, form: Format) -> Format:
        """The format whose marks have SEAL before each special token."""
        changes: dict[str, Any] = {}
        for field in fields(form):
            value = getattr(form, field.name)
            if isinstance(value, str):
                changes[field.name] = self._seal(value)
            elif isinstance(value, tuple):
                changes[field.name] = tuple(map(self._seal, value))
        return replace(form, **changes)

    def _seal(self, mark: str) -> str:
        texts = sorted(self._special.values(), key=len, reverse=True)
        return re.sub("|".join(map(re.escape, texts)), lambda match: SEAL + match[0], mark) if texts else mark


class _MarksShown:
    """A decoder that passes over hidden tokens, but for those that are `shown`, with SEAL in front."""

    def __init__(self, inner: Decoder, is_hidden: Callable[[int], bool], shown: Mapping[int, str]) -> None:
        self._inner = inner
        self._is_hidden = is_hidden
        self._shown = shown

    def push(self, token: int) -> str:
        if (mark := self._shown.get(token)) is not None:
            text = self._inner.push(token)  # of an incomplete character before it, something may be left
            return text.removesuffix(mark) + SEAL + mark
        return "" if self._is_hidden(token) else self._inner.push(token).replace(SEAL, "\ufffd")

    def finish(self) -> str:
        return self._inner.finish()


def new_call_id() -> str:
    """Unique, and of the letters and digits that every template takes (Mistral's want nine of them)."""
    return secrets.token_hex(5)[:9]
