"""A pseudo-terminal, and the command in it as a person would use it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

import pytest

AT_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C typed here interrupts this process
from localinfer.cli.main import execute
sys.exit(execute(sys.argv[1:]))
"""


class Terminal:
    """A pseudo-terminal with `localinfer` in it."""

    def __init__(self, *arguments: str, before: str = "", folder: Path | None = None, columns: int = 0) -> None:
        """`before` is Python that runs first; lines are broken only on a terminal that says how wide it is."""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + AT_A_TERMINAL, *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "INPUTRC": os.devnull},
        )
        os.close(slave)
        self.unread = ""
        self.all = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")

    def expect(self, text: str, timeout: float = 30) -> str:
        """Waits for a text and returns what came before it."""
        end = time.monotonic() + timeout
        while text not in self.unread:
            if time.monotonic() > end or not self._receive(end - time.monotonic()):
                pytest.fail(f"{text!r} did not come:\n{self.all}")
        before, _, self.unread = self.unread.partition(text)
        return before

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self, text: str) -> None:
        """Types Ctrl-C until a text comes.

        Once is enough for a person. But Python's input() misses a signal that comes between the moment it shows the
        prompt and the moment it waits for keys, until the next key; on a busy machine a test hits that moment.
        """
        for _ in range(10):
            self.send("\x03")
            end = time.monotonic() + 6
            while text not in self.unread and self._receive(end - time.monotonic()):
                pass
            if text in self.unread:
                break
        self.expect(text, timeout=0)

    def end(self) -> int:
        """Reads to the end; the exit code."""
        while self._receive(10):
            pass
        return self.process.wait(10)

    def _receive(self, timeout: float) -> bool:
        if not select.select([self.master], [], [], max(0, timeout))[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux says the other end is gone by EIO
            return False
        text = self._decoder.decode(data)
        self.unread += text
        self.all += text
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
