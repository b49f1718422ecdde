"""Weights whose bytes are not those in the files, written to a temporary file where backends find them by offset.

The file has no name from the start, so that nothing is left of it however the process ends. What a tensor holds is
computed when it is first asked for: looking at a model does not write gigabytes.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.kernels.base import Progress, Tensor
from localinfer.kernels.types import TensorType

_ALIGNMENT = 64
_SPARE_BYTES = 64 << 20  # left free on the disk
_RELIEF_BYTES = 4 << 20  # written between two calls of `relieve`

Bytes = bytes | bytearray | memoryview
Pieces = Callable[[], Iterator[Bytes]]  # gives the bytes of a tensor piece by piece, in order


class SpooledTensor(Tensor):
    """A tensor of a spool. Its bytes are computed when `buffer` or `path` is read, or `Spool.fill` called."""

    def __init__(self, spool: Spool, name: str, kind: TensorType, shape: tuple[int, ...], pieces: Pieces) -> None:
        nbytes = kind.row_bytes(shape[-1])
        for dimension in shape[:-1]:
            nbytes *= dimension
        values = {"name": name, "type": kind, "shape": shape, "nbytes": nbytes, "offset": spool.reserve(nbytes)}
        for key, value in (values | {"_spool": spool, "_pieces": pieces}).items():
            object.__setattr__(self, key, value)  # the class it extends is frozen
        spool.tensors.append(self)

    _spool: Spool
    _pieces: Pieces

    @property
    def path(self) -> Path:
        return self._spool.path_of(self)

    @property
    def buffer(self) -> memoryview:
        return self._spool.view(self)

    def pieces(self) -> Iterator[Bytes]:
        """Its bytes as they are to be written, computed anew."""
        return self._pieces()


class Spool:
    """A nameless temporary file. All tensors are made before the first is read. Safe to use from several threads.

    `relieve` is called now and then while bytes are computed, to let go of the pages that were read for them.
    """

    def __init__(self, relieve: Callable[[], None] = lambda: None) -> None:
        self._relieve = relieve
        self._unrelieved = 0
        self.tensors: list[SpooledTensor] = []
        self.size = 0
        self._file = -1
        self._map: mmap.mmap | None = None
        self._filled: set[str] = set()
        self._lock = threading.RLock()

    def reserve(self, nbytes: int) -> int:
        """Room for that many bytes; returns where it begins."""
        if self._file >= 0:
            raise ValueError("the spool is in use already")
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = offset + nbytes
        return offset

    def path_of(self, tensor: SpooledTensor) -> Path:
        """A path that leads to the file as long as the spool is open, in this process only."""
        with self._lock:
            self._fill(tensor, lambda count: None)
            return Path(f"/dev/fd/{self._file}")

    def view(self, tensor: SpooledTensor) -> memoryview:
        """The bytes of a tensor, which are computed if they are not there yet."""
        with self._lock:
            self._fill(tensor, lambda count: None)
            assert self._map is not None, "filling opens it"
            return memoryview(self._map)[tensor.offset : tensor.offset + tensor.nbytes].toreadonly()

    def fill(self, progress: Progress | None = None) -> None:
        """Computes and writes all that is missing. LocalInferError if the disk is too full."""
        with self._lock:
            missing = [tensor for tensor in self.tensors if tensor.name not in self._filled]
            if not missing:
                return
            done, total = 0, sum(tensor.nbytes for tensor in missing)
            self._open()
            self._check_space(total)

            def report(count: int) -> None:
                nonlocal done
                done += count
                if progress:
                    progress(done, total)

            for tensor in missing:
                self._fill(tensor, report)
            self._relieve()

    def drop_pages(self) -> None:
        """Takes mapped pages out of this process's memory."""
        with self._lock:
            if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Gives the disk space back once the last buffer that was handed out is gone. Its tensors are lost."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._map, self.tensors = -2, None, []

    def _open(self) -> None:
        with self._lock:
            if self._file == -2:
                raise ValueError("the spool is closed")
            if self._file < 0:
                folder = spool_folder()
                try:
                    with tempfile.TemporaryFile(prefix="localinfer-", dir=folder) as file:
                        self._file = os.dup(file.fileno())
                    os.ftruncate(self._file, max(1, self.size))
                    self._map = mmap.mmap(self._file, max(1, self.size), access=mmap.ACCESS_READ)
                except OSError as error:
                    raise _no_room(folder, self.size, error.strerror or "") from error

    def _check_space(self, needed: int) -> None:
        folder = spool_folder()
        free = shutil.disk_usage(folder).free
        if needed + _SPARE_BYTES > free:
            raise _no_room(folder, needed, f"{free / 2**30:.1f} GiB are free")

    def _fill(self, tensor: SpooledTensor, report: Callable[[int], None]) -> None:
        if tensor.name in self._filled:
            return
        self._open()
        position, end = tensor.offset, tensor.offset + tensor.nbytes
        for piece in tensor.pieces():
            data = memoryview(piece).cast("B")
            if position + len(data) > end:
                raise ValueError(f"tensor {tensor.name} has more than {tensor.nbytes} bytes")
            written = 0
            while written < len(data):
                try:
                    written += os.pwrite(self._file, data[written:], position + written)
                except OSError as error:
                    raise _no_room(spool_folder(), self.size, error.strerror or "") from error
            position += len(data)
            report(len(data))
            self._unrelieved += len(data)
            if self._unrelieved >= _RELIEF_BYTES:
                self._unrelieved = 0
                self._relieve()
        if position != end:
            raise ValueError(f"tensor {tensor.name} has {position - tensor.offset} bytes instead of {tensor.nbytes}")
        self._filled.add(tensor.name)


def spool_folder() -> str:
    """Where temporary files of gigabytes may lie: TMPDIR, else /var/tmp, which is on a disk where /tmp may not be."""
    for folder in (os.environ.get("TMPDIR", ""), "/var/tmp"):
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK):
            return folder
    return tempfile.gettempdir()


def _no_room(folder: str, needed: int, why: str) -> LocalInferError:
    return LocalInferError(
        f"the model needs {needed / 2**30:.1f} GiB of temporary space in {folder}: {why}",
        "set TMPDIR to a folder on a disk with more room, or convert the model once: localinfer quantize",
    )
