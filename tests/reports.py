"""Who is told about work in tests."""

from __future__ import annotations


class Lines:
    """A report that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: list[tuple[str, int, int]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
