"""How much memory a model will take, said before any of it is there: from its size and its number of weights.

The plan that `show` makes from the file itself is exact; this one is for deciding what to download.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

CONTEXT = 8192  # what the engine plans for if nobody says otherwise
PROCESS = 60_000_000  # the program itself, tokenizer included
# Keys and values of a token, as float16, in a dense model with grouped queries: 128 KiB at 8 billion weights (Llama 3:
# 32 layers x 8 heads x 128 values x keys and values x 2 bytes), and near the square root of the number elsewhere
# (1B 32 KiB, 14B 160-190 KiB, 32B 256 KiB, 70B 320 KiB).
KV_BYTES, KV_WEIGHTS = 131_072, 8e9

# Average over the tensors of an 8B Llama, as llama.cpp's documentation of its types lists them.
BITS_PER_WEIGHT = {
    "IQ1_S": 2.0, "IQ1_M": 2.15, "TQ1_0": 2.0, "TQ2_0": 2.4, "IQ2_XXS": 2.38, "IQ2_XS": 2.59, "IQ2_S": 2.74,
    "IQ2_M": 2.93, "Q2_K": 3.16, "Q2_K_S": 2.97, "Q2_K_L": 3.3, "IQ3_XXS": 3.25, "IQ3_XS": 3.5, "IQ3_S": 3.66,
    "IQ3_M": 3.76, "Q3_K_S": 3.64, "Q3_K_M": 4.0, "Q3_K_L": 4.3, "Q3_K_XL": 4.4, "IQ4_XS": 4.46, "IQ4_NL": 4.69,
    "MXFP4": 4.5, "MXFP4_MOE": 4.5, "NVFP4": 4.8, "Q4_0": 4.66, "Q4_1": 5.1, "Q4_K_S": 4.67, "Q4_K_M": 4.89,
    "Q4_K_L": 5.0, "Q4_K_XL": 5.0, "Q5_0": 5.6, "Q5_1": 6.0, "Q5_K_S": 5.57, "Q5_K_M": 5.7, "Q5_K_L": 5.8,
    "Q5_K_XL": 5.8, "Q6_K": 6.56, "Q6_K_L": 6.7, "Q6_K_XL": 7.0, "Q8_0": 8.5, "Q8_K_XL": 9.5,
    "F16": 16.0, "BF16": 16.0, "F32": 32.0,
}  # fmt: skip


class Estimate(NamedTuple):
    """Bytes of memory: the weights, keys and values of a context of `context` tokens, all together."""

    weights: int
    kv: int
    context: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + PROCESS

    def __str__(self) -> str:
        return f"about {self.total / 1e9:.1f} GB with a context of {self.context} tokens"


def estimate(weights: int, parameters: int, context: int = 0) -> Estimate:
    """For `weights` bytes of `parameters` numbers, in a model made for `context` tokens (0 if that is not known)."""
    context = min(CONTEXT, context or CONTEXT)
    per_token = KV_BYTES * (parameters / KV_WEIGHTS) ** 0.5
    return Estimate(weights, int(per_token * context), context)


def size_at(parameters: int, label: str) -> int | None:
    """Bytes of a file with so many weights of a quantization; None if it is not in the table."""
    bits = BITS_PER_WEIGHT.get(label.removeprefix("UD-"))
    return None if bits is None else int(parameters * bits / 8)


def estimate_by_config(rough: Estimate, config: Mapping[str, Any]) -> Estimate:
    """`rough` with the keys and values that a config.json of the Hugging Face hub tells.

    Two float16 numbers for every layer, head of keys and element of a head. KeyError, TypeError or ZeroDivisionError if
    the config has another form.
    """
    text = {**config, **config.get("text_config", {})}  # of a model that also sees
    heads = text["num_attention_heads"]
    kv_heads = text.get("num_key_value_heads") or heads
    width = text.get("head_dim") or text["hidden_size"] // heads
    context = min(CONTEXT, text.get("max_position_embeddings") or CONTEXT)
    return Estimate(rough.weights, 2 * 2 * text["num_hidden_layers"] * kv_heads * width * context, context)
