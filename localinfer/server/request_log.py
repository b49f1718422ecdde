"""The log: one line per request, as `name=value` pairs.

    2026-11-29T22:03:21+0000 endpoint=/v1/chat/completions status=200 finish=stop model=smollm2:135m queue_ms=0.4
    prefill_ms=213.0 cached=1150 new=50 decode_ms=1520.1 tokens=90 tokens_per_s=58.5 total_ms=1734.2 client=127.0.0.1

(in one line). A request that computed what the prefix cache almost had also says `parted_at=37 cached_token=" 12"
asked_token=" 13"`: the first token that differed. What clients sent is quoted and escaped, so that it cannot forge a
line or move a terminal's cursor.

Lines are written by a thread: a reader that does not read, a full disk or a closed standard error hold up no request.
Lines that could not be written are counted, and the next one that can be written is preceded by their number.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.server.record import RequestRecord

WAITING_LINES = 4096  # lines that may wait for the disk or a terminal; those behind them are lost
LONGEST_VALUE = 300  # characters of a value

_BARE = re.compile(r"[A-Za-z0-9_./:,;@%+*(){}-]+")


class RequestLog:
    """Writes to a file descriptor, which it closes; None loses every line (and counts them).

    When the first line is lost, standard error says so if the log is a file, whose `path` it names.
    """

    def __init__(self, descriptor: int | None, path: Path | None = None) -> None:
        self.lost = 0
        self._path = path
        self._descriptor = descriptor
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING_LINES)
        self._unsaid = 0  # lost lines that the log does not tell of yet
        self._counting = threading.Lock()
        self._closing = False
        self._torn = False  # whether the last line was written in part
        self._thread = threading.Thread(target=self._write_lines, name="localinfer-log", daemon=True)
        self._thread.start()

    @classmethod
    def to_standard_error(cls) -> RequestLog:
        """To where standard error leads now, if it leads anywhere."""
        try:
            return cls(os.dup(sys.stderr.fileno()))
        except (AttributeError, OSError, ValueError):  # it is None, or not a file, or closed
            return cls(None)

    @classmethod
    def to_file(cls, path: Path) -> RequestLog:
        """Appends to a file. LocalInferError if it cannot be opened."""
        try:
            return cls(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640), path)
        except OSError as error:
            raise LocalInferError(
                f"the log file {path} cannot be written: {error.strerror}", "name another file, or none"
            ) from error

    def request(self, record: RequestRecord) -> None:
        """The line of a request that is over."""
        self._put(request_line(record))

    def failure(self, what: str, error: BaseException) -> None:
        """A bug of ours with its traceback, `what` in front."""
        self.say(f"{what}:\n{''.join(traceback.format_exception(error))}")

    def say(self, text: str) -> None:
        """Any other text: each of its lines with the time, and escaped."""
        for line in text.splitlines():
            self._put(f"{_now()} {escaped(line, 10 * LONGEST_VALUE)}")

    def close(self, timeout: float = 5.0) -> None:
        """Writes what waits, for at most `timeout` seconds."""
        self._closing = True
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
            self._thread.join(timeout)

    def _put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lose()

    def _lose(self) -> None:
        with self._counting:
            self.lost += 1
            self._unsaid += 1

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if self._closing and self._lines.empty():
                break
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _write(self, line: str) -> None:
        unsaid = self._unsaid
        told = f"{_now()} {unsaid} lines of this log could not be written\n" if unsaid else ""
        rest = ("\n" if self._torn else "") + told + line + "\n"
        data = memoryview(rest.encode("utf-8", "backslashreplace"))
        try:
            if self._descriptor is None:
                raise OSError("nowhere to write to")
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
                self._torn = True
            self._torn = False
            with self._counting:
                self._unsaid -= unsaid
        except OSError as error:
            self._complain(error)
            self._lose()

    def _complain(self, error: OSError) -> None:
        if self._path is not None and not self.lost:
            words = f"note: the log file {self._path} cannot be written: {error.strerror}; its lines are lost meanwhile"
            with contextlib.suppress(OSError, ValueError):  # standard error may be full or closed as well
                print(words, file=sys.stderr, flush=True)


def request_line(record: RequestRecord) -> str:
    """What a record says of its request, without a line end."""
    values: dict[str, str | int | float] = {"endpoint": record.endpoint, "status": record.status}
    if record.finish_reasons:
        values["finish"] = _counted(record.finish_reasons)
    values["model"] = record.model
    if record.requests:
        values |= {
            "queue_ms": 1000 * record.queue_seconds,
            "prefill_ms": 1000 * record.prefill_seconds,
            "cached": record.cached_tokens,
            "new": record.new_tokens,
            "decode_ms": 1000 * record.decode_seconds,
            "tokens": record.generated_tokens,
            "tokens_per_s": record.tokens_per_second,
        }
    values["total_ms"] = 1000 * record.total_seconds
    if record.preemptions:
        values["preempted"] = record.preemptions
    if record.near_miss is not None:
        values["parted_at"] = record.near_miss.position
        values["cached_token"] = record.near_miss.cached.decode("utf-8", "surrogateescape")
        values["asked_token"] = record.near_miss.asked.decode("utf-8", "surrogateescape")
    values |= {"client": record.client, "id": record.id, "ignored": ",".join(record.ignored_fields)}
    values["error"] = record.error
    pairs = (f"{name}={_value(value)}" for name, value in values.items() if value != "")
    return f"{_now()} {' '.join(pairs)}"


def escaped(text: str, longest: int = LONGEST_VALUE) -> str:
    """The text without anything that a terminal or a reader of lines could take for more than text.

    Control characters, quotes, backslashes, invisible and direction-changing characters become escapes of Python.
    What is behind the first `longest` characters is left out, and counted.
    """
    if len(text) > longest:
        return f"{escaped(text[:longest], longest)}... ({len(text)} characters)"
    return "".join(c if c.isprintable() and c not in '"\\' else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as surrogateescape decodes it
        return f"\\x{code - 0xDC00:02x}"
    return "\\" + character if character in '"\\' else character.encode("unicode_escape").decode()


def _value(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, int) or _BARE.fullmatch(value):
        return str(value)
    return f'"{escaped(value)}"'


def _counted(reasons: tuple[str, ...]) -> str:
    """stop, or stop*3,length*1 for several."""
    if len(reasons) == 1:
        return reasons[0]
    return ",".join(f"{reason}*{count}" for reason, count in Counter(reasons).items())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
