"""Progress of long work on standard error: a bar on a terminal, lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

from localinfer.cli.output import harmless, note, size

LINE_SECONDS = 10.0


class TerminalReport:
    """A hub Report; use it in a `with` statement, so that its bar is gone afterwards."""

    def __init__(self) -> None:
        self._bar: Any = None  # rich.progress.Progress, made when it is first needed
        self._what, self._task = "", None
        self._start = self._last = 0.0  # of lines: when the first was written, and the last
        self._before = 0  # bytes that were there at the first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def say(self, text: str) -> None:
        self._close()
        note(text)

    def progress(self, what: str, done: int, total: int) -> None:
        new = what != self._what
        self._what = what
        if not sys.stderr.isatty():
            self._say_now_and_then(what, done, total, new)
            return
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if new or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            # What was there before counts for no speed.
            self._task = self._bar.add_task(harmless(what), total=total or None, completed=done)
        self._bar.update(self._task, completed=done, total=total or None)

    def _say_now_and_then(self, what: str, done: int, total: int, new: bool) -> None:
        now = time.monotonic()
        if new:
            note(f"{what} ({size(total)})" if total else what)
            self._start = self._last = now
            self._before = done
        elif now - self._last >= LINE_SECONDS:
            speed = (done - self._before) / (now - self._start)
            left = f", {(total - done) / speed:.0f} s left" if total > done and speed > 0 else ""
            note(f"{what}: {size(done)}{f' of {size(total)}' if total else ''}, {size(int(speed))}/s{left}")
            self._last = now

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task, self._what = None, None, ""


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
