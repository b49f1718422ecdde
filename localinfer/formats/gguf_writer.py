"""Writer of GGUF files, version 3, tensor by tensor, so that nothing but the header is ever in memory.

Where everything lies is known before the first tensor is made: a `GGUFLayout` says it, and a `GGUFWriter` puts bytes
there, in any order. `gguf.py` describes the format.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from localinfer.errors import LocalInferError
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
    """Where everything of a file lies.

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


class GGUFWriter:
    """Writes a file by its layout. Close it, or use it in a `with` statement.

    A file that exists is gone on with: what lies in it stays. LocalInferError if it cannot be written, or if the disk
    has not enough room: the room of the whole file is taken at once.
    """

    def __init__(self, path: Path, layout: GGUFLayout) -> None:
        self.path = path
        self.layout = layout
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _explained(path, error) from error
        try:
            os.truncate(self._file, layout.size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, layout.size)
        except OSError as error:
            self.close()
            raise _explained(path, error) from error
        self.write_header(layout)

    def write_header(self, layout: GGUFLayout) -> None:
        """Writes the header again, with other values of the same length."""
        if len(layout.header) != len(self.layout.header):
            raise ValueError(f"a header of {len(layout.header)} bytes cannot replace one of {len(self.layout.header)}")
        self.layout = layout
        self._write(layout.header, 0)

    def write(self, name: str, at: int, data: bytes | memoryview) -> None:
        """Writes bytes of a tensor, `at` bytes from its start."""
        self._write(data, self.layout.offsets[name] + at)

    def read(self, name: str, at: int, count: int) -> bytes:
        """Bytes of a tensor that were written before."""
        return os.pread(self._file, count, self.layout.offsets[name] + at)

    def flush(self) -> None:
        """Waits until everything lies on the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _explained(self.path, error) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data).cast("B")
        try:
            while view:
                count = os.pwrite(self._file, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise _explained(self.path, error) from error


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


def _explained(path: Path, error: OSError) -> LocalInferError:
    hint = "free some space, or write to another disk with --output" if error.errno == 28 else ""
    return LocalInferError(f"cannot write {path}: {error.strerror}", hint)
