"""Reading messages from a terminal or a pipe.

A message is a line; a line that ends with a backslash goes on in the next; a block between triple quotes is one
message with all its lines. Text pasted into a terminal is one message too. From a pipe it is the same.
"""

import contextlib
import os
import select
import sys
from pathlib import Path
from typing import NamedTuple

from localinfer.cli.output import note
from localinfer.errors import LocalInferError

QUOTES = '"""'
HISTORY_LENGTH = 1000


class Message(NamedTuple):
    text: str
    quoted: bool  # it stood between triple quotes, so it is never a command


class LineCleared(Exception):
    """Ctrl-C threw away what had been typed."""


class MessageReader:
    """Reads messages from standard input, with line editing and a history where that is a terminal."""

    def __init__(self, history: Path, *, remember: bool = True) -> None:
        """`remember`: what is typed is added to the history."""
        self.interactive = sys.stdin.isatty()
        self._history = history
        self._remembers = remember
        self._pastes_split = False
        # Line editing needs both ends of the terminal; otherwise the prompt goes to standard error.
        self.editing = self.interactive and sys.stdout.isatty() and self._set_up_editing()

    def read(self) -> Message:
        """The next message. EOFError at the end of input; on Ctrl-C, LineCleared if something had been typed, else
        KeyboardInterrupt."""
        line = self._line("> ")
        quoted = line.lstrip().startswith(QUOTES)
        message = self._block(line.lstrip().removeprefix(QUOTES)) if quoted else self._continued(line)
        self._remember()
        if any(0xDC80 <= ord(character) <= 0xDCFF for character in message):
            raise LocalInferError("the message is not valid UTF-8", "iconv converts files of other encodings")
        return Message(message, quoted)

    def read_again(self, text: str) -> str:
        """A message of the person, which the line editor holds already. Ctrl-C and Ctrl-D leave it as it was."""
        import readline

        def insert() -> None:
            readline.set_startup_hook(None)  # the lines that follow begin empty
            readline.insert_text(text)

        readline.set_startup_hook(insert)
        try:
            changed = self._continued(self._line("> "))
        except (KeyboardInterrupt, LineCleared, EOFError):
            note("")
            return text
        finally:
            readline.set_startup_hook(None)
        self._remember()
        return changed

    def _block(self, line: str) -> str:
        lines = []
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            try:
                line = self._next_line()
            except EOFError:
                return "\n".join(lines).strip("\n")
        lines.append(line.rstrip().removesuffix(QUOTES))
        return "\n".join(lines).strip("\n")

    def _continued(self, line: str) -> str:
        lines = []
        while line.endswith("\\"):
            lines.append(line[:-1])
            try:
                line = self._next_line()
            except EOFError:
                line = ""
        return "\n".join([*lines, line])

    def _next_line(self) -> str:
        try:
            return self._line(". ")
        except KeyboardInterrupt:
            raise LineCleared from None

    def _line(self, prompt: str) -> str:
        if not self.editing:
            if self.interactive:
                print(prompt, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")
        line = self._edited(prompt)
        # An editor without bracketed paste hands pasted text over line by line, the rest of it waiting.
        while self._pastes_split and select.select([sys.stdin], [], [], 0)[0]:
            line += "\n" + input()
        return line

    def _edited(self, prompt: str) -> str:
        import readline

        try:
            return input(prompt)
        except KeyboardInterrupt:
            if readline.get_line_buffer():
                raise LineCleared from None
            raise

    def _set_up_editing(self) -> bool:
        try:
            import readline
        except ImportError:
            return False
        if "libedit" in (readline.__doc__ or ""):
            self._pastes_split = True
        else:
            readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_history_length(HISTORY_LENGTH)
        readline.set_auto_history(True)
        with contextlib.suppress(OSError):  # none yet, or not readable: the chat works without
            readline.read_history_file(self._history)
        return True

    def _remember(self) -> None:
        if not self.editing or not self._remembers:
            return
        import readline

        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(self._history)
