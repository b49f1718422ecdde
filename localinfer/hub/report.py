"""How long work tells what it is doing; the command line shows it on standard error."""

from __future__ import annotations

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
