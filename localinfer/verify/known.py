"""Quantizers that leave no choice: from the same weights they make the same bytes. Who repeats them can compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from localinfer.errors import LocalInferError

Floats = npt.NDArray[np.float32]
Bytes = Any  # a contiguous buffer
Quantizer = Callable[[Floats], Bytes]

# Types that have one public rule, which the gguf package writes out (and llama.cpp follows, without importances).
_PUBLIC = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4")


def quantizers_for(type_name: str) -> dict[str, Quantizer]:
    """Name → function from weights [rows, columns] to the rows' bytes, for a type."""
    found: dict[str, Quantizer] = {}
    if type_name in _CASTS:
        found["rounded to nearest"] = _CASTS[type_name]
    if type_name in _CUTS:
        found["cut off"] = _CUTS[type_name]
    if type_name in _PUBLIC:
        found[f"the public rule of {type_name}"] = _public(type_name)
    own = _own(type_name)
    if own is not None:
        found["localinfer's own search"] = own
    return found


def _f32(weights: Floats) -> Bytes:
    return _bytes(weights)


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    whole: Any = np.ascontiguousarray(array)
    return memoryview(whole).cast("B")


def f16(weights: Floats) -> Bytes:
    """IEEE 754 binary16, ties to even; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return _bytes(weights.astype("<f2"))


def bf16(weights: Floats) -> Bytes:
    """The upper 16 bits of a float32, ties to even; NaN stays NaN."""
    bits = weights.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(64)
    return _bytes(np.where(np.isnan(weights), quiet, rounded).astype("<u2"))


def _bf16_cut(weights: Floats) -> Bytes:
    return _bytes((weights.view(np.uint32) >> np.uint32(16)).astype("<u2"))


_CASTS: dict[str, Quantizer] = {"F32": _f32, "F16": f16, "BF16": bf16}
_CUTS: dict[str, Quantizer] = {"BF16": _bf16_cut}


def _public(type_name: str) -> Quantizer:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    kind = GGMLQuantizationType[type_name]

    def quantized(weights: Floats) -> Bytes:
        with np.errstate(all="ignore"):
            return _bytes(quantize(weights, kind))

    return quantized


def _own(type_name: str) -> Quantizer | None:
    from localinfer.kernels.quantize.quantizer import METHODS, QUANTIZABLE, quantize_rows

    if type_name not in QUANTIZABLE or type_name in _CASTS:
        return None

    def quantized(weights: Floats) -> Bytes:
        try:
            return memoryview(quantize_rows(type_name, weights, method=METHODS["search"], threads=1)).cast("B")
        except LocalInferError:  # no numbers, or too large for the type
            return b""

    return quantized
