"""From the messages of a request to those that the chat template gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from localinfer.errors import LocalInferError
from localinfer.server.errors import invalid
from localinfer.server.schemas.chat import ChatMessage, ContentPart
from localinfer.text.chat_template import ChatTemplate

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


def alternating(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same words where system messages stand only at the beginning, as one, and users never twice in a row.

    What the system says later is said by the user: at its place, so that nothing before it is computed again.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "system" and has_late_system([*found, message]):
            role = "user"
        if found and role in ("system", "user") and found[-1]["role"] == role:
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append({**message, "role": role})
    return found


def has_late_system(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the system speaks behind anybody else."""
    roles = [message["role"] for message in messages]
    first = next((place for place, role in enumerate(roles) if role != "system"), len(roles))
    return "system" in roles[first:]


def shows_late_system(template: ChatTemplate) -> bool:
    """Whether the template writes what the system says behind somebody else: some refuse it, some leave it out."""
    late = "probe-late-system"
    talk = [{"role": "user", "content": "probe-question"}, {"role": "system", "content": late}]
    try:
        return late in template.render([*talk, {"role": "user", "content": "probe-question"}])
    except LocalInferError:
        return False


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
