"""The paged cache of one attention layer: `kv_blocks * block_size` slots, each for one token."""

from __future__ import annotations

import torch
from torch import Tensor

from localinfer.kernels.base import KvType
from localinfer.kernels.program import KvLayer

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}


class Store:
    """Keys or values in a cache's type: `[slots, heads, head_dim]`.

    int8 has one float32 scale per token and head: scale = max|x| / 127, q = round(x * (127 / max|x|)), ties to even.
    """

    def __init__(self, slots: int, layer: KvLayer, kind: KvType) -> None:
        self._data = torch.zeros((slots, layer.n_kv_heads, layer.head_dim), dtype=DTYPES[kind])
        self._scales = torch.zeros((slots, layer.n_kv_heads, 1)) if kind == "int8" else None

    def write(self, slots: Tensor, x: Tensor) -> None:
        """x `[tokens, heads * head_dim]` float32, one slot per token."""
        heads = x.view(-1, *self._data.shape[1:])
        if self._scales is not None:
            largest = heads.abs().amax(-1, keepdim=True)
            heads = torch.round(heads * torch.where(largest > 0, 127.0 / largest, 0.0))
            self._scales[slots] = largest / 127.0
        self._data[slots] = heads.to(self._data.dtype)

    def read(self, slots: Tensor) -> Tensor:
        """float32 `[slots, heads, head_dim]`."""
        values = self._data[slots].float()
        return values if self._scales is None else values * self._scales[slots]
