"""A tensor of a file beside the tensor that it is said to come from, read in runs of whole rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from localinfer.checkpoints.values import float_rows
from localinfer.kernels.base import Tensor
from localinfer.kernels.reference.dequantize import dequantize
from localinfer.kernels.types import TYPES
from localinfer.verify.known import bf16, f16, quantizers_for

Floats = npt.NDArray[np.float32]

CHUNK_WEIGHTS = 1 << 19  # looked at together: some 30 MB of temporary arrays


class Chunk(NamedTuple):
    """Rows `[start, start + rows)`."""

    start: int
    rows: int


# What weights may have gone through on their way, and lose a little by: names of types.
CONVERSIONS = ("F16", "BF16")
# Quantizations that leave no choice, and whose grids are so fine that no other type's borders lie on them. A file that
# was made from one of these was not made from the source itself.
REQUANTIZATIONS = ("Q8_0",)


@dataclass(frozen=True)
class Pair:
    """`file` and `source` have the same shape."""

    file: Tensor
    source: Tensor

    @property
    def columns(self) -> int:
        return self.file.shape[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.file.shape[:-1])

    def data(self, chunk: Chunk) -> memoryview:
        """The bytes of rows as they lie in the file."""
        size = self.file.type.row_bytes(self.columns)
        return self.file.buffer[chunk.start * size : (chunk.start + chunk.rows) * size]

    def same_bytes(self, chunk: Chunk) -> bool:
        """Whether the source holds the same bytes, in the same type."""
        if self.source.type != self.file.type:
            return False
        size = self.source.type.row_bytes(self.columns)
        return self.data(chunk) == self.source.buffer[chunk.start * size : (chunk.start + chunk.rows) * size]

    def values(self, chunk: Chunk) -> Floats:
        """What the file's rows stand for, float32 [rows, columns]."""
        return float_rows(self.file, chunk.start, chunk.rows)

    def weights(self, chunk: Chunk, way: str = "") -> Floats:
        """The source's rows, float32 [rows, columns], after a detour by way of a type, if one is named."""
        plain = float_rows(self.source, chunk.start, chunk.rows)
        if way == "F16":
            return np.frombuffer(f16(plain), "<f2").astype(np.float32).reshape(plain.shape)
        if way == "BF16":
            bits = np.frombuffer(bf16(plain), "<u2").astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32).reshape(plain.shape)
        if way:
            return dequantize(TYPES[way], requantized(way, plain), plain.shape)
        return plain

    def conversions(self) -> list[str]:
        """Detours that change the source's numbers, and that its columns allow."""
        kept = {"F16": ("F16",), "BF16": ("BF16", "F16" if self.file.type.name == "F16" else "BF16")}
        return [way for way in CONVERSIONS if way not in kept.get(self.source.type.name, ())]

    def requantizations(self) -> list[str]:
        """Detours by way of a quantized type that keeps more than the file's."""
        return [
            way
            for way in REQUANTIZATIONS
            if self.columns % TYPES[way].block_size == 0 and way != self.file.type.name != self.source.type.name
        ]


def requantized(type_name: str, weights: Floats) -> Any:
    """The blocks of a type with one public rule."""
    return quantizers_for(type_name)[f"the public rule of {type_name}"](weights)
