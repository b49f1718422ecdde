"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them.

Per matrix of `bits` 2, 3, 4 or 8, all little-endian streams of fields of that many bits:

    qweight   I32 [columns * bits / 32, rows]   codes; each column of this array is a stream of a row's codes
    qzeros    I32 [groups, rows * bits / 32]    zero points; each row of this array is a stream
    scales    F16 [groups, rows]
    g_idx     I32 [columns]                     the group of each column; without it, groups follow one another

    weight = scale * (code - zero point)

In the first version of the format ("gptq") zero points are stored less one, modulo 2^bits; in "gptq_v2" as they are.
(AutoGPTQ, nn_modules/qlinear/qlinear_cuda_old.py; GPTQModel, utils/model.py, convert_gptq_v1_to_v2_format.)
"""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np

from localinfer.checkpoints.quantized.extras import note, set_aside
from localinfer.checkpoints.quantized.grid import checked_groups, integer_matrix, whole_groups
from localinfer.checkpoints.quantized.matrix import Quantized, QuantizedReader
from localinfer.checkpoints.quantized.settings import Settings
from localinfer.checkpoints.quantized.stored import Array, Floats, as_bytes, damaged, expect, fields, integers, scales
from localinfer.errors import UnsupportedError
from localinfer.formats.safetensors import SafetensorsFolder, StoredTensor

ORDER_NOTE = (
    "{count} matrices have columns that were quantized in another order than they lie (desc_act): they are kept as "
    "floats of 32 bits, which is exact, but takes 8 times the room of 4 bits, and as much longer"
)
_BITS = (2, 3, 4, 8)


def read(settings: Settings, tensors: SafetensorsFolder) -> QuantizedReader:
    """The reader of a GPTQ checkpoint; see `reader_for`."""
    form = settings.text("checkpoint_format") or ("marlin" if settings.flag("is_marlin_format") else "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise UnsupportedError(
            f"{settings.path}: the checkpoint has the format {form!r}, which is not read",
            "gptq and gptq_v2 are: look for such a version of the model",
        )
    reader = QuantizedReader()
    for name, qweight in tensors.tensors.items():
        if not name.endswith(".qweight"):
            continue
        module = name.removesuffix(".qweight")
        bits, group = _bits_and_group(settings, module)
        parts = {part: tensors.tensor(f"{module}.{part}") for part in ("qzeros", "scales")}
        if tensors.has_tensor(f"{module}.g_idx"):
            parts["g_idx"] = tensors.tensor(f"{module}.g_idx")
        reader.weights[f"{module}.weight"] = _matrix(qweight, parts, bits, group, form == "gptq")
        reader.used |= {name, *(part.name for part in parts.values())}
    reordered = sum(weight.type.name == "F32" for weight in reader.weights.values())
    if reordered:
        note(reader, ORDER_NOTE.format(count=reordered))
    set_aside(reader, tensors)
    return reader


def _bits_and_group(settings: Settings, module: str) -> tuple[int, int]:
    """Bits and group size of a module: of the first pattern in `dynamic` that fits its name, else of the model."""
    own: dict[str, Any] = {}
    dynamic = settings.object("dynamic")
    for pattern in dynamic.values if dynamic else ():
        assert dynamic is not None
        changes = dynamic.object(pattern)
        try:
            fits = re.match(pattern.removeprefix("+:").removeprefix("-:"), module)
        except re.error as error:
            raise settings.error(f"dynamic has the pattern {pattern!r}, which is none: {error}") from error
        if fits:
            own = dict(changes.values) if changes else {}
            break
    merged = Settings({**settings.values, **own}, settings.path, settings.where)
    bits, group = merged.number("bits", 4), merged.number("group_size", 128)
    if bits not in _BITS:
        raise UnsupportedError(f"{settings.path}: GPTQ with {bits} bits is not read; {_BITS} are")
    return bits, group


def _matrix(qweight: StoredTensor, parts: dict[str, StoredTensor], bits: int, group: int, less_one: bool) -> Quantized:
    expect(qweight, ("I32",))
    if len(qweight.shape) != 2 or 0 in qweight.shape or qweight.shape[0] % (bits if bits == 3 else 1):
        raise damaged(qweight, f"has the shape {qweight.shape}, which holds no matrix of {bits} bits")
    columns, rows = qweight.shape[0] * 32 // bits, qweight.shape[1]
    group, groups = whole_groups(group, columns, f"{qweight.path}: tensor {qweight.name}")
    if rows * bits % 32:
        raise damaged(qweight, f"has {rows} rows, whose zero points of {bits} bits fill no whole words")
    expect(parts["qzeros"], ("I32",), (groups, rows * bits // 32))
    expect(parts["scales"], ("F16", "BF16", "F32"), (groups, rows))
    words, zero_words = integers(qweight), integers(parts["qzeros"])
    offset = 128 if bits == 8 else 0  # I8 codes are signed
    kind: Literal["I4", "I8"] = "I8" if bits == 8 else "I4"

    def codes(start: int, count: int) -> Array:
        return _signed(fields(as_bytes(words[:, start : start + count].T), bits, columns), offset)

    def nibbles(start: int, count: int) -> Array:
        return as_bytes(words[:, start : start + count].T)

    def zeros(start: int, count: int) -> Array:
        stored = fields(as_bytes(zero_words), bits, rows)[:, start : start + count].T
        return _signed(stored + np.uint8(1) & np.uint8((1 << bits) - 1) if less_one else stored, offset)

    def group_scales(start: int, count: int) -> Floats:
        return scales(parts["scales"])[:, start : start + count].T

    group_of = checked_groups(parts["g_idx"], columns, groups) if "g_idx" in parts else None
    stored = nibbles if bits == 4 else None
    return integer_matrix((rows, columns), kind, codes, group_scales, zeros, group, group_of, stored)


def _signed(codes: Array, offset: int) -> Array:
    return (codes ^ np.uint8(offset)).view(np.int8) if offset else codes
