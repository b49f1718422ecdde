"""Tensors that have names and shapes but no file."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from localinfer.errors import FormatError
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES


class FakeTensors:
    """A TensorSource of names and shapes only, for recording; small vectors may have values."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self.shapes = dict(shapes)
        self.values = dict(values or {})

    def has_tensor(self, name: str) -> bool:
        return name in self.shapes or name in self.values

    def tensor(self, name: str) -> Tensor:
        if not self.has_tensor(name):
            raise FormatError(f"there is no tensor {name}")
        data = array("f", self.values.get(name, ()))
        shape = (len(data),) if name in self.values else self.shapes[name]
        return Tensor(name, TYPES["F32"], shape, Path("fake.gguf"), 0, 4 * len(data), memoryview(data).cast("B"))
