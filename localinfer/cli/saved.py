"""The conversations that chats at a terminal keep as they go: where they are, and which one is meant."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.hub.folders import config_folder, conversations_folder


@dataclass(frozen=True)
class Saved:
    """A conversation in the folder, or the one of the last chat at a pipe. `changed` is seconds since 1970."""

    path: Path
    title: str
    model: str
    changed: float

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def when(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.changed))


def piped_path() -> Path:
    """Where chats that are not at a terminal keep their conversation, one after another."""
    return config_folder() / "last-conversation.json"


def new_path() -> Path:
    """A name for a conversation that begins now."""
    stem = time.strftime("%Y%m%d-%H%M%S")
    folder = conversations_folder()
    taken = {path.stem for path in folder.glob(f"{stem}*.json")}
    names = [stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 3))]
    return folder / f"{next(name for name in names if name not in taken)}.json"


def saved_conversations() -> list[Saved]:
    """All in the folder, the last changed first. Files that are none are left out."""
    found = []
    for path in conversations_folder().glob("*.json"):
        try:
            with open(path, encoding="utf-8") as file:
                head = json.loads(file.readline().rstrip() + "]}")
            found.append(Saved(path, str(head["title"]), str(head["model"]), path.stat().st_mtime))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda each: (each.changed, each.name), reverse=True)


def last_path() -> Path:
    """Where the conversation is that was changed last."""
    paths = [*(each.path for each in saved_conversations()[:1]), piped_path()]
    there = [path for path in paths if path.exists()]
    return max(there, key=lambda path: path.stat().st_mtime) if there else piped_path()


def meant(text: str) -> Saved:
    """The conversation with that number in the list, that name, or that text in its title; "" is the last."""
    every = saved_conversations()
    if not every:
        raise LocalInferError("no conversation has been kept yet", "chats at a terminal keep theirs as they go")
    if not text or text == "last":
        return every[0]
    for each in every:
        if text == each.name:
            return each
    if text.isdecimal() and 1 <= int(text) <= len(every):
        return every[int(text) - 1]
    found = [each for each in every if text.casefold() in each.title.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise LocalInferError(f"{len(found)} conversations have {text} in their titles", "/list shows their numbers")
    raise LocalInferError(f"there is no conversation {text}", "/list shows all, with numbers")
