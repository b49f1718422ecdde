"""Small GGUF files for tests: well-formed ones through the gguf package, odd ones byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFEndian, GGUFValueType

# A tensor: float32 `[rows, cols]`, or the uint8 blocks `[rows, bytes of a row]` of a quantized one and its type.
TensorData = np.ndarray | tuple[np.ndarray, str]


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorData],
    *,
    architecture: str = "llama",
    alignment: int | None = None,
    big_endian: bool = False,
    tensors_per_part: int = 0,
) -> Path:
    """Writes a file. Values get the type that gguf-py infers, or the one given as `(value, "UINT16")`.

    `tensors_per_part` > 0 splits the file; returns the path of the file, or of its first part.
    """
    endian = GGUFEndian.BIG if big_endian else GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, architecture, endianess=endian, split_max_tensors=tensors_per_part)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        if isinstance(value, tuple):
            writer.add_key_value(key, value[0], GGUFValueType[value[1]])
        else:
            writer.add_key_value(key, value, GGUFValueType.get_type(value))
    for name, data in tensors.items():
        if isinstance(data, tuple):
            writer.add_tensor(name, data[0], raw_dtype=GGMLQuantizationType[data[1]])
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if not tensors_per_part or len(tensors) <= tensors_per_part:
        return path
    return path.with_name(f"{path.stem}-00001-of-{-(-len(tensors) // tensors_per_part):05}.gguf")


def string(text: bytes) -> bytes:
    """A GGUF string: its length and its bytes."""
    return struct.pack("<Q", len(text)) + text


def pair(key: str, kind: GGUFValueType, value: bytes) -> bytes:
    """A key-value pair, the value already packed."""
    return string(key.encode()) + struct.pack("<I", kind) + value


def array(kind: GGUFValueType, count: int, items: bytes) -> bytes:
    """The value of an array, its items already packed."""
    return struct.pack("<IQ", kind, count) + items


def tensor_info(name: str, dimensions: Sequence[int], kind: int, offset: int) -> bytes:
    """A tensor's description; `dimensions` in GGUF's order, columns first."""
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return string(name.encode()) + sizes + struct.pack("<IQ", kind, offset)


def raw_gguf(pairs: Sequence[bytes] = (), infos: Sequence[bytes] = (), data: bytes = b"", version: int = 3) -> bytes:
    """A whole file of parts packed with the functions above, its data aligned to 32 bytes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data
