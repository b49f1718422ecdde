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

        Without `overwrite`, only a file is replaced that holds the beginning of this conversation, so that nothing is
        lost, and the folder must be there; LocalInferError says which it is.
        """
        lines = ",\n".join(json.dumps(message, ensure_ascii=False) for message in self.with_system())
        content = f'{{"model": {json.dumps(model, ensure_ascii=False)}, "messages": [\n{lines}\n]}}'
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            if overwrite:
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                self._check_replaces_nothing(path)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(content + "\n")
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise LocalInferError(f"{path} cannot be written: {error.strerror}", "choose another place") from error

    def _check_replaces_nothing(self, path: Path) -> None:
        if path.is_dir():
            raise LocalInferError(f"{path} is a folder", f"name a file in it: {path / 'talk.json'}")
        if not path.exists():
            if not path.parent.is_dir():
                raise LocalInferError(
                    f"there is no folder {path.parent}", "make it first (mkdir -p), or choose another place"
                )
            return
        try:
            there = load(path).with_system()
        except LocalInferError as error:
            raise LocalInferError(
                f"{path} exists and is no saved conversation", "choose another name, or remove that file first"
            ) from error
        if there != self.with_system()[: len(there)]:
            raise LocalInferError(
                f"{path} holds another conversation", "choose another name, or remove that file first"
            )


def load(path: Path) -> Conversation:
    """Reads a saved conversation. FormatError if the file is none, LocalInferError if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LocalInferError(f"there is no file {path}", "/load last is where the last chat ended") from error
    except OSError as error:
        raise LocalInferError(f"{path} cannot be read: {error.strerror}", "name a file that was saved") from error
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or nested deeper than any conversation
        raise _no_conversation(path, "it is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("messages"), list):
        raise _no_conversation(path, "it has no list of messages")
    messages = [_message(path, number, item) for number, item in enumerate(content["messages"], 1)]
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    return Conversation(system, messages)


def last_path() -> Path:
    """Where every chat keeps its conversation as it goes; `/load last` reads it."""
    return config_folder() / "last-conversation.json"


def _message(path: Path, number: int, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _no_conversation(path, f"message {number} is no object")
    role, content, tokens = item.get("role"), item.get("content"), item.get("tokens")
    if role not in _ROLES:
        raise _no_conversation(path, f"the role of message {number} is not one of {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise _no_conversation(path, f"message {number} has no text as its content")
    if tokens is None:
        return {"role": role, "content": content}
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise _no_conversation(path, f"the tokens of message {number} are no list of whole numbers")
    return {"role": role, "content": content, "tokens": tokens}


def _no_conversation(path: Path, why: str) -> FormatError:
    form = '{"messages": [{"role": "user", "content": "Hello"}, ...]}'
    return FormatError(
        f"{path} is no saved conversation: {why}", f"name a file that /save has written, or one of this form: {form}"
    )
