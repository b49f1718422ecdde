"""A quantized matrix on its way from a checkpoint's form to rows of a tensor type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from localinfer.kernels.types import TensorType


@dataclass(frozen=True)
class Quantized:
    """A matrix of weights, float32 in meaning, `shape` (rows, cols), as rows of `type`.

    `write_rows(start, rows)` gives rows `start … start + rows - 1` as bytes of that type. FormatError if the numbers
    in the checkpoint are none: a NaN, an infinite scale, a zero point out of range.
    """

    type: TensorType
    shape: tuple[int, int]
    write_rows: Callable[[int, int], bytes | memoryview]


@dataclass
class QuantizedReader:
    """The quantized matrices of a checkpoint.

    weights  by the name that the weight would have unquantized: "model.layers.0.mlp.up_proj.weight"
    used     names of the stored tensors that make them up, or that have no meaning here (scales of activations and of
             an 8-bit cache); all others are to be read as in a checkpoint that is not quantized
    notes    what a person should know
    """

    weights: dict[str, Quantized] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def find(self, name: str) -> Quantized | None:
        """The quantized matrix of that name; None if there is none: then it is stored as plain numbers, or not."""
        return self.weights.get(name)
