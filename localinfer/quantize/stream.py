"""Making the tensors of a file one after the other: in parallel, in little memory, gone on with after an interruption.

Rows do not depend on each other. So a tensor is made in pieces, runs of whole rows, and neither their size nor the
number of threads changes a byte.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from localinfer.formats.file_writer import FileWriter
from localinfer.quantize.work import WorkFile

PIECE_WEIGHTS = 1 << 22  # converted at once: 16 MiB of floats
ALONE_WEIGHTS = 1 << 26  # the same for what uses all threads by itself
_DROP_AFTER = 256 << 20  # bytes of the source that may stay mapped

Bytes = bytes | bytearray | memoryview
Progress = Callable[[str, int, int], None]


class StoredBytes(Protocol):
    """A tensor as it lies in a file: rows one after the other."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def buffer(self) -> memoryview: ...


class Source(Protocol):
    """What the tensors belong to."""

    def drop_pages(self) -> None: ...


class Part(NamedTuple):
    """Bytes of a tensor of the result, `at` bytes from its start."""

    name: str
    at: int
    data: Bytes


class Job(ABC):
    """How one tensor of the source becomes one or several of the result.

    outputs    names of the result's tensors → their sizes in bytes
    method     the algorithm, by the name that goes into provenance
    row_unit   a piece that is not the last has a multiple of so many rows
    alone      whether `convert` uses all threads by itself
    """

    def __init__(
        self, source: StoredBytes, outputs: dict[str, int], method: str, *, row_unit: int = 1, alone: bool = False
    ) -> None:
        self.name = source.name
        self.outputs = outputs
        self.method = method
        self.alone = alone
        self.source = source
        self.rows = math.prod(source.shape[:-1])
        self._row_unit = row_unit

    @abstractmethod
    def convert(self, start: int, rows: int, threads: int) -> list[Part]:
        """Makes a piece. LocalInferError, with the tensor's name, for weights that are no numbers."""

    def pieces(self) -> Iterator[tuple[int, int]]:
        """`(first row, rows)` of every piece, in order."""
        columns = self.source.shape[-1] if self.source.shape else 1
        weights = ALONE_WEIGHTS if self.alone else PIECE_WEIGHTS
        step = max(1, weights // columns // self._row_unit) * self._row_unit
        for start in range(0, self.rows, step):
            yield start, min(step, self.rows - start)

    def source_bytes(self, start: int, rows: int) -> memoryview:
        """The bytes of a piece as they lie in the source."""
        size = self.source.nbytes // self.rows
        return self.source.buffer[start * size : (start + rows) * size]


class Hashes(NamedTuple):
    """sha256 of a tensor's bytes in the source, and of those of each tensor made from it."""

    source: str
    outputs: dict[str, str]


class _Piece(NamedTuple):
    job: Job
    start: int
    rows: int
    result: Future[list[Part]]


def write_tensors(
    source: Source, jobs: Sequence[Job], work: WorkFile, writer: FileWriter, threads: int, progress: Progress
) -> dict[str, Hashes]:
    """Does every job that is not done yet; returns the hashes of all, by the names of the source's tensors.

    Threads convert pieces; this one takes them in order, hashes and writes. At most two pieces per thread wait, so
    memory does not grow with the model.
    """
    total = sum(job.source.nbytes for job in jobs)
    hashes = _kept(jobs, work, writer)
    done = sum(job.source.nbytes for job in jobs if job.name in hashes)
    progress("quantizing", done, total)
    mapped = 0
    before, after = hashlib.sha256(), {}
    for piece in _in_order([job for job in jobs if job.name not in hashes], threads):
        job = piece.job
        parts = piece.result.result()
        if piece.start == 0:
            before, after = hashlib.sha256(), {name: hashlib.sha256() for name in job.outputs}
        data = job.source_bytes(piece.start, piece.rows)
        before.update(data)
        for part in parts:
            after[part.name].update(part.data)
            writer.write(part.name, part.at, part.data)
        done, mapped = done + len(data), mapped + len(data)
        if piece.start + piece.rows == job.rows:
            hashes[job.name] = Hashes(before.hexdigest(), {name: found.hexdigest() for name, found in after.items()})
            work.note(job.name, *hashes[job.name])
        if mapped > _DROP_AFTER:
            mapped = 0
            source.drop_pages()
        progress("quantizing", done, total)
    return hashes


def processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kept(jobs: Sequence[Job], work: WorkFile, writer: FileWriter) -> dict[str, Hashes]:
    """What an earlier process finished, where the bytes are those that its journal says."""
    kept = {}
    for job in jobs:
        if job.name in work.finished:
            noted = Hashes(*work.finished[job.name])
            if all(_written(writer, name, size) == noted.outputs.get(name) for name, size in job.outputs.items()):
                kept[job.name] = noted
    return kept


def _written(writer: FileWriter, name: str, size: int) -> str:
    found = hashlib.sha256()
    for start in range(0, size, 1 << 24):
        found.update(writer.read(name, start, min(1 << 24, size - start)))
    return found.hexdigest()


def _in_order(jobs: Sequence[Job], threads: int) -> Iterator[_Piece]:
    """Pieces of all jobs in order, while the next are being converted."""
    waiting: deque[_Piece] = deque()
    with ThreadPoolExecutor(threads, "quantize") as pool:
        try:
            for job in jobs:
                for start, rows in job.pieces():
                    while waiting and (job.alone or len(waiting) >= 2 * threads):
                        yield waiting.popleft()
                    result = pool.submit(job.convert, start, rows, threads if job.alone else 1)
                    waiting.append(_Piece(job, start, rows, result))
            while waiting:
                yield waiting.popleft()
        finally:
            pool.shutdown(cancel_futures=True)
