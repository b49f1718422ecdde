"""The contract between the engine and a backend.

A backend turns a `Program` and the tensors of a model file into an `Executable`, once; the engine then hands it
one `Batch` per step and reads logits. Everything in a Batch is integers: no backend type crosses this border, and
on the CPU no numpy either, so that starting a chat does not pay for importing it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from localinfer.kernels.program import Program
from localinfer.kernels.types import TensorType

if TYPE_CHECKING:
    import numpy.typing as npt

KvType = Literal["f16", "bf16", "int8", "f32"]  # f32: for exact comparisons; only the reference needs to have it
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Tensor:
    """A weight as it lies in a file. `shape` is `(rows, cols)`, or `(size,)`; rows are contiguous.

    `buffer` is a read-only view of exactly `nbytes` mapped bytes. `path` and `offset` name the same bytes for
    a backend that reads the file by itself (to keep the mapped copy out of memory).
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int
    buffer: memoryview


class TensorSource(Protocol):
    """Named tensors: a GGUF file, or anything else that has them."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name; FormatError if the file has none."""
        ...

    def has_tensor(self, name: str) -> bool: ...


@dataclass(frozen=True)
class LoadConfig:
    """Every size that a backend reserves memory for. Nothing grows after load.

    max_tokens    tokens in one step (the largest prefill chunk plus decodes)
    max_rows      rows of logits in one step
    max_sequences sequences in one step
    context       positions 0 … context - 1 may occur
    kv_blocks     blocks of `block_size` tokens in the KV pool, shared by all sequences
    threads       0: one per physical (performance) core that this process may use
    """

    max_tokens: int
    max_rows: int
    max_sequences: int
    context: int
    kv_blocks: int
    block_size: int = 16
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    threads: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """What a load will reserve, in bytes, by purpose ("weights", "kv", "activations", ...)."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass
class Batch:
    """One step's work: a mixture of prefill chunks and decodes, any number of sequences.

    Sequence s owns rows `starts[s] … starts[s + 1]`, which are consecutive positions of that sequence.
    Its KV lives in blocks `block_table[table_starts[s] … table_starts[s + 1]]`: position p is slot
    `p % block_size` of the `p // block_size`-th of them. The table covers every position up to the last one
    of this step. Arrays are int32 (`array("i")`).

    `types` tells the parts of a text apart for encoders that know such: 0 for the first, 1 for the second; empty where
    all tokens are of type 0.
    """

    tokens: array[int]  # [tokens] token ids
    positions: array[int]  # [tokens] position of each token in its sequence
    starts: array[int]  # [sequences + 1]
    block_table: array[int]  # [all blocks of all sequences]
    table_starts: array[int]  # [sequences + 1]
    logit_rows: array[int]  # [rows] rows of the step whose logits are wanted, ascending
    types: array[int] = field(default_factory=lambda: array("i"))  # [tokens], or empty


class Logits(Protocol):
    """The logits of one step, float32 `[rows, vocab_size]`; valid until the next step.

    `address` is where they lie in this process's memory (row-major, contiguous), for the native sampler.
    """

    rows: int
    vocab_size: int
    address: int

    def numpy(self) -> npt.NDArray[Any]:
        """A view as a numpy array (imports numpy)."""
        ...


class Hidden(Protocol):
    """The states after the final norm, float32 `[rows, size]`; valid until the next step.

    `address` is where they lie in this process's memory (row-major, contiguous).
    """

    rows: int
    size: int
    address: int

    def numpy(self) -> npt.NDArray[Any]:
        """A view as a numpy array (imports numpy)."""
        ...


class Executable(Protocol):
    """A loaded model. One step at a time; not re-entrant."""

    def step(self, batch: Batch) -> Logits:
        """Runs the program on one batch. Raises Cancelled, once, if `cancel` has been called."""
        ...

    def hidden(self, batch: Batch) -> Hidden:
        """As `step`, keys and values included, but ends with `Program.hidden` instead of logits.

        That is what the head's product reads for `batch.logit_rows`, which may be as many as the step has tokens
        (`max_rows` bounds logits only). A row's bits depend on its sequence alone, as those of logits do.
        UnsupportedError if the program names no hidden states.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole KV blocks `(from, to)`: every layer's keys and values, with their scales, in the order given.

        Between steps only. ValueError, and nothing is copied, if a block is outside the pool.
        """
        ...

    def cancel(self) -> None:
        """From any thread: the step that runs, or else the next one, stops early and raises Cancelled."""
        ...

    def close(self) -> None:
        """Gives the memory back. Further calls are errors."""
        ...


class Cancelled(Exception):
    """A step was stopped by `Executable.cancel`; the KV slots it was writing hold no defined values."""


@dataclass(frozen=True)
class Availability:
    """Whether a backend can run here, and why or why not, in words for `localinfer doctor`."""

    usable: bool
    reason: str
    details: dict[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """A row of the table in `kernels/__init__.py`."""

    name: str

    def availability(self) -> Availability: ...

    def plan(self, program: Program, tensors: TensorSource, config: LoadConfig) -> MemoryPlan:
        """What `load` would reserve, without reading any weights."""
        ...

    def load(
        self, program: Program, tensors: TensorSource, config: LoadConfig, progress: Progress | None = None
    ) -> Executable: ...


def row_range(tensor: Tensor, start: int, rows: int) -> tuple[int, int]:
    """Byte offset within the tensor, and byte count, of rows `[start, start + rows)` of a matrix."""
    row_bytes = tensor.type.row_bytes(tensor.shape[-1])
    return start * row_bytes, rows * row_bytes


def batch_of(
    sequences: Sequence[tuple[Sequence[int], int, Sequence[int]]], logits: Literal["last", "all"] = "last"
) -> Batch:
    """A Batch from `(token ids, first position, block table)` per sequence: for tests and small callers."""
    batch = Batch(array("i"), array("i"), array("i", [0]), array("i"), array("i", [0]), array("i"))
    for tokens, first, table in sequences:
        batch.tokens.extend(tokens)
        batch.positions.extend(range(first, first + len(tokens)))
        batch.block_table.extend(table)
        batch.starts.append(len(batch.tokens))
        batch.table_starts.append(len(batch.block_table))
        begin = batch.starts[-1] - (1 if logits == "last" else len(tokens))
        batch.logit_rows.extend(range(begin, batch.starts[-1]))
    return batch
