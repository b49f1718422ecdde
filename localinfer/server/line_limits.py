"""Limits of an answer that are about lines: those that editors set, who insert it between lines that are there."""

from __future__ import annotations

import time
from collections.abc import Callable

_SPACE = " \t"


class LineLimits:
    """Passes the text of one answer on as it comes, until it is `over`.

    It ends before a line, other than its first, that is indented by fewer than `indent` characters (0: no such limit);
    lines without anything do not count. And it ends with the first line that ends more than `seconds` after the answer
    began (0: no such limit).
    """

    def __init__(self, indent: int, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.over = False
        self._indent = indent
        self._seconds = seconds
        self._clock = clock
        self._began: float | None = None
        self._held: str | None = None  # the beginning of a line, until it is clear how far it is indented

    def push(self, text: str) -> str:
        """What is to be shown of the answer now."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        too_late = 0 < self._seconds < now - self._began
        shown: list[str] = []
        for character in text:
            if character == "\n":
                if too_late:
                    self.over = True
                    break
                self._held = (self._held or "") + character
            elif self._held is None:
                shown.append(character)
            elif character in _SPACE:
                self._held += character
            elif len(self._held) - 1 - self._held.rindex("\n") < self._indent:
                self.over = True
                break
            else:
                shown += (self._held, character)
                self._held = None
        if self._held is not None and self._indent == 0:
            shown.append(self._held)
            self._held = None
        return "".join(shown)

    def finish(self) -> str:
        """What was held back when the answer ended by itself."""
        held, self._held = self._held or "", None
        return "" if self.over else held
