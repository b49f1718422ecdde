"""The table of tensor names: what the hub's checkpoints call a weight, what GGUF calls it, and how they differ.

The facts are those of llama.cpp's converter (conversion/ and gguf-py/gguf/tensor_mapping.py), since models/ reads what
it writes.
"""

from __future__ import annotations

import re
from enum import Enum

# Module of a checkpoint -> tensor of a GGUF file; ".weight" and ".bias" stay.
_MODEL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
# The same within a layer: "model.layers.3.mlp.up_proj" is "blk.3.ffn_up".
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",  # the gate's rows come first
    "mlp.down_proj": "ffn_down",
}
# "post_attention_layernorm" is the norm before the feed-forward part where that has no norm of its own ...
_PRE_NORMS = {"post_attention_layernorm": "ffn_norm"}
# ... and the norm of attention's result where there are norms around each part.
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

# The same of encoders, whose class may stand in front: "bert.encoder.layer.3.output.dense" is "blk.3.ffn_down".
_ENCODER = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
_ENCODER_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_OLD_KINDS = {"gamma": "weight", "beta": "bias"}  # of norms

NORMS_AROUND = {"gemma2", "gemma3", "olmo2"}
# Rows i and i + n/2 of each head of n rows of q and k become rows 2i and 2i + 1: rotary pairs are adjacent columns.
PAIRS_ADJACENT = {"llama", "smollm3", "granite"}
# Norms are stored as the difference from 1.
NORMS_LESS_ONE = {"gemma2", "gemma3"}

# What old checkpoints hold beside weights: constants that follow from the configuration.
_CONSTANTS = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.masked_bias|attn\.bias)|(bert\.)?embeddings\.position_ids")
# Models that also see keep their language model under one of these.
_TEXT_PREFIXES = ("model.language_model.", "language_model.model.")
_OTHER_SENSES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector|vision_model|audio_tower)\..*")
_IN_ENCODER = re.compile(r"encoder\.layer\.(\d{1,6})\.(.+)", re.DOTALL)
_IN_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.(.+)", re.DOTALL)


class Change(Enum):
    """How the bytes in a GGUF file differ from those in the checkpoint."""

    NONE = "none"
    ADJACENT_PAIRS = "rows of each head in another order"
    PLUS_ONE = "one added"


def text_name(name: str) -> str:
    """The name that a weight has in a checkpoint of the language model alone."""
    name = name.removeprefix("bert.")
    for prefix in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.") if name.startswith("language_model.lm_head.") else name


def is_other_sense(name: str) -> bool:
    """Whether the weight is of the part of a model that sees or hears."""
    return _OTHER_SENSES.fullmatch(name) is not None


def is_constant(name: str) -> bool:
    """Whether the tensor is no weight, but a table that every program computes for itself."""
    return _CONSTANTS.fullmatch(name) is not None


def gguf_name(name: str, architecture: str) -> str | None:
    """The GGUF name of a weight of the language model; None for one that is not known."""
    module, dot, kind = name.rpartition(".")
    if architecture == "bert":
        return _encoder_name(module, _OLD_KINDS.get(kind, kind))
    if kind not in ("weight", "bias"):
        return None
    if module in _MODEL:
        return _MODEL[module] + dot + kind
    if (match := _IN_LAYER.fullmatch(module)) is None:
        return None
    table = _LAYER | (_POST_NORMS if architecture in NORMS_AROUND else _PRE_NORMS)
    found = table.get(match[2])
    return None if found is None else f"blk.{int(match[1])}.{found}.{kind}"


def _encoder_name(module: str, kind: str) -> str | None:
    if kind not in ("weight", "bias"):
        return None
    found = _ENCODER.get(module)
    if (match := _IN_ENCODER.fullmatch(module)) is not None and match[2] in _ENCODER_LAYER:
        found = f"blk.{int(match[1])}.{_ENCODER_LAYER[match[2]]}"
    return None if found is None else f"{found}.{kind}"


def change_of(gguf: str, architecture: str) -> Change:
    """What is to be done to the weight of that GGUF name."""
    module = gguf.rpartition(".")[0].rpartition(".")[2]
    if architecture in PAIRS_ADJACENT and module in ("attn_q", "attn_k"):
        return Change.ADJACENT_PAIRS
    if architecture in NORMS_LESS_ONE and module.endswith("norm"):
        return Change.PLUS_ONE
    return Change.NONE
