"""From the messages of a request to those that the chat template gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from localinfer.server.errors import invalid
from localinfer.server.schemas.chat import ChatMessage, ContentPart

# What the template gets from the request itself.
_TAKEN = ("messages", "self", "tools")


class TemplateFields(Protocol):
    """A request that names variables of the chat template."""

    chat_template_kwargs: dict[str, Any] | None
    add_generation_prompt: bool | None


def template_variables(fields: TemplateFields) -> dict[str, Any]:
    """What the chat template knows beside the messages. ApiError for names that it has already."""
    variables = dict(fields.chat_template_kwargs or {})
    for name in _TAKEN:
        if name in variables:
            raise invalid(f"chat_template_kwargs: {name} cannot be given there", param=f"chat_template_kwargs.{name}")
    if fields.add_generation_prompt is not None:
        variables["add_generation_prompt"] = fields.add_generation_prompt
    return variables


def template_messages(messages: Sequence[ChatMessage], raw: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`raw` are the same messages as they came: their further keys reach the template. ApiError for what is no text."""
    return [_message(index, message, given) for index, (message, given) in enumerate(zip(messages, raw, strict=True))]


def _message(index: int, message: ChatMessage, raw: dict[str, Any]) -> dict[str, Any]:
    found = {**raw, "role": "system" if message.role == "developer" else message.role}
    if message.content is None and message.role in ("system", "developer", "user"):
        raise invalid(f"messages[{index}].content: it is missing", param=f"messages[{index}].content")
    if message.content is None:
        found["content"] = ""
    if isinstance(message.content, list):
        found["content"] = "\n".join(_texts(f"messages[{index}].content", message.content))
    return found


def _texts(name: str, parts: Sequence[ContentPart]) -> list[str]:
    texts = []
    for index, part in enumerate(parts):
        if part.type != "text":
            raise invalid(f"{name}[{index}]: this model reads text only, not {part.type}", param=f"{name}[{index}]")
        if part.text is None:
            raise invalid(f"{name}[{index}]: a part of type text needs a text", param=f"{name}[{index}].text")
        texts.append(part.text)
    return texts
