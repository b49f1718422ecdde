"""A conversation: what was said, as the chat template takes it, and its file."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localinfer.errors import FormatError, LocalInferError
from localinfer.hub.folders import config_folder

_ROLES = ("system", "user", "assistant")


@dataclass
class Conversation:
    """`messages` are {"role": "user" or "assistant", "content": text}, in turns; `system` comes before them.

    An answer also has the "tokens" that were drawn (`Completion.message`), so that no turn computes it again.
    """

    system: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def with_system(self) -> list[dict[str, Any]]:
        """All messages, the system message first if there is one."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.messages

    def save(self, path: Path, model: str, *, overwrite: bool = False) -> None:
        """Writes the file whole or not at all, readable by its owner only.

        Without `overwrite`, a file that exists and is no saved conversation is left alone: LocalInferError.
        """
        if path.exists() and not overwrite:
            try:
                load(path)
            except FormatError as error:
                raise LocalInferError(f"{path} exists and is no saved conversation", "choose another name") from error
        lines = ",\n".join(json.dumps(message, ensure_ascii=False) for message in self.with_system())
        content = f'{{"model": {json.dumps(model, ensure_ascii=False)}, "messages": [\n{lines}\n]}}'
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(content + "\n")
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise LocalInferError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> Conversation:
    """Reads a saved conversation. FormatError if the file is none, LocalInferError if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        messages = [_message(item) for item in content["messages"]]
    except OSError as error:
        raise LocalInferError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{path} is no saved conversation: {error}", 'it should hold {"messages": [{"role": ..., "content": ...}]}'
        ) from error
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    return Conversation(system, messages)


def last_path() -> Path:
    """Where every chat keeps its conversation as it goes; `/load last` reads it."""
    return config_folder() / "last-conversation.json"


def _message(item: Any) -> dict[str, Any]:
    role, content, tokens = item["role"], item["content"], item.get("tokens")
    if role not in _ROLES or not isinstance(content, str):
        raise ValueError(f"a message has the role {role!r} and content of type {type(content).__name__}")
    message = {"role": role, "content": content}
    if tokens is None:
        return message
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ValueError("the tokens of a message are no list of whole numbers")
    return {**message, "tokens": tokens}
