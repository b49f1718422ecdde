"""What an answer has to look like, in the words of OpenAI, vLLM and llama.cpp's server."""

from __future__ import annotations

from typing import Any

from localinfer.errors import LocalInferError
from localinfer.server.errors import invalid
from localinfer.server.schemas.sampling import SamplingFields
from localinfer.text.grammar import Grammar, choice, json_schema


def grammar_of(fields: SamplingFields) -> Grammar | None:
    """The grammar that was asked for, in whatever field. ApiError 400 for one that makes no sense, or for several."""
    found: dict[str, Grammar] = {}
    for name, value in _asked(fields).items():
        if value is None:
            continue
        try:
            grammar = _READERS[name.rpartition(".")[2]](value)
        except LocalInferError as error:
            raise invalid(f"{name}: {error.message}", param=name) from error
        if grammar is not None:
            found[name] = grammar
    if len(found) > 1:
        raise invalid(
            f"an answer can follow one grammar, but there are several: {', '.join(found)}", param=list(found)[1]
        )
    return next(iter(found.values()), None)


def grammar_field(fields: SamplingFields) -> str:
    """The field that asks for a grammar."""
    return next((name for name, value in _asked(fields).items() if value), "response_format")


_FIELDS = (
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
)


def _asked(fields: SamplingFields) -> dict[str, Any]:
    asked = {name: getattr(fields, name) for name in _FIELDS}
    if (more := fields.structured_outputs) is not None:
        asked |= {f"structured_outputs.{name}": getattr(more, name) for name in more.__struct_fields__}
    return asked


def _response_format(value: Any) -> Grammar | None:
    if value.type == "text":
        return None
    if value.type == "json_object":  # llama.cpp's server takes a schema beside it
        return Grammar("json_object") if value.schema is None else json_schema(value.schema)
    if value.json_schema is None or value.json_schema.schema is None:
        raise LocalInferError("json_schema.schema is missing")
    return json_schema(value.json_schema.schema)


def _schema(value: Any) -> Grammar:
    """A JSON schema as an object, or as the text of one."""
    return Grammar("json_schema", value) if isinstance(value, str) else json_schema(value)


def _text(kind: Any) -> Any:
    return lambda value: Grammar(kind, value) if value else None


_READERS = {
    "response_format": _response_format,
    "guided_json": _schema,
    "json": _schema,
    "json_schema": _schema,
    "guided_regex": _text("regex"),
    "regex": _text("regex"),
    "guided_choice": choice,
    "choice": choice,
    "guided_grammar": _text("gbnf"),
    "grammar": _text("gbnf"),
    "json_object": lambda value: Grammar("json_object") if value else None,
}
