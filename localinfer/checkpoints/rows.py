"""Rows of a matrix on their way from a checkpoint to a backend: as stored, quantized, in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from localinfer.checkpoints.spool import Bytes, Spool, SpooledTensor
from localinfer.kernels.types import TensorType

_CHUNK_WEIGHTS = 1 << 20  # made at once: 4 MiB as float32


class Rows(NamedTuple):
    """A matrix of `shape` (rows, cols), of which `read(start, count)` gives rows as bytes of the type `kind`.

    A vector (size,) has as many rows of one value.
    """

    kind: TensorType
    shape: tuple[int, ...]
    read: Callable[[int, int], Bytes]

    def spooled(self, name: str, spool: Spool, paired_heads: int = 0) -> SpooledTensor:
        """The tensor in a spool. With `paired_heads`, the rows of so many heads in the order of `adjacent_pairs`."""
        height, width = self.shape[0], self.shape[1] if len(self.shape) == 2 else 1
        step = max(1, _CHUNK_WEIGHTS // width)
        if paired_heads:
            head = height // paired_heads
            step = max(1, step // head) * head

        def pieces() -> Iterator[Bytes]:
            for start in range(0, height, step):
                data = self.read(start, min(step, height - start))
                if not paired_heads:
                    yield data
                else:
                    yield from _adjacent_pairs(memoryview(data).cast("B"), head, self.kind.row_bytes(width))

        return SpooledTensor(spool, name, self.kind, self.shape, pieces)


def _adjacent_pairs(data: memoryview, head: int, size: int) -> Iterator[bytes]:
    """Rows i and i + n/2 of each head of n rows become rows 2i and 2i + 1. A row has `size` bytes."""
    half = head // 2 * size
    for start in range(0, len(data), 2 * half):
        first, second = data[start : start + half], data[start + half : start + 2 * half]
        yield b"".join(part[i : i + size] for i in range(0, half, size) for part in (first, second))
