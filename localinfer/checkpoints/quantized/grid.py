"""Matrices on a grid: codes with scales, and perhaps zero points, of rectangles of weights.

The formats differ in how they store codes and in which rectangle shares a scale; what is here knows only rectangles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from localinfer.checkpoints.quantized.encode import fitting_type, integer_rows, small_float_rows
from localinfer.checkpoints.quantized.matrix import Quantized
from localinfer.checkpoints.quantized.stored import Array, Floats, damaged, raw_bytes, scales
from localinfer.errors import FormatError
from localinfer.formats.safetensors import StoredTensor

ReadRows = Callable[[int, int], Array]  # (first row, rows) to an array [rows, columns or groups]


def integer_matrix(
    shape: tuple[int, int],
    kind: Literal["I4", "I8"],
    codes: ReadRows,
    scales: Callable[[int, int], Floats],
    zeros: ReadRows,
    group: int,
    group_of: Array | None = None,
    nibbles: ReadRows | None = None,
) -> Quantized:
    """A matrix of integers; the arguments are as `encode.integer_rows` takes them.

    Groups are of `group` columns each, in order, unless `group_of` [columns] says otherwise: then it becomes F32.
    `nibbles`, if it is given, reads codes of I4 two to a byte, as they are stored.
    """
    in_order = np.arange(shape[1]) // group
    if group_of is None or np.array_equal(group_of, in_order):
        type, group_of = fitting_type(kind, shape[1], group), in_order
    else:
        type = fitting_type(kind, shape[1], 1)
    columns = group_of
    read_codes = nibbles if nibbles and type.name.startswith("I4") else codes

    def write_rows(start: int, rows: int) -> memoryview:
        parts = read_codes(start, rows), scales(start, rows), zeros(start, rows)
        return integer_rows(type, *parts, columns)

    return Quantized(type, shape, write_rows)


def small_float_matrix(weight: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None) -> Quantized:
    """A matrix of E4M3 numbers with a scale per tensor, row, or rectangle of `block` (rows, columns)."""
    shape = matrix_shape(weight)
    columns = shape[1]
    read_scales, group = scales_of(scale, shape, block)
    group_of = np.arange(columns) // group
    type = fitting_type("F8", columns, group)
    codes = raw_bytes(weight)

    def write_rows(start: int, count: int) -> memoryview:
        part = codes[start : start + count]
        if (part & np.uint8(0x7F) == 0x7F).any():
            raise damaged(weight, "has weights that are no numbers (NaN)")
        return small_float_rows(type, part, read_scales(start, count), group_of)

    return Quantized(type, shape, write_rows)


def scales_of(
    tensor: StoredTensor, shape: tuple[int, int], block: tuple[int, int] | None
) -> tuple[Callable[[int, int], Floats], int]:
    """Reads scales by rows, and how many columns share one.

    One value serves all weights; one per row, that row; else `block` (rows, columns) says which rectangle each serves,
    and the tensor has one for each, the last ones perhaps of smaller rectangles.
    """
    tall, wide = rectangle_of(tensor, shape, block)
    heights = -(-shape[0] // tall)

    def read(start: int, rows: int) -> Floats:
        values = scales(tensor).reshape(heights, -1)
        return values[np.arange(start, start + rows) // tall]

    return read, wide


def rectangle_of(tensor: StoredTensor, shape: tuple[int, int], block: tuple[int, int] | None) -> tuple[int, int]:
    """The rectangle (rows, columns) that shares one value of a tensor of scales or zero points."""
    rows, columns = shape
    # Some have 1s between: [heights, 1, widths, 1].
    held = tuple(size for size in tensor.shape if size != 1)
    if block is not None:
        heights, widths = -(-rows // block[0]), -(-columns // block[1])
        if held == tuple(size for size in (heights, widths) if size != 1):
            return min(block[0], rows), min(block[1], columns)
        raise damaged(
            tensor, f"has the shape {tensor.shape}, not {(heights, widths)} for blocks of {block[0]} x {block[1]}"
        )
    if held == ():
        return rows, columns
    if held == (rows,):
        return 1, columns
    raise damaged(tensor, f"has the shape {tensor.shape}, neither one value nor one for each of {rows} rows")


def matrix_shape(tensor: StoredTensor) -> tuple[int, int]:
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise damaged(tensor, f"has the shape {tensor.shape}, which is no matrix")
    return tensor.shape[0], tensor.shape[1]


def checked_groups(tensor: StoredTensor, columns: int, groups: int) -> Array:
    """The group of each column, from a stored tensor of them."""
    if tensor.shape != (columns,):
        raise damaged(tensor, f"has the shape {tensor.shape} instead of {(columns,)}")
    if tensor.dtype not in ("I32", "I64"):
        raise damaged(tensor, f"holds numbers of type {tensor.dtype}, not I32")
    values = np.frombuffer(tensor.buffer, "<i4" if tensor.dtype == "I32" else "<i8")
    if values.min() < 0 or values.max() >= groups:
        raise damaged(tensor, f"names groups from {values.min()} to {values.max()}, but there are {groups}")
    return values


def whole_groups(group: int, columns: int, where: str) -> tuple[int, int]:
    """Columns in a group, and groups. A group size of -1 is the whole row."""
    if group == -1:
        group = columns
    if group <= 0 or columns % group:
        raise FormatError(f"{where}: rows of {columns} weights do not divide into groups of {group}")
    return group, columns // group
