"""What every family shares: the contract of a recorder, and typed reads of a model file's metadata."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from localinfer.errors import FormatError, UnsupportedError
from localinfer.kernels.base import TensorSource
from localinfer.kernels.program import Program

REQUIRED: Any = object()  # a read without a default
SMALLEST, LARGEST = 1e-30, 1e30  # no number of a model lies outside


class RecordFamily(Protocol):
    """The function `record` of a family's module."""

    def __call__(self, source: ModelSource) -> Program:
        """Records the model; FormatError where metadata or tensors contradict the family."""
        ...


@dataclass(frozen=True)
class ModelSource:
    """One model file: its metadata, its tensors, and the context it will be served with.

    `context` is the number of positions that may occur, 0 for as many as the metadata allows. It is fixed for the
    life of the program: frequencies that depend on the context (longrope) follow it, never the current length.
    Reads are of keys under the architecture's name: `integer("block_count")` reads `llama.block_count`.
    """

    architecture: str
    metadata: Mapping[str, Any]
    tensors: TensorSource
    context: int = 0

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self.metadata

    def integer(self, name: str, default: Any = REQUIRED, minimum: int = 1) -> int:
        """An integer from `minimum` to 2³¹ - 1. A list with a value per layer is accepted if all layers agree."""
        value = self._value(name, default)
        if _is_list(value):
            value = self._uniform(name, value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**31:
            raise FormatError(
                f"metadata key {self.key(name)}: expected an integer from {minimum} to 2147483647, found {value!r}"
            )
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """0, or a positive number with which one can calculate without overflow."""
        value = self._value(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (value == 0 or SMALLEST <= value <= LARGEST)
        ):
            expected = f"expected 0 or a number from {SMALLEST:g} to {LARGEST:g}"
            raise FormatError(f"metadata key {self.key(name)}: {expected}, found {value!r}")
        return float(value)

    def positive(self, name: str, default: Any = REQUIRED) -> float:
        """A number greater than 0."""
        value = self.number(name, default)
        if value == 0:
            raise FormatError(f"metadata key {self.key(name)}: expected a number > 0, found {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise FormatError(f"metadata key {self.key(name)}: expected true or false, found {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise FormatError(f"metadata key {self.key(name)}: expected a string, found {value!r}")
        return value

    def flags_per_layer(self, name: str, layers: int) -> list[bool] | None:
        """One flag per layer, or None if the key is absent or is no list."""
        value = self.metadata.get(self.key(name))
        if not _is_list(value):
            return None
        if len(value) != layers:
            raise FormatError(f"metadata key {self.key(name)}: expected {layers} values, found {len(value)}")
        return [bool(v) for v in value]

    def check_tokens(self, rows: int) -> None:
        """FormatError if the tokenizer has ids beyond the `rows` of the embedding table; fewer are fine (padding)."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if _is_list(tokens) and len(tokens) > rows:
            raise FormatError(f"the tokenizer has {len(tokens)} tokens, but tensor token_embd.weight only {rows} rows")

    def factors(self, name: str, size: int) -> list[float] | None:
        """The values of a small float tensor that recording needs (rope factors), or None if the file has none."""
        if not self.tensors.has_tensor(name):
            return None
        tensor = self.tensors.tensor(name)
        if tuple(tensor.shape) != (size,):
            raise FormatError(f"tensor {name}: expected shape ({size},), found {tuple(tensor.shape)}")
        if tensor.type.name != "F32":
            raise FormatError(f"tensor {name}: expected type F32, found {tensor.type.name}")
        values = array("f", bytes(tensor.buffer))
        if sys.byteorder == "big":
            values.byteswap()
        for i, value in enumerate(values):
            if not (math.isfinite(value) and value > 0):
                raise FormatError(f"tensor {name}: expected factors > 0, found {value!r} at {i}")
        return list(values)

    def _value(self, name: str, default: Any) -> Any:
        value = self.metadata.get(self.key(name), default)
        if value is REQUIRED:
            raise FormatError(
                f"metadata key {self.key(name)} is missing",
                f"a {self.architecture} model needs it; the file may be damaged or made by a broken converter",
            )
        return value

    def _uniform(self, name: str, values: Sequence[Any]) -> Any:
        distinct = set(values)
        if len(distinct) != 1:
            raise UnsupportedError(
                f"metadata key {self.key(name)} differs between layers ({sorted(distinct, key=repr)[:4]})",
                f"architecture {self.architecture} is supported with equal layers only",
            )
        return distinct.pop()


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return hasattr(value, "__len__") and hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping)
