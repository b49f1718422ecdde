"""How an answer is shown: at a terminal drawn as markdown or plain, its thought apart; to a pipe as it is."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from localinfer.cli.inline import DIM
from localinfer.cli.markdown_stream import MarkdownStream
from localinfer.cli.output import Answer, harmless, styled, terminal_size
from localinfer.cli.wrap import Cell, Sheet, begin_of_last_word, cells

_MARK = "┆ "  # in front of the lines of a thought


class AnswerView:
    """Shows one answer on standard output; what is said about its thought goes to standard error.

    `thoughts` are shown, or told in one line.
    """

    def __init__(self, *, markdown: bool, thoughts: bool, raw: bool) -> None:
        """`raw`: it comes as the model wrote it, and is not told apart."""
        self.raw = raw
        self._thoughts = thoughts
        columns, _ = terminal_size(sys.stdout)
        self._markdown = MarkdownStream() if markdown and columns and styled(sys.stdout) else None
        self._plain = Answer()
        self._thought: _Thought | None = None
        self._tokens = 0

    def said(self, text: str) -> None:
        self._end_thought()
        if not text:
            return
        if self._markdown is None:
            self._plain.write(text)
        else:
            self._write(self._markdown.feed(harmless(text), *terminal_size(sys.stdout)))

    def thought(self, text: str, tokens: int) -> None:
        self._tokens = tokens
        if not sys.stdout.isatty():
            return
        if self._thought is None:
            self._thought = _Thought()
        if self._thoughts:
            self._write(self._thought.feed(harmless(text), terminal_size(sys.stdout)[0]))
        elif sys.stderr.isatty():
            self._status(f"thinking: {tokens} tokens")

    def over(self) -> None:
        """The answer has ended; the cursor is behind it."""
        self._end_thought()
        if self._markdown is not None:
            self._write(self._markdown.finish())

    def _end_thought(self) -> None:
        if self._thought is None:
            return
        self._thought = None
        words = f"thought for {self._tokens} token{'' if self._tokens == 1 else 's'}"
        if self._thoughts:
            self._write("\n")
        self._status(f"{_MARK}{words}", end="\n")

    def _status(self, text: str, end: str = "") -> None:
        if sys.stderr.isatty():
            dim = f"\x1b[2m{text}\x1b[0m" if styled(sys.stderr) else text
            erase = "\x1b[K" if os.environ.get("TERM") != "dumb" else ""
            sys.stderr.write(f"\r{dim}{erase}{end}")
            sys.stderr.flush()

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class Silent:
    """Shows nothing."""

    raw = False

    def said(self, text: str) -> None: ...

    def thought(self, text: str, tokens: int) -> None: ...

    def over(self) -> None: ...


class _Thought:
    """Draws a thought: dim, with a mark in front of each line."""

    def __init__(self) -> None:
        self._sheet = Sheet()
        self._mark = cells(_MARK, DIM if styled(sys.stdout) else "")
        self._sheet.indent = self._mark
        self._line = False  # whether one has begun

    def feed(self, text: str, columns: int) -> str:
        if columns < 2:
            return text
        sheet = self._sheet
        sheet.fit(columns)
        tail = list(sheet.tail)
        style = self._mark[0].style
        for character in text:
            tail += [] if self._line else self._mark
            tail.append(Cell(character, style))
            self._line = character != "\n"
        sheet.show(tail)
        sheet.settle(begin_of_last_word(tail))
        return sheet.taken()


@contextmanager
def no_echo() -> Iterator[None]:
    """Inside, a terminal does not show what is typed, which would mix with an answer; it is kept for who reads next."""
    try:
        import termios

        settings = termios.tcgetattr(sys.stdin.fileno())
    except (ImportError, OSError, ValueError, termios.error):  # no terminal
        yield
        return
    quiet = list(settings)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, settings)
