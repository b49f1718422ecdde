"""How long work tells what it is doing; the command line shows it on standard error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    def say(self, text: str) -> None:
        """One line that a person should see."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `what`; called often."""
        ...


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass


def in_words(count: int) -> str:
    """Bytes for people: 4.9 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def largest_file(folder: Path) -> int:
    """Bytes of the largest file below a folder: how far a download is that does not say it."""
    largest = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(path, name)).st_size)
            except FileNotFoundError:  # whoever downloads removes its own files
                continue
    return largest
