"""A conversation: what was said, as the chat template takes it, and its file."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localinfer.errors import FormatError, LocalInferError

_ROLES = ("system", "user", "assistant", "tool")
_TITLE_LENGTH = 60
Message = dict[str, Any]


@dataclass
class Conversation:
    """`messages` are {"role": "user", "assistant" or "tool", "content": text}; `system` comes before them.

    An answer also has the "tokens" that were drawn (`Completion.message`), so that no turn computes it again, where
    they are those of its content; its "reasoning_content" if the model thought, and its "tool_calls" if it called any.

    A turn is a message of the person and all that follows to the next. `versions` are what the last turn has been, if
    it was asked again or edited, and `version` says which of them it is now.
    """

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    versions: list[list[Message]] = field(default_factory=list)
    version: int = 0

    @property
    def title(self) -> str:
        """How the first message begins."""
        first = next((m["content"] for m in self.messages if m["role"] == "user"), "")
        line = " ".join(first.split())
        return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"

    @property
    def last_turn(self) -> list[Message]:
        """Empty if nobody has said anything."""
        return self.messages[self._last_turn_begins :]

    @property
    def _last_turn_begins(self) -> int:
        places = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        return places[-1] if places else len(self.messages)

    def begin_turn(self, message: Message) -> None:
        """The person says something."""
        self.versions, self.version = [], 0
        self.messages.append(message)

    def begin_version(self, message: Message) -> None:
        """The last turn begins anew, with that message of the person; what it was stays among the versions."""
        self._keep_version()
        self.versions.append([])
        self.version = len(self.versions) - 1
        self.messages[self._last_turn_begins :] = [message]

    def take_version(self, number: int) -> None:
        """The last turn is that one of its versions again."""
        self._keep_version()
        self.version = number
        self.messages[self._last_turn_begins :] = self.versions[number]

    def drop_turn(self) -> list[Message]:
        """Takes the last turn away."""
        turn = self.last_turn
        del self.messages[self._last_turn_begins :]
        self.versions, self.version = [], 0
        return turn

    def _keep_version(self) -> None:
        if not self.versions:
            self.versions = [[]]
        self.versions[self.version] = self.last_turn

    def with_system(self) -> list[dict[str, Any]]:
        """All messages, the system message first if there is one."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.messages

    def save(self, path: Path, model: str, *, overwrite: bool = False) -> None:
        """Writes the file whole or not at all, readable by its owner only.

        Without `overwrite`, only a file is replaced that holds the beginning of this conversation, so that nothing is
        lost, and the folder must be there; LocalInferError says which it is.
        """
        head = {"title": self.title, "model": model}
        lines = ",\n".join(json.dumps(message, ensure_ascii=False) for message in self.with_system())
        content = f'{json.dumps(head, ensure_ascii=False)[:-1]}, "messages": [\n{lines}\n]'
        if self.versions:
            self._keep_version()
            tail = {"versions": self.versions, "version": self.version}
            content += ",\n" + json.dumps(tail, ensure_ascii=False)[1:-1]
        content += "}"
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
        raise LocalInferError(f"there is no file {path}", "/list shows what can be resumed without one") from error
    except OSError as error:
        raise LocalInferError(f"{path} cannot be read: {error.strerror}", "name a file that was saved") from error
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or nested deeper than any conversation
        raise _no_conversation(path, "it is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("messages"), list):
        raise _no_conversation(path, "it has no list of messages")
    messages = [_message(path, f"message {number}", item) for number, item in enumerate(content["messages"], 1)]
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    found = Conversation(system, messages)
    versions, version = content.get("versions"), content.get("version")
    if isinstance(versions, list) and type(version) is int and 0 <= version < len(versions):
        whole = all(isinstance(turn, list) for turn in versions)
        found.versions = [[_message(path, "a version", item) for item in turn] for turn in versions] if whole else []
        found.version = version if whole else 0
    return found


def _message(path: Path, name: str, item: Any) -> Message:
    if not isinstance(item, dict):
        raise _no_conversation(path, f"{name} is no object")
    role, content, tokens = item.get("role"), item.get("content"), item.get("tokens")
    if role not in _ROLES:
        raise _no_conversation(path, f"the role of {name} is not one of {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise _no_conversation(path, f"{name} has no text as its content")
    found: Message = {"role": role, "content": content}
    for key in ("reasoning_content", "name", "tool_call_id"):
        if isinstance(item.get(key), str):
            found[key] = item[key]
    if item.get("tool_calls") is not None:
        if not all(map(_is_call, item["tool_calls"] if isinstance(item["tool_calls"], list) else [None])):
            raise _no_conversation(path, f"the calls of {name} are no list of calls")
        found["tool_calls"] = item["tool_calls"]
    if tokens is not None:
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise _no_conversation(path, f"the tokens of {name} are no list of whole numbers")
        found["tokens"] = tokens
    return found


def _is_call(item: Any) -> bool:
    function = item.get("function") if isinstance(item, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


def _no_conversation(path: Path, why: str) -> FormatError:
    form = '{"messages": [{"role": "user", "content": "Hello"}, ...]}'
    return FormatError(
        f"{path} is no saved conversation: {why}", f"name a file that /save has written, or one of this form: {form}"
    )
