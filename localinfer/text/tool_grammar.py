"""Calls of tools: the grammar that binds them, in the format of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from localinfer.errors import UnsupportedError
from localinfer.text.constraint import CallBounds
from localinfer.text.grammar import WHITESPACE, Grammar
from localinfer.text.literals import ANY_TOKENS, Literals
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import ToolFormat

_ID = "/[a-zA-Z0-9]{9}/"
_NUMBER = "/[0-9]/"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}  # as OpenAI reads none


def call_bounds(
    form: ToolFormat, tools: Mapping[str, Any], tokenizer: Tokenizer, *, several: bool, forced: bool
) -> CallBounds:
    """What binds an answer's calls of `tools` (names and JSON schemas): one of them, or `several`.

    `forced`: the answer is nothing else. UnsupportedError names what of a schema cannot be written in this format.
    """
    grammar = _CallGrammar(form, Literals(tokenizer)).of(tools, several=several and form.parallel)
    return CallBounds(form.trigger, grammar, last=forced or not several, forced=forced)


class _CallGrammar:
    """Writes grammars for one format."""

    def __init__(self, form: ToolFormat, literal: Literals) -> None:
        self._form = form
        self._literal = literal

    def of(self, tools: Mapping[str, Any], *, several: bool) -> Grammar:
        form, literal = self._form, self._literal
        opened, closed = (form.open + "[", "]" + form.close) if form.listed else (form.open, form.close)
        between = ", " if form.listed else form.between
        more = f"({literal(between)} call)*" if several else ""
        lines = [
            ANY_TOKENS,
            f"start: {literal(opened)} call {more} {literal(closed)}",
            f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}",
        ]
        for i, (name, schema) in enumerate(tools.items()):
            lines += [f"call_{i}: {self._call(name, f'arguments_{i}')}", f"arguments_{i}: {self._arguments(schema)}"]
        return Grammar("lark", "\n".join(lines))

    def _call(self, name: str, arguments: str) -> str:
        form = self._form
        if form.style in ("object", "keyed"):
            before = f"{form.call_open}{form.object_open}{json.dumps(name)}{form.object_middle}"
            after = form.object_close + form.call_close
        elif form.style == "split":
            before, after = f"{form.call_open}{name}{form.name_close}", form.call_close
        else:
            raise UnsupportedError("this model writes the arguments of a call in a form that is not JSON")
        return f"{self._marks(before)} {arguments} {self._marks(after)}"

    def _marks(self, text: str) -> str:
        """A mark, in which there may be ids and numbers."""
        parts = re.split(r"(\{id\}|\{number\})", text)
        return " ".join({"{id}": _ID, "{number}": _NUMBER}.get(part) or self._literal(part) for part in parts)

    def _arguments(self, schema: Any) -> str:
        return f"%json {_schema(schema)}"


def _schema(schema: Any) -> str:
    """As Lark has it, with llguidance's own key for what it should take for white space."""
    given = schema if isinstance(schema, dict) and schema else _NO_PARAMETERS
    return json.dumps({**given, "x-guidance": {"whitespace_pattern": WHITESPACE}})
