"""What goes to the terminal. Data goes to standard output; everything said about it goes to standard error."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from localinfer.cli.wrap import Wrapper
from localinfer.errors import LocalInferError

# Text from models and files may hold control characters, and a terminal obeys them. They are shown by their
# pictures instead: C0 as U+2400 and on, DEL as U+2421, C1 (which some terminals obey too) as U+FFFD. Marks that
# reorder what is written around them (Unicode's bidirectional controls) are shown as U+FFFD as well.
_HARMLESS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_HARMLESS |= {0x0D: None, 0x7F: 0x2421}  # type: ignore[dict-item]
_HARMLESS |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)


class OutputError(LocalInferError):
    """Standard output cannot be written: the disk is full, or the shell closed it."""


class ReaderLeft(Exception):
    """Whoever reads what we write has enough of it: no failure. (Typer would end the process for an OSError.)"""


class StandardOutput(io.TextIOWrapper):
    """Standard output whose failures can be told from those of other files."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        settings = {"encoding": stream.encoding, "errors": stream.errors}
        flushing = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        super().__init__(stream.detach(), **settings, **flushing)  # type: ignore[arg-type]

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _explained(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _explained(error) from error


def _explained(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return ReaderLeft()
    return OutputError(f"standard output cannot be written: {error.strerror}")


def harmless(text: str) -> str:
    """Text without control characters, newline and tab excepted."""
    return text.translate(_HARMLESS)


def emit(text: str) -> None:
    """Data, at once: as it is to a pipe or a file; harmless, and broken between words, to a terminal.

    It begins a line, or it ends one.
    """
    Answer().write(text)


class Answer:
    """Data that comes in pieces, each written at once; a terminal gets lines that break between words."""

    def __init__(self) -> None:
        self._wrapper = Wrapper()

    def write(self, text: str) -> None:
        if sys.stdout.isatty():
            text = self._wrapper.feed(harmless(text), _columns(sys.stdout))
        sys.stdout.write(text)
        sys.stdout.flush()


def emit_json(value: Any) -> None:
    """One JSON object on one line."""
    import json

    print(json.dumps(value, ensure_ascii=False))


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn for a terminal; lines of tab-separated values for a pipe. Numbers stand to the right."""
    cells = [[harmless(str(value)).replace("\t", " ").replace("\n", " ") for value in row] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join("\t".join(row) for row in [columns, *cells]))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        right = bool(rows) and all(row[number][:1].isdigit() for row in cells)
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def note(text: str) -> None:
    """A line about what is going on."""
    _say(_fitted(text, sys.stderr))


def aside(text: str) -> None:
    """A line that matters less; dim where the terminal can."""
    text = _fitted(text, sys.stderr)
    _say(f"\x1b[2m{text}\x1b[0m" if styled(sys.stderr) else text)


def error(message: str, hint: str = "") -> None:
    text = f"error: {message}" + (f"\nhint: {hint}" if hint else "")
    sys.stdout.flush()
    note(text)


def end_line() -> None:
    """Leaves the line that the cursor is in, on a terminal."""
    if sys.stderr.isatty():
        _say("")


def ask(question: str) -> bool:
    """A yes/no question on standard error: Enter is yes, the end of input is no, as is anything but yes."""
    print(f"{question} [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        note("")
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")


def size(count: int) -> str:
    """Bytes for people: 98.4 MB."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise ReaderLeft from None


def _fitted(text: str, stream: TextIO) -> str:
    """The text, harmless, and in lines that fit if it is for a terminal."""
    return Wrapper().feed(harmless(text), _columns(stream)) if stream.isatty() else harmless(text)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of a terminal; 0 if it does not say so, or does not understand what erases a word."""
    if os.environ.get("TERM") == "dumb":
        return 0, 0
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.columns, size.lines


def _columns(stream: TextIO) -> int:
    return terminal_size(stream)[0]


def styled(stream: TextIO) -> bool:
    """Whether it is a terminal that shows text dim or bold, and the person wants that."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
