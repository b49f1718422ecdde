"""A program in two halves: up to the hidden states, and the head that turns them into logits.

Logits are large (a token's, with a vocabulary of 262,144, take a megabyte), hidden states are small (two or three
kilobytes in the same model) and give the logits back bit by bit. So a model's states are computed once and kept in a
file, and what needs logits gets them from there, some rows at a time: two models are compared without ever being in
memory together.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from localinfer.engine.memory import free_memory
from localinfer.errors import LocalInferError, MemoryPlanError, UnsupportedError
from localinfer.evaluate.windows import Windows
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import (
    Backend,
    Batch,
    Executable,
    KvType,
    LoadConfig,
    Logits,
    Progress,
    Tensor,
    TensorSource,
    batch_of,
)
from localinfer.kernels.program import Embed, Matrix, Op, Program, SelectRows, Value
from localinfer.kernels.types import TYPES
from localinfer.models import record, refuse_unused

STEP_TOKENS = 256  # tokens of one step, of as many windows as they are in
BLOCK_SIZE = 16
LOGIT_BYTES = 32 * 2**20  # of logits in one step
STATES = "states"  # name of the matrix that holds hidden states in the second half of a program


def record_for(file: ModelFile, positions: int) -> Program:
    """The program of a model that predicts text, for so many positions. UnsupportedError for an encoder."""
    if record(file.metadata, file).purpose != "text":
        raise UnsupportedError(
            "the model is an encoder: it predicts no text by which it could be measured or calibrated",
            "quantize it without --calibrate, and compare what it makes of your own texts",
        )
    program = record(file.metadata, file, positions)
    refuse_unused(program, file.tensors)
    return program


def trunk(program: Program) -> Program:
    """The ops up to the hidden states `[rows, width]`, which take the place of logits."""
    ops = program.up_to_hidden()
    hidden = ops[-1].outputs[0]
    return replace(program, ops=ops, output=hidden, vocab_size=hidden.width, hidden=None)


def head(program: Program, rows: int) -> Program:
    """The ops behind the hidden states. "Tokens" are numbers of rows of a matrix STATES of float32 `[rows, width]`."""
    before = program.up_to_hidden()
    hidden = before[-1].outputs[0]
    found = Value(-1, STATES, "tokens", hidden.width)
    ops: tuple[Op, ...] = (
        Embed(found, Matrix(STATES, rows, hidden.width)),
        SelectRows(hidden, found),
        *program.ops[len(before) :],
    )
    return replace(program, ops=ops, kv=(), hidden=None)


class States:
    """Hidden states of a model at the scored positions of windows: float32 `[count, width]`, in a nameless file."""

    def __init__(self, program: Program, count: int) -> None:
        self.program = program
        self.width = program.up_to_hidden()[-1].outputs[0].width
        self.count = count
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def append(self, found: Logits) -> None:
        """Takes the rows of a step. LocalInferError if there is no space for them."""
        try:
            self._file.write(ctypes.string_at(found.address, 4 * found.rows * self.width))
            self._file.flush()
        except OSError as error:
            raise LocalInferError(
                f"hidden states cannot be written to {tempfile.gettempdir()}: {error.strerror}",
                "they take some hundred megabytes at most; TMPDIR names another folder",
            ) from error

    def tensor(self, start: int, count: int) -> Tensor:
        """Rows `[start, start + count)` as a backend reads them: from the file."""
        offset, size = 4 * self.width * start, 4 * self.width * count
        path = Path(f"/dev/fd/{self._file.fileno()}")
        mapped = memoryview(mmap.mmap(self._file.fileno(), offset + size, access=mmap.ACCESS_READ))
        return Tensor(STATES, TYPES["F32"], (count, self.width), path, offset, size, mapped[offset:])

    def close(self) -> None:
        self._file.close()


def compute_states(
    file: ModelFile,
    windows: Windows,
    backend: Backend,
    *,
    kv_types: tuple[KvType, KvType] = ("f16", "f16"),
    threads: int = 0,
    loading: Progress | None = None,
    progress: Progress | None = None,
) -> States:
    """Runs a model over windows. `loading` hears of bytes read, `progress` of tokens processed.

    MemoryPlanError if it does not fit what is free; LocalInferError for files that cannot be run.
    """
    program = record_for(file, windows.size)
    states = States(program, windows.scored * len(windows.tokens))
    try:
        with running(trunk(program), file, backend, windows, kv_types, threads, loading) as executable:
            done = 0
            for batch in batches(windows):
                found = executable.step(batch)
                if found.rows:
                    states.append(found)
                done += len(batch.tokens)
                if progress is not None:
                    progress(done, windows.size * len(windows.tokens))
    except BaseException:
        states.close()
        raise
    return states


@contextmanager
def running(
    program: Program,
    file: ModelFile,
    backend: Backend,
    windows: Windows,
    kv_types: tuple[KvType, KvType] = ("f16", "f16"),
    threads: int = 0,
    loading: Progress | None = None,
) -> Iterator[Executable]:
    """A program, loaded so that it can take the steps of `batches(windows)`."""
    lanes = _lanes(windows)
    config = LoadConfig(
        max_tokens=STEP_TOKENS,
        max_rows=STEP_TOKENS,
        max_sequences=lanes,
        context=windows.size,
        kv_blocks=lanes * _blocks(windows),
        block_size=BLOCK_SIZE,
        kv_type_k=kv_types[0],
        kv_type_v=kv_types[1],
        threads=threads,
    )
    executable = _load(program, file, file, backend, config, loading)
    try:
        yield executable
    finally:
        executable.close()


def _load(
    program: Program,
    file: ModelFile,
    tensors: TensorSource,
    backend: Backend,
    config: LoadConfig,
    loading: Progress | None = None,
) -> Executable:
    """`tensors` are the file's, and perhaps others."""
    needed, free = backend.plan(program, tensors, config).total, free_memory()
    if needed > free:
        raise MemoryPlanError(
            f"evaluating {file.paths[0].name} needs {needed / 2**20:.0f} MiB, but {free / 2**20:.0f} MiB are free",
            "close other programs, or take a smaller model",
        )
    executable = backend.load(program, tensors, config, loading)
    file.drop_pages()
    return executable


