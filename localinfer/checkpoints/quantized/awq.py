"""AWQ checkpoints in the "gemm" layout of AutoAWQ, 4 bits.

    qweight   I32 [columns, rows / 8]   codes of 8 rows in one word
    qzeros    I32 [groups, rows / 8]    zero points, likewise
    scales    F16 [groups, rows]

    weight = scale * (code - zero point)

The fields of a word, lowest first, are rows 0, 2, 4, 6, 1, 3, 5, 7 of its eight (AutoAWQ, utils/packing_utils.py).
"""

from __future__ import annotations

import numpy as np

from localinfer.checkpoints.quantized.extras import set_aside
from localinfer.checkpoints.quantized.grid import integer_matrix, whole_groups
from localinfer.checkpoints.quantized.matrix import Quantized, QuantizedReader
from localinfer.checkpoints.quantized.settings import Settings
from localinfer.checkpoints.quantized.stored import Array, Floats, as_bytes, damaged, expect, fields, integers, scales
from localinfer.errors import UnsupportedError
from localinfer.formats.safetensors import SafetensorsFolder, StoredTensor

_FIELD_OF_ROW = (0, 4, 1, 5, 2, 6, 3, 7)


def read(settings: Settings, tensors: SafetensorsFolder) -> QuantizedReader:
    """The reader of an AWQ checkpoint; see `reader_for`."""
    version = settings.text("version", "gemm").lower()
    if version != "gemm":
        raise UnsupportedError(
            f"{settings.path}: the checkpoint has AWQ's layout {version!r}, which is not read",
            "look for one with version gemm, which nearly all have",
        )
    bits = settings.number("bits", settings.number("w_bit", 4))
    if bits != 4:
        raise UnsupportedError(f"{settings.path}: AWQ with {bits} bits is not read; 4 are")
    group = settings.number("group_size", settings.number("q_group_size", 128))
    reader = QuantizedReader()
    for name, qweight in tensors.tensors.items():
        if not name.endswith(".qweight"):
            continue
        module = name.removesuffix(".qweight")
        qzeros, scale = tensors.tensor(f"{module}.qzeros"), tensors.tensor(f"{module}.scales")
        reader.weights[f"{module}.weight"] = _matrix(qweight, qzeros, scale, group)
        reader.used |= {name, qzeros.name, scale.name}
    set_aside(reader, tensors)
    return reader


def _matrix(qweight: StoredTensor, qzeros: StoredTensor, scale: StoredTensor, group: int) -> Quantized:
    expect(qweight, ("I32",))
    if len(qweight.shape) != 2 or 0 in qweight.shape:
        raise damaged(qweight, f"has the shape {qweight.shape}, which is no matrix")
    columns, rows = qweight.shape[0], 8 * qweight.shape[1]
    group, groups = whole_groups(group, columns, f"{qweight.path}: tensor {qweight.name}")
    expect(qzeros, ("I32",), (groups, rows // 8))
    expect(scale, ("F16", "BF16", "F32"), (groups, rows))
    words, zero_words = integers(qweight), integers(qzeros)

    def group_scales(start: int, count: int) -> Floats:
        return scales(scale)[:, start : start + count].T

    return integer_matrix(
        (rows, columns),
        "I4",
        lambda start, count: _rows(words, start, count),
        group_scales,
        lambda start, count: _rows(zero_words, start, count),
        group,
    )


def _rows(words: Array, start: int, count: int) -> Array:
    """Rows of codes, uint8 [count, words' first dimension]."""
    first, last = start // 8, -(-(start + count) // 8)
    stored = fields(as_bytes(words[:, first:last]), 4, 8 * (last - first)).reshape(len(words), -1, 8)
    in_order = stored[:, :, np.array(_FIELD_OF_ROW)].reshape(len(words), -1)
    return np.ascontiguousarray(in_order.T)[start - 8 * first :][:count]
