"""Metadata and tensor shapes of small models, without weights: for what looks at programs only."""

from __future__ import annotations

from typing import Any

from fake_tensors import FakeTensors


def llama_shapes(layers: int = 2) -> tuple[dict[str, Any], FakeTensors]:
    """A llama of width 64 with two query heads per key head."""
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 256,
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (128, 64), "output_norm.weight": (64,)}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (64,),
                "attn_q": (64, 64),
                "attn_k": (32, 64),
                "attn_v": (32, 64),
                "attn_output": (64, 64),
                "ffn_norm": (64,),
                "ffn_gate": (96, 64),
                "ffn_up": (96, 64),
                "ffn_down": (64, 96),
            }.items()
        }
    return metadata, FakeTensors(shapes)