def _lanes(windows: Windows) -> int:
    """Windows that one step may be about."""
    return STEP_TOKENS // windows.size + 2


def _blocks(windows: Windows) -> int:
    """KV blocks of one window."""
    return -(-windows.size // BLOCK_SIZE)


def batches(windows: Windows, everything: bool = False) -> Iterator[Batch]:
    """Steps of STEP_TOKENS tokens through all windows, one behind the other; a step takes what it needs of several.

    Wanted are the rows that are scored, or with `everything` all of them.
    """
    lanes, blocks = _lanes(windows), _blocks(windows)
    scored = range(0 if everything else windows.scored_from, windows.size if everything else windows.size - 1)
    total = windows.size * len(windows.tokens)
    for begin in range(0, total, STEP_TOKENS):
        end = min(begin + STEP_TOKENS, total)
        parts, wanted = [], []
        for number in range(begin // windows.size, -(-end // windows.size)):
            base = number * windows.size
            first, last = max(begin - base, 0), min(end - base, windows.size)
            lane = number % lanes * blocks
            parts.append((windows.tokens[number][first:last], first, range(lane, lane + blocks)))
            wanted += [base + p - begin for p in range(max(first, scored.start), min(last, scored.stop))]
        batch = batch_of(parts)
        del batch.logit_rows[:]
        batch.logit_rows.extend(wanted)
        yield batch


class Head:
    """A model's head over some of its states: gives their logits, a tile at a time."""

    def __init__(
        self, file: ModelFile, states: States, start: int, count: int, backend: Backend, *, tile: int, threads: int = 0
    ) -> None:
        """Of states `[start, start + count)`; no tile is larger than `tile`."""
        blocks = -(-tile // BLOCK_SIZE)
        config = LoadConfig(
            max_tokens=tile,
            max_rows=tile,
            max_sequences=1,
            context=blocks * BLOCK_SIZE,
            kv_blocks=blocks,
            block_size=BLOCK_SIZE,
            threads=threads,
        )
        tensors = _WithStates(file, states.tensor(start, count))
        self._table = range(blocks)
        self._executable = _load(head(states.program, count), file, tensors, backend, config)

    def logits(self, start: int, count: int) -> Logits:
        """Of rows `[start, start + count)` of those that the head is for; valid until the next call."""
        return self._executable.step(batch_of([(range(start, start + count), 0, self._table)], "all"))

    def close(self) -> None:
        self._executable.close()


def tile_rows(vocabulary: int) -> int:
    """How many rows of logits a step makes: as many as take LOGIT_BYTES, but a few at least."""
    return max(8, min(STEP_TOKENS, LOGIT_BYTES // (4 * vocabulary)))


class _WithStates:
    """The tensors of a model file and one more."""

    def __init__(self, file: ModelFile, states: Tensor) -> None:
        self._file = file
        self._states = states

    def tensor(self, name: str) -> Tensor:
        return self._states if name == STATES else self._file.tensor(name)

    def has_tensor(self, name: str) -> bool:
        return name == STATES or self._file.has_tensor(name)
