"""Stored tensors as arrays, checked: shapes, types, and numbers that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.safetensors import StoredTensor

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_DAMAGED = "the checkpoint is damaged, or was not written as its format says"
# Larger scales would make weights of small floats (up to 448) infinite.
_LARGEST_SCALE = np.float32(2.0**119)
_INTEGERS = {"I8": "<i1", "U8": "<u1", "I16": "<i2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}


def damaged(tensor: StoredTensor, what: str) -> FormatError:
    return FormatError(f"{tensor.path}: tensor {tensor.name} {what}", _DAMAGED)


def expect(tensor: StoredTensor, dtypes: Sequence[str], shape: tuple[int, ...] | None = None) -> StoredTensor:
    """The tensor, if it has one of the types, and that shape."""
    if tensor.dtype not in dtypes:
        raise damaged(tensor, f"holds numbers of type {tensor.dtype}, not {' or '.join(dtypes)}")
    if shape is not None and tensor.shape != shape:
        raise damaged(tensor, f"has the shape {tensor.shape} instead of {shape}")
    return tensor


def integers(tensor: StoredTensor) -> Array:
    """A tensor of an integer type, as it lies in the file."""
    expect(tensor, tuple(_INTEGERS))
    return np.frombuffer(tensor.buffer, _INTEGERS[tensor.dtype]).reshape(tensor.shape)


def raw_bytes(tensor: StoredTensor) -> Array:
    """A tensor of 8-bit numbers of any type, as unsigned bytes."""
    return np.frombuffer(tensor.buffer, np.uint8).reshape(tensor.shape)


def scales(tensor: StoredTensor) -> Floats:
    """A tensor of scales as float32. FormatError if one is not finite, or beyond 2^119."""
    match tensor.dtype:
        case "F32":
            values = np.frombuffer(tensor.buffer, "<f4")
        case "F16":
            values = np.frombuffer(tensor.buffer, "<f2").astype(np.float32)
        case "BF16":
            values = (np.frombuffer(tensor.buffer, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "F8_E8M0":  # 2^(e - 127); 255 is NaN
            exponents = raw_bytes(tensor).astype(np.int32)
            values = np.where(exponents == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponents - 127))
        case _:
            raise UnsupportedError(f"{tensor.path}: tensor {tensor.name} holds scales of type {tensor.dtype}")
    if not (np.abs(values) <= _LARGEST_SCALE).all():
        raise damaged(tensor, "has scales that are infinite, too large, or no numbers")
    return values.astype(np.float32, copy=False).reshape(tensor.shape)


def fields(data: Array, bits: int, count: int) -> Array:
    """Unsigned fields of `bits` bits that follow one another, lowest first: uint8 [rows, bytes] to [rows, count]."""
    if bits == 8:
        return data[:, :count]
    if bits in (2, 4):
        per_byte = 8 // bits
        out = np.empty((len(data), data.shape[1] * per_byte), np.uint8)
        for i in range(per_byte):
            out[:, i::per_byte] = data >> np.uint8(bits * i) & np.uint8((1 << bits) - 1)
        return out[:, :count]
    single = np.unpackbits(data, axis=1, count=bits * count, bitorder="little").reshape(len(data), count, bits)
    return np.packbits(single, axis=2, bitorder="little")[:, :, 0]


def padded_fields(words: Array, bits: int, count: int) -> Array:
    """As `fields`, but no field crosses from one word to the next: uint32 [rows, words] to uint8 [rows, count]."""
    shifts = np.arange(0, 32 - bits + 1, bits, dtype=np.uint32)
    parts = (words[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return parts.astype(np.uint8).reshape(len(words), -1)[:, :count]


def as_bytes(words: Array) -> Array:
    """32-bit words [rows, words] as the bytes [rows, 4 words] that they are in a file."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
