"""Random rows of weights in every tensor type, as they lie in a file."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from localinfer.kernels.types import TYPES

Array = np.ndarray[Any, Any]

# Where in a block its half-precision numbers lie.
HALF_OFFSETS: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
}


def random_rows(type_name: str, rows: int, cols: int, seed: int = 0) -> Array:
    """Random bytes whose scales are finite and of both signs; everything else may be anything."""
    random = np.random.default_rng(seed)
    if type_name in ("F32", "F16", "BF16"):
        values = random.standard_normal((rows, cols)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[type_name]).view(np.uint8).reshape(rows, -1)
    type_ = TYPES[type_name]
    raw = random.integers(0, 256, (rows, cols // type_.block_size, type_.block_bytes), np.uint8)
    if type_name == "F64":
        raw = random.standard_normal((rows, cols, 1)).view(np.uint8)
    if type_name == "MXFP4":
        raw[..., 0] = 100 + raw[..., 0] % 50
    if type_name == "IQ1_M":  # its half is spread over the top bits of four shorts: make it small
        raw[..., 55] &= 0x0F
        raw[..., 55] |= 0x20
    if not type_.in_gguf:  # a float32 scale comes first
        raw[..., :4] = (random.standard_normal((*raw.shape[:2], 1)) * 0.01).astype(np.float32).view(np.uint8)
    if type_name.startswith("F8"):  # half of the blocks have no small numbers, which other code reads
        normal = (np.arange(rows)[:, None] // 8 + np.arange(raw.shape[1])) % 2 == 0
        raw[..., 4:] |= np.where(normal, 8, 0).astype(np.uint8)[..., None]
    for offset in HALF_OFFSETS.get(type_name, ()):
        scales = (random.standard_normal(raw.shape[:2]) * 0.01).astype(np.float16)
        raw[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(rows, -1)
