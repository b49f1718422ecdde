"""Where everything lies in a GGUF file, version 3, that is to be written. `gguf.py` describes the format."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localinfer.formats.metadata import Value
from localinfer.kernels.host.strings import StringArray
from localinfer.kernels.types import TensorType

DEFAULT_ALIGNMENT = 32
_VERSION = 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64 = 4, 5, 6, 7, 8, 9, 10, 11
# Value types by the typecode of an array.
_ITEM_TYPES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "Q": 10, "q": 11, "d": 12}


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of a tensor; `shape` is `(rows, cols)`, as everywhere but in the file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.shape[-1])

    @property
    def rows(self) -> int:
        rows = 1
        for dimension in self.shape[:-1]:
            rows *= dimension
        return rows

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


class GGUFLayout:
    """The layout of a file, for a FileWriter.

    header      all bytes before the data section, its padding included
    offsets     of each tensor, from the start of the file
    size        of the file: like llama.cpp's, the last tensor is padded as well

    `pairs` are metadata values as `encode_value` or `GGUFFile.encoded` give them.
    """

    def __init__(self, pairs: Mapping[str, bytes], tensors: Sequence[TensorInfo]) -> None:
        alignment = DEFAULT_ALIGNMENT
        if "general.alignment" in pairs:
            (alignment,) = struct.unpack("<I", pairs["general.alignment"][4:8])
        parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(pairs))]
        for key, value in pairs.items():
            parts += [_string(key.encode()), value]
        position = 0
        relative: dict[str, int] = {}
        for tensor in tensors:
            dimensions = tensor.shape[::-1]
            relative[tensor.name] = position
            parts.append(_string(tensor.name.encode()))
            parts.append(struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
            parts.append(struct.pack("<IQ", tensor.type.id, position))
            position += _aligned(tensor.nbytes, alignment)
        header = b"".join(parts)
        self.header = header + bytes(_aligned(len(header), alignment) - len(header))
        self.offsets = {name: len(self.header) + offset for name, offset in relative.items()}
        self.size = len(self.header) + position


def encode_value(value: Value | list[str]) -> bytes:
    """A metadata value with its value type before it.

    An integer is a uint32 if it fits (else int32, uint64, int64), a float a float32: what llama.cpp's converter writes,
    and its loader expects. Arrays keep the type of their items.
    """
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        for kind, code, low, high in (
            (_UINT32, "I", 0, 1 << 32),
            (_INT32, "i", -(1 << 31), 1 << 31),
            (_UINT64, "Q", 0, 1 << 64),
        ):
            if low <= value < high:
                return struct.pack(f"<I{code}", kind, value)
        return struct.pack("<Iq", _INT64, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value.encode())
    return struct.pack("<I", _ARRAY) + _array(value)


def _array(value: Value | list[str]) -> bytes:
    """Type and number of the items, and the items."""
    if isinstance(value, array):
        return struct.pack("<IQ", _ITEM_TYPES[value.typecode], len(value)) + value.tobytes()
    if isinstance(value, memoryview):
        return struct.pack("<IQ", _BOOL, len(value)) + value.tobytes()
    if isinstance(value, StringArray):
        return struct.pack("<IQ", _STRING, len(value)) + b"".join(_string(value.raw(i)) for i in range(len(value)))
    if isinstance(value, list):
        return struct.pack("<IQ", _STRING, len(value)) + b"".join(_string(text.encode()) for text in value)
    if isinstance(value, tuple):
        return struct.pack("<IQ", _ARRAY, len(value)) + b"".join(map(_array, value))
    raise TypeError(f"{type(value).__name__} cannot be a metadata value")


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _aligned(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment
