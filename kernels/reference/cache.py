"""The paged cache of one attention layer: `kv_blocks * block_size` slots, each for one token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from localinfer.kernels.base import KvType
from localinfer.kernels.program import KvLayer

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}


class Store:
    """Keys or values in a cache's type: `[slots, heads, head_dim]`.

    f16 clamps to its largest numbers: an infinity times a probability of 0 would be NaN. int8 has one float32 scale per
    token and head: scale = max|x| / 127, q = round(x * (127 / max|x|)), ties to even; both 0 where max|x| < 2⁻¹¹⁹ (the
    factor may overflow), and a NaN for scale where x is not finite.
    """

    def __init__(self, slots: int, layer: KvLayer, kind: KvType) -> None:
        self._data = torch.zeros((slots, layer.n_kv_heads, layer.head_dim), dtype=DTYPES[kind])
        self._scales = torch.zeros((slots, layer.n_kv_heads, 1)) if kind == "int8" else None

    def write(self, slots: Tensor, x: Tensor) -> None:
        """x `[tokens, heads * head_dim]` float32, one slot per token."""
        heads = x.view(-1, *self._data.shape[1:])
        if self._scales is not None:
            largest = heads.abs().amax(-1, keepdim=True)
            regular = largest.isfinite() & (largest >= 2.0**-119)
            heads = torch.where(regular, torch.round(heads * (127.0 / largest)), 0.0)
            scales = torch.where(largest < 2.0**-119, 0.0, math.nan)
            self._scales[slots] = torch.where(regular, largest / 127.0, scales)
        elif self._data.dtype == torch.float16:
            heads = heads.clamp(-65504.0, 65504.0)
        self._data[slots] = heads.to(self._data.dtype)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Slots to slots, as they are stored."""
        self._data[target] = self._data[source]
        if self._scales is not None:
            self._scales[target] = self._scales[source]

    def read(self, slots: Tensor) -> Tensor:
        """float32 `[slots, heads, head_dim]`."""
        values = self._data[slots].float()
        return values if self._scales is None else values * self._scales[slots]

    @property
    def is_int8(self) -> bool:
        return self._scales is not None

    def scales(self, slots: Tensor) -> Tensor | None:
        """float32 `[slots, heads]` in int8, else None."""
        return None if self._scales is None else self._scales[slots, :, 0]
