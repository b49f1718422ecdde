"""Programs of one op, on inputs that the test chooses: an F32 embedding table holds them, row i for token i."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from localinfer.errors import FormatError
from localinfer.kernels.base import LoadConfig, Tensor
from localinfer.kernels.program import Embed, KvLayer, Matrix, Op, Program, SelectRows, Value, Vector
from localinfer.kernels.types import TYPES

Array = npt.NDArray[Any]


class FileTensors:
    """A TensorSource over one raw file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors: dict[str, Tensor] = {}
        self._size = 0

    def add(self, name: str, values: Array, type_name: str = "F32") -> None:
        kind = TYPES[type_name]
        quantized = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType(kind.id))
        self.add_raw(name, quantized.tobytes(), type_name, values.shape)

    def add_raw(self, name: str, data: bytes, type_name: str, shape: tuple[int, ...]) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        self._tensors[name] = Tensor(
            name, TYPES[type_name], shape, self.path, self._size, len(data), memoryview(bytes(data))
        )
        self._size += len(data)

    def has_tensor(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise FormatError(f"there is no tensor {name}")
        return self._tensors[name]


class OpProgram:
    """Builds `inputs → ops → output` with every output row wanted."""

    def __init__(self, folder: Path, tokens: int) -> None:
        self.tensors = FileTensors(folder / "tensors.bin")
        self.tokens = tokens
        self._ops: list[Op] = []
        self._kv: list[KvLayer] = []
        self._count = 0

    def value(self, width: int, dim: str = "tokens") -> Value:
        self._count += 1
        return Value(self._count, f"v{self._count}", dim, width)  # type: ignore[arg-type]

    def input(self, values: Array) -> Value:
        """A value whose row for token i is `values[i]`."""
        out = self.value(values.shape[1])
        name = f"input {out.name}"
        self.tensors.add(name, values)
        self._ops.append(Embed(out, Matrix(name, *values.shape)))
        return out

    def vector(self, values: Array) -> Vector:
        self._count += 1
        name = f"vector {self._count}"
        self.tensors.add(name, values)
        return Vector(name, len(values))

    def matrix(self, values: Array, type_name: str = "F32") -> Matrix:
        self._count += 1
        name = f"matrix {self._count}"
        self.tensors.add(name, values, type_name)
        return Matrix(name, *values.shape)

    def kv_layer(self, layer: KvLayer) -> int:
        self._kv.append(layer)
        return len(self._kv) - 1

    def add(self, build: Callable[..., Op], width: int, **arguments: Any) -> Value:
        out = self.value(width)
        self._ops.append(build(out=out, **arguments))
        return out

    def add_op(self, op: Op) -> None:
        self._ops.append(op)

    def program(self, result: Value) -> Program:
        out = self.value(result.width, "rows")
        return Program("test", (*self._ops, SelectRows(out, result)), tuple(self._kv), out, result.width, 1 << 20)

    def config(self, **changes: Any) -> LoadConfig:
        settings = {
            "max_tokens": self.tokens,
            "max_rows": self.tokens,
            "max_sequences": 8,
            "context": 1024,
            "kv_blocks": 160,
            "threads": 2,
        }
        return LoadConfig(**(settings | changes))
