"""Quantizing the matrices of a checkpoint while it is opened."""

from __future__ import annotations

from localinfer.checkpoints.rows import Rows
from localinfer.checkpoints.values import float_rows
from localinfer.errors import UnsupportedError
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES, TensorType

_TABLES = ("token_embd.weight", "output.weight")
_KEPT = ("position_embd.weight", "token_types.weight", "cls.weight", "cls.output.weight")  # small, and sensitive
_TABLE_TYPE = "Q6_K"  # the least that the embedding table and the head get: errors there cost the most


class RowQuantizer:
    """Makes quantized rows of a checkpoint's matrices."""

    def __init__(self, quant: str) -> None:
        import numpy as np

        from localinfer.kernels.quantize.quantizer import QUANTIZABLE, quantize_rows

        name = quant.upper()
        if name not in QUANTIZABLE:
            raise UnsupportedError(
                f"matrices cannot be quantized to {quant!r}", f"types: {', '.join(t.lower() for t in QUANTIZABLE)}"
            )
        self._type = TYPES[name]
        self._available = QUANTIZABLE
        # Libraries are loaded now, so that the memory plan counts what they take.
        quantize_rows(name, np.zeros((1, self._type.block_size), np.float32))

    def rows(self, source: Tensor) -> Rows | None:
        """The rows of a matrix, quantized; None if it stays as it is, or is a vector."""
        kind = self._type_of(source) if len(source.shape) == 2 and source.name not in _KEPT else None
        if kind is None or kind == source.type:
            return None

        def read(start: int, count: int) -> bytearray:
            from localinfer.kernels.quantize.quantizer import quantize_rows

            return quantize_rows(kind.name, float_rows(source, start, count))

        return Rows(kind, source.shape, read)

    def _type_of(self, tensor: Tensor) -> TensorType | None:
        """The type that was asked for, a finer one for tables, or one with smaller blocks if columns do not divide."""
        wanted = [self._type, TYPES["Q8_0"]]
        if tensor.name in _TABLES and _bits(self._type) < _bits(TYPES[_TABLE_TYPE]):
            wanted.insert(0, TYPES[_TABLE_TYPE])
        for kind in wanted:
            if kind.name in self._available and tensor.shape[-1] % kind.block_size == 0:
                return kind
        return None


def _bits(kind: TensorType) -> float:
    return 8 * kind.block_bytes / kind.block_size
