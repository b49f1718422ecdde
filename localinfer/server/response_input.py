"""What a request to /v1/responses brings: items and tools, as chat templates know them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from localinfer.server.errors import invalid
from localinfer.server.schemas.chat import NamedFunction, NamedTool, Tool
from localinfer.text.answer_reader import Call

# Tools that OpenAI's servers run by themselves: clients send them along, and do without them.
_HOSTED = (
    "code_interpreter",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "web_search",
    "web_search_preview",
)
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class _Known(NamedTuple):
    """A tool behind the name that the model is shown."""

    name: str
    namespace: str
    custom: bool  # its input is a text


class Tools:
    """The tools of a request. ApiError 400 for what is no tool.

    schemas    as a chat completion has them; `shown` the same for the chat template
    choice     tool_choice in a chat completion's words
    left_out   kinds of tools that the model is not shown
    """

    def __init__(self, tools: Sequence[dict[str, Any]], choice: str | dict[str, Any] | None) -> None:
        self.schemas: list[Tool] = []
        self.shown: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self._known: dict[str, _Known] = {}
        for number, tool in enumerate(tools):
            self._add(tool, f"tools[{number}]", "")
        self.choice = self._choice(choice)

    def called(self, call: Call) -> dict[str, Any]:
        """The item of a call that the model makes."""
        known = self._known.get(call.name, _Known(call.name, "", False))
        item = {"call_id": f"call_{secrets.token_hex(12)}", "name": known.name, "status": "completed"}
        if known.namespace:
            item["namespace"] = known.namespace
        if known.custom:
            given = json.loads(call.arguments).get("input", "")
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            return {"id": f"ctc_{secrets.token_hex(12)}", "type": "custom_tool_call", **item, "input": text}
        return {"id": f"fc_{secrets.token_hex(12)}", "type": "function_call", **item, "arguments": call.arguments}

    def shown_name(self, name: str, namespace: str) -> str:
        """What the model knows a tool as."""
        return next((s for s, k in self._known.items() if (k.name, k.namespace) == (name, namespace)), name)

    def _add(self, tool: dict[str, Any], where: str, namespace: str) -> None:
        kind = tool.get("type")
        if kind == "namespace":
            inner = tool.get("tools")
            if not isinstance(inner, list) or not isinstance(tool.get("name"), str) or namespace:
                raise invalid(f"{where}: a namespace has a name and a list of tools", param=where)
            for number, each in enumerate(inner):
                if not isinstance(each, dict):
                    raise invalid(f"{where}.tools[{number}]: expected an object", param=where)
                self._add(each, f"{where}.tools[{number}]", tool["name"])
        elif kind in ("function", "custom"):
            name = tool.get("name")
            if not isinstance(name, str):
                raise invalid(f"{where}.name: it is missing", param=f"{where}.name")
            shown = f"{namespace}__{name}" if namespace else name
            parameters = _INPUT if kind == "custom" else tool.get("parameters") or {}
            function = {"name": shown, "description": tool.get("description") or "", "parameters": parameters}
            if tool.get("strict") is not None:
                function["strict"] = tool["strict"]
            whole = {"type": "function", "function": function}
            try:
                self.schemas.append(msgspec.convert(whole, Tool))
            except msgspec.ValidationError as error:
                raise invalid(f"{where}: {error}", param=where) from None
            self.shown.append(whole)
            self._known[shown] = _Known(name, namespace, kind == "custom")
        elif isinstance(kind, str) and kind.startswith(_HOSTED):
            self.left_out.append(kind)
        else:
            raise invalid(f"{where}: a tool of type {kind!r} is not known", param=where)

    def _choice(self, choice: str | dict[str, Any] | None) -> Any:
        if not isinstance(choice, dict):
            return choice
        name = choice.get("name")
        if choice.get("type") not in ("function", "custom") or not isinstance(name, str):
            raise invalid(f"tool_choice: of type {choice.get('type')!r} it is not supported", param="tool_choice")
        return NamedTool(function=NamedFunction(name=self.shown_name(name, choice.get("namespace") or "")))


def template_items(
    instructions: str | None, items: str | Sequence[dict[str, Any]], tools: Tools
) -> list[dict[str, Any]]:
    """The messages as chat templates know them: calls and thoughts belong to the answer that they stand beside.

    Instructions and the system's first messages become one, since many templates take only one, at the beginning.
    ApiError 400 for items that cannot be read.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for number, item in enumerate(items):
        _add_item(messages, item, f"input[{number}]", tools)
    return messages


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], where: str, tools: Tools) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
        if role not in ("system", "user", "assistant"):
            raise invalid(f"{where}.role: {item.get('role')!r} is not known", param=f"{where}.role")
        text = _text(item.get("content"), f"{where}.content")
        if role == "assistant":
            answer = _answer(messages)
            answer["content"] = "\n".join(filter(None, (answer["content"], text)))
        elif role == "system" and len(messages) == 1 and messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    elif kind == "reasoning":
        thought = _text(item.get("content") or item.get("summary") or [], f"{where}.content")
        if thought:
            _answer(messages)["reasoning_content"] = thought
    elif kind in ("function_call", "custom_tool_call"):
        name = tools.shown_name(str(item.get("name")), str(item.get("namespace") or ""))
        given: Any = item.get("arguments") if kind == "function_call" else {"input": item.get("input") or ""}
        call = {
            "id": str(item.get("call_id")),
            "type": "function",
            "function": {"name": name, "arguments": given or {}},
        }
        _answer(messages).setdefault("tool_calls", []).append(call)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        text = _text(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": str(item.get("call_id")), "content": text})
    else:
        raise invalid(f"{where}: an item of type {kind!r} cannot be read", param=where)


def _answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that is being put together: what the model did without anybody else between."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(f"{where}: expected a text, or a list of parts", param=where)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            raise invalid(f"{where}[{number}]: this model reads text only, not {kind}", param=where)
        texts.append(part["text"])
    return "\n".join(texts)
