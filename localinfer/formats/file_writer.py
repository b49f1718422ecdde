"""Writes model files tensor by tensor, in any order, so that nothing but the header is ever in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

from localinfer.errors import LocalInferError
from localinfer.formats.closing import Closing


class FileLayout(Protocol):
    """Where everything of a file lies, known before the first tensor is made.

    header      all bytes before the data, its padding included
    offsets     of each tensor, from the start of the file
    size        of the file
    """

    header: bytes
    offsets: dict[str, int]
    size: int


class FileWriter(Closing):
    """Writes a file by its layout. Close it, or use it in a `with` statement.

    A file that exists is gone on with: what lies in it stays. LocalInferError if it cannot be written, or if the disk
    has not enough room: the room of the whole file is taken at once.
    """

    def __init__(self, path: Path, layout: FileLayout) -> None:
        self.path = path
        self.layout = layout
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _explained(path, error) from error
        try:
            os.truncate(self._file, layout.size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, layout.size)
        except OSError as error:
            self.close()
            raise _explained(path, error) from error
        self.write_header(layout)

    def write_header(self, layout: FileLayout) -> None:
        """Writes the header again, with other values of the same length."""
        if len(layout.header) != len(self.layout.header):
            raise ValueError(f"a header of {len(layout.header)} bytes cannot replace one of {len(self.layout.header)}")
        self.layout = layout
        self._write(layout.header, 0)

    def write(self, name: str, at: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes of a tensor, `at` bytes from its start."""
        self._write(data, self.layout.offsets[name] + at)

    def read(self, name: str, at: int, count: int) -> bytes:
        """Bytes of a tensor that were written before."""
        return os.pread(self._file, count, self.layout.offsets[name] + at)

    def flush(self) -> None:
        """Waits until everything lies on the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _explained(self.path, error) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        view = memoryview(data).cast("B")
        try:
            while view:
                count = os.pwrite(self._file, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise _explained(self.path, error) from error


def _explained(path: Path, error: OSError) -> LocalInferError:
    hint = "free some space, or write to another disk with --output" if error.errno == errno.ENOSPC else ""
    return LocalInferError(f"cannot write {path}: {error.strerror}", hint)
