"""What tests of answers share: tools, templates, and what a model would have written by its own template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from localinfer.engine.prompt import template_input
from localinfer.text.answer_reader import AnswerReader, Call, Piece, Reader, Said
from localinfer.text.channel_reader import ChannelReader
from localinfer.text.chat_template import ChatTemplate
from localinfer.text.format_probe import reasoning_format, tool_format
from localinfer.text.special_tokens import END_OF_ANSWER
from localinfer.text.tool_format import ReasoningFormat, ToolFormat
from published import TEMPLATES

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "array"}},
            "required": ["city"],
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get-time",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    },
}
TOOLS: dict[str, Any] = {each["function"]["name"]: each["function"]["parameters"] for each in (WEATHER, TIME)}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Hello?"}]
# Reasoning, content, calls.
Parts = tuple[str, str, list[tuple[str, Any]]]


@cache
def published(name: str) -> ChatTemplate:
    """A template as it was published with its model."""
    path = TEMPLATES / f"{name}.jinja"
    if not path.exists():
        pytest.skip("the published templates are not beside the checkout")
    return ChatTemplate(path.read_text(encoding="utf-8"), "<BOS>", "<EOS>")


def call(name: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    """A call as messages have it."""
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversation(source: ChatTemplate, *more: dict[str, Any], **variables: Any) -> str:
    """A conversation with tools, rendered as for the model; without a prompt for more if it ends with an answer."""
    messages = [*ASKED, *more]
    prompted = not more or more[-1]["role"] != "assistant"
    shown, given = template_input(lambda: formats(source)[1], messages, {"tools": [WEATHER, TIME], **variables})
    return source.render(shown, add_generation_prompt=prompted, **given)


def answer_text(source: ChatTemplate, **message: Any) -> str:
    """What a model would have written, by its own template: the turn, up to where it would have stopped."""
    prompt, whole = conversation(source), conversation(source, {"role": "assistant", **message})
    common = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    if common < len(prompt) and whole.rfind("<", 0, common) > whole.rfind(">", 0, common):  # they part in a tag
        common = whole.rfind("<", 0, common)
    return without_end(whole[common:])


def without_end(text: str) -> str:
    """An answer up to where the model would have stopped."""
    for end in (*END_OF_ANSWER, "<EOS>", "<|observation|>"):
        if end != "<|end|>" or "<|channel|>" not in text:  # there it ends a message only
            text = text.split(end)[0]
    return text


def reader_for(reasoning: ReasoningFormat | None, form: ToolFormat | None, **options: Any) -> Reader:
    """A reader of answers in the formats."""
    if reasoning is not None and reasoning.channels:
        return ChannelReader(TOOLS if form is not None else None, **options)
    return AnswerReader(reasoning, form, TOOLS, **options)


@cache
def formats(source: ChatTemplate) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """How its model writes thoughts and calls."""
    return reasoning_format(source), tool_format(source)


def reader_of(source: ChatTemplate, **options: Any) -> Reader:
    """A reader of answers by the template."""
    return reader_for(*formats(source), **options)


def read(reader: Reader, text: str, size: int) -> list[Piece]:
    """The pieces of an answer that comes so many characters at a time."""
    pieces: list[Piece] = []
    for begin in range(0, len(text), size):
        pieces += reader.push(text[begin : begin + size])
    return [*pieces, *reader.finish()]


def joined(pieces: Sequence[Piece]) -> Parts:
    """All that was thought, said and called."""
    said = {
        kind: "".join(piece.text for piece in pieces if isinstance(piece, Said) and piece.kind == kind)
        for kind in ("reasoning", "content")
    }
    calls = [(piece.name, json.loads(piece.arguments)) for piece in pieces if isinstance(piece, Call)]
    return said["reasoning"], said["content"], calls
