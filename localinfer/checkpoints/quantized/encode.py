"""Rows of codes, scales and zero points in the form of a tensor type."""

from __future__ import annotations

import numpy as np

from localinfer.checkpoints.quantized.stored import Array, Floats
from localinfer.kernels.reference.dequantize import DEQUANTIZERS
from localinfer.kernels.types import TYPES, TensorType

# Block sizes of each kind of type, the largest first.
_BLOCKS = {"I4": (128, 64, 32), "I8": (128, 32), "F8": (128, 32)}


def fitting_type(kind: str, columns: int, group: int) -> TensorType:
    """The type of a kind ("I4", "I8" or "F8") with the largest block that divides groups and rows; else F32.

    `group` columns, from the first on, share a scale.
    """
    for block in _BLOCKS[kind]:
        if group % block == 0 and columns % block == 0:
            return TYPES[f"{kind}_{block}"]
    return TYPES["F32"]


def integer_rows(type: TensorType, codes: Array, scales: Floats, zeros: Array, group_of: Array) -> memoryview:
    """Rows of weights scale * (code - zero) in the form of an I4, I8 or F32 type.

    codes   [rows, columns], 0 … 15 for I4, -128 … 127 for I8, any small integers for F32; for I4 also
            [rows, columns / 2] bytes of two, the lower half first
    scales  [rows, groups] float32; zeros [rows, groups], in the range of the codes
    group_of  [columns] the group of each column; equal within a block of the type
    """
    if type.name == "F32":
        differences = codes.astype(np.int16) - zeros.astype(np.int16)[:, group_of]
        return _bytes_of(differences.astype(np.float32) * scales[:, group_of])
    of_block = group_of[:: type.block_size]
    blocks = np.empty((len(codes), len(of_block)), DEQUANTIZERS[type.name][0])
    blocks["d"], blocks["z"] = scales[:, of_block], zeros[:, of_block]
    if type.name.startswith("I4") and codes.shape[1] == len(group_of):
        codes = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    blocks["q"] = codes.reshape(*blocks.shape, -1)
    return _bytes_of(blocks)


def small_float_rows(type: TensorType, codes: Array, scales: Floats, group_of: Array) -> memoryview:
    """Rows of weights scale * e in the form of an F8 or F32 type; codes are the bytes of e, none of them NaN."""
    if type.name == "F32":
        return _bytes_of(_SMALL_FLOATS[codes] * scales[:, group_of])
    blocks = np.empty((len(codes), codes.shape[1] // type.block_size), DEQUANTIZERS[type.name][0])
    blocks["d"] = scales[:, group_of[:: type.block_size]]
    blocks["q"] = codes.reshape(*blocks.shape, -1)
    return _bytes_of(blocks)


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _small_floats() -> Floats:
    """The value of each byte as 1 sign, 4 exponent (bias 7) and 3 mantissa bits."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7).astype(np.float32) / 8
    magnitude = np.ldexp(mantissa + (exponent > 0), np.maximum(exponent, 1) - 7)
    values: Floats = np.where(code < 128, magnitude, -magnitude).astype(np.float32)
    return values


_SMALL_FLOATS = _small_floats()
