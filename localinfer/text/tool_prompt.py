"""Tools and earlier calls for chat templates that cannot show them, or not all of them, by themselves.

What is written here for a template is what the model's makers document. The marks in it count as the template's own,
names and arguments do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localinfer.text.prompt_marks import Composed
from localinfer.text.tool_format import SYSTEM_FIELD, SYSTEM_TEXT, ToolFormat

Message = Mapping[str, Any]
Parts = list[tuple[str, bool]]


def with_tools(
    form: ToolFormat, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Message], dict[str, Any]]:
    """The messages, and the variables that show the tools, as this model's template needs them."""
    made = [each for message in _single(form, messages) for each in [_with_calls(form, message)]]
    if not tools:
        return made, {}
    functions = [tool.get("function", tool) for tool in tools]
    if form.shown_as == SYSTEM_FIELD:
        return _with_system(made, lambda message: {**message, "tools": json.dumps(functions, ensure_ascii=False)}), {}
    if form.shown_as == SYSTEM_TEXT:
        return _with_system(made, lambda message: {**message, "content": _listed(form, message, functions)}), {}
    return made, {form.shown_as: list(tools)}


def _with_system(messages: list[Message], change: Any) -> list[Message]:
    first = messages[0] if messages and messages[0].get("role") == "system" else None
    rest = messages if first is None else messages[1:]
    return [change(first or {"role": "system", "content": ""}), *rest]


def _listed(form: ToolFormat, message: Message, functions: Sequence[Mapping[str, Any]]) -> Composed:
    """The text of a system message and the tools, in the words of DeepSeek V3.1's model card."""
    said = _text(message)
    parts: Parts = [(said, False), ("\n\n", True)] if said else []
    parts.append(("## Tools\nYou have access to the following tools:\n", True))
    for function in functions:
        parts += [("\n### ", True), (str(function.get("name", "")), False)]
        parts += [("\nDescription: ", True), (str(function.get("description") or ""), False)]
        parameters = json.dumps(function.get("parameters") or {}, ensure_ascii=False)
        parts += [("\n\nParameters: ", True), (parameters, False), ("\n", True)]
    call = f"{form.call_open}tool_call_name{form.name_close}tool_call_arguments{form.call_close}"
    parts.append(
        (
            "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
            f"{form.open}{call}{{additional_tool_calls}}{form.close}\n\n"
            "Where:\n"
            "- `tool_call_name` must be an exact match to one of the available tools\n"
            "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
            "- For multiple tool calls, chain them directly without separators or spaces\n",
            True,
        )
    )
    return Composed.of(parts)


def _single(form: ToolFormat, messages: Sequence[Message]) -> list[Message]:
    """Several calls in one answer as several answers, each followed by its result, for templates that take one only."""
    if form.parallel:
        return list(messages)
    made: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        calls = _calls(message)
        index += 1
        if len(calls) < 2:
            made.append(message)
            continue
        results = []
        while index < len(messages) and messages[index].get("role") == "tool":
            results.append(messages[index])
            index += 1
        for number, call in enumerate(calls):
            bare = {"role": "assistant", "content": ""}
            made.append({**(message if number == 0 else bare), "tool_calls": [call]})
            found = next((each for each in results if each.get("tool_call_id") == call.get("id")), None)
            if found is None and results:  # without ids, in their order
                found = results[0] if results[0].get("tool_call_id") is None else None
            if found is not None:
                results.remove(found)
                made.append(found)
        made += results
    return made


def _with_calls(form: ToolFormat, message: Message) -> Message:
    calls = _calls(message)
    if not calls:
        return message
    if form.channels:
        return _with_preamble(message)
    if form.shows_calls:
        return message
    written = _written(form, calls)
    if written is None:
        return message
    said = _text(message)
    parts = [*([(said, False)] if said else []), *written]
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": Composed.of(parts)}


def _with_preamble(message: Message) -> Message:
    """gpt-oss's template takes a thought or a text beside a call: both are written as its two messages."""
    thought = next((message[key] for key in ("reasoning_content", "thinking", "reasoning") if message.get(key)), None)
    said = _text(message)
    if not said or not isinstance(thought, str):
        return message
    between = "<|end|><|start|>assistant<|channel|>commentary<|message|>"
    both = Composed.of([(thought, False), (between, True), (said, False)])
    kept = {key: value for key, value in message.items() if key not in ("reasoning_content", "reasoning")}
    return {**kept, "content": "", "thinking": both}


def _written(form: ToolFormat, calls: Sequence[Mapping[str, Any]]) -> Parts | None:
    """Calls in a format; None for those of which templates are known to write them."""
    if form.style not in ("object", "python"):
        return None
    opened, closed = (form.open + "[", "]" + form.close) if form.listed else (form.open, form.close)
    between = ", " if form.listed else form.between
    parts: Parts = []
    for call in calls:
        function = call.get("function", call)
        name, arguments = str(function.get("name", "")), _object(function.get("arguments"))
        if form.style == "python":
            written = ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())
            middle: Parts = [(f"{name}({written})", False)]
        else:
            middle = [(form.object_open, True), (json.dumps(name), False), (form.object_middle, True)]
            middle += [(json.dumps(arguments, ensure_ascii=False), False), (form.object_close, True)]
        parts += [(between if parts else opened, True), (form.call_open, True), *middle, (form.call_close, True)]
    return [(text, ours) for text, ours in [*parts, (closed, True)] if text]


def _calls(message: Message) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _text(message: Message) -> str:
    """Its content as one text."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {}


def _literal(value: Any) -> str:
    """A value as Python has it, texts in double quotes."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(str(key))}: {_literal(each)}' for key, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
