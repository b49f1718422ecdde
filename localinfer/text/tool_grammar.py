"""Calls of tools: the grammar that binds them, in the format of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from localinfer.errors import UnsupportedError
from localinfer.text.argument_grammar import ArgumentGrammar, json_rule
from localinfer.text.constraint import CallBounds
from localinfer.text.grammar import Grammar
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
    if form.plain_name:
        raise UnsupportedError("this model announces text as it announces calls, so that calls cannot be bound")
    grammar = _CallGrammar(form, Literals(tokenizer)).of(tools, several=several and form.parallel)
    return CallBounds(form.trigger, grammar, last=forced or not several, forced=forced, also=form.also_open)


class _CallGrammar:
    """Writes grammars for one format."""

    def __init__(self, form: ToolFormat, literal: Literals) -> None:
        self._form = form
        self._literal = literal
        self._arguments = ArgumentGrammar(form, literal, self._marks)

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
            lines.append(f"call_{i}: {self._call(name, schema, lines)}")
        return Grammar("lark", "\n".join(filter(None, [*lines, *self._arguments.lines])))

    def _call(self, name: str, schema: Any, lines: list[str]) -> str:
        form = self._form
        if form.style in ("object", "keyed"):
            before = f"{form.call_open}{form.object_open}{json.dumps(name)}{form.object_middle}"
            after = form.object_close + form.call_close
        elif form.style == "split":
            before, after = f"{form.call_open}{name}{form.name_close}", form.call_close
        else:
            return self._arguments.call(name, schema)
        arguments = f"arguments_{len(lines)}"
        lines.append(f"{arguments}: %json {json_rule(_of_object(schema))}")
        return f"{self._marks(before)} {arguments} {self._marks(after)}"

    def _marks(self, text: str) -> str:
        """A mark, in which there may be ids and numbers."""
        parts = re.split(r"(\{id\}|\{number\})", text)
        return " ".join({"{id}": _ID, "{number}": _NUMBER}.get(part) or self._literal(part) for part in parts)


def _of_object(schema: Any) -> Any:
    """The schema of arguments, which are an object whatever it says."""
    return {"type": "object", **schema} if isinstance(schema, dict) and schema else _NO_PARAMETERS
