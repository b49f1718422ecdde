"""Calls that must be made: the grammar of an answer that calls tools, in the format of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localinfer.errors import UnsupportedError
from localinfer.text.grammar import WHITESPACE, Grammar
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import ReasoningFormat, ToolFormat

_ID = "/[a-zA-Z0-9]{9}/"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}  # as OpenAI reads none
_NUMBER = "/[0-9]/"


def call_grammar(
    form: ToolFormat,
    tools: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    several: bool,
    thinking: ReasoningFormat | None = None,
) -> Grammar:
    """The grammar of an answer that is one call of one of `tools` (names and JSON schemas), or `several`.

    With `thinking` the prompt has opened a thought, which comes first. UnsupportedError for formats whose arguments are
    no JSON object.
    """
    if form.style not in ("object", "split"):
        raise UnsupportedError(
            "this model writes the arguments of a call in a form that is not JSON, so that calls cannot be forced",
            'use tool_choice "auto"',
        )
    literal = _Literals(tokenizer)
    lines = ["%llguidance {}"]
    opened, closed = (form.open + "[", "]" + form.close) if form.listed else (form.open, form.close)
    between = ", " if form.listed else form.between
    more = f"({literal(between)} call)*" if several and form.parallel else ""
    first = "thought" if thinking is not None else ""
    lines.append(f"start: {first} {literal(opened)} call {more} {literal(closed)}")
    if thinking is not None:
        lazy = "" if literal.special(thinking.close) else "[lazy]"
        lines.append(f"thought{lazy}: /(.|\\n)*/ {literal(thinking.close)}")
    lines.append(f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}")
    for i, (name, schema) in enumerate(tools.items()):
        lines += [
            f"call_{i}: {_call(form, literal, name, f'arguments_{i}')}",
            f"arguments_{i}: %json {_schema(schema)}",
        ]
    return Grammar("lark", "\n".join(lines))


def _call(form: ToolFormat, literal: _Literals, name: str, arguments: str) -> str:
    if form.style == "object":
        before = f'{form.call_open}{{"name": {json.dumps(name)}, "{form.arguments_key}": '
        return f"{literal(before)} {arguments} {literal('}' + form.call_close)}"
    parts = [literal(form.call_open + name)]
    for text in form.name_close.replace("{id}", "\0{id}\0").replace("{number}", "\0{number}\0").split("\0"):
        parts.append({"{id}": _ID, "{number}": _NUMBER}.get(text) or literal(text))
    return " ".join([*filter(None, parts), arguments, literal(form.call_close)])


def _schema(schema: Any) -> str:
    """As Lark has it, with llguidance's own key for what it should take for white space."""
    given = schema if isinstance(schema, dict) and schema else _NO_PARAMETERS
    return json.dumps({**given, "x-guidance": {"whitespace_pattern": WHITESPACE}})


class _Literals:
    """Texts as Lark has them, special tokens by their ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def special(self, text: str) -> bool:
        """Whether the whole text is one special token."""
        token = self._tokenizer.token_id(text)
        return token is not None and self._tokenizer.is_special(token)

    def __call__(self, text: str) -> str:
        if not text:
            return ""
        found: list[str] = []
        plain: list[int] = []
        for token in self._tokenizer.encode(text, add_special=False, parse_special=True):
            if self._tokenizer.is_special(token):
                found += [self._quoted(plain), f"<[{token}]>"]
                plain = []
            else:
                plain.append(token)
        if not any(part.startswith("<[") for part in found):
            return json.dumps(text)  # as it is: decoding might lose a space in front
        found.append(self._quoted(plain))
        return " ".join(filter(None, found))

    def _quoted(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode(tokens, strip_prefix=False) if tokens else ""
        return json.dumps(text) if text else ""
