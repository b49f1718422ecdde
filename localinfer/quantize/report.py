"""Who is told about work that takes long."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    def say(self, text: str) -> None:
        """One line that a person should see."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes, or predictions, of `what`; called often."""
        ...
