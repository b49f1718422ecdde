"""Gemma 2 (arXiv:2408.00118).

Norms before and after each branch, windows in every other layer starting with the first, soft caps on attention
scores and logits, embeddings times sqrt(width), GELU. Norm weights are stored with their 1 already added.
"""

import math
from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import DecoderConfig, read_config, read_windows, record_decoder

LAYERS_27B = 46


def record(source: ModelSource) -> Program:
    config = read_config(source, "halves")
    config = replace(
        gemma_config(config),
        windows=read_windows(source, config.layers, period=2, default=4096),
        attention_scale=source.positive("attention.scale", gemma_attention_scale(config, LAYERS_27B)),
        attention_softcap=source.number("attn_logit_softcapping", 50.0),
        logit_softcap=source.number("final_logit_softcapping", 30.0),
    )
    return record_decoder(source, config)


def gemma_config(config: DecoderConfig) -> DecoderConfig:
    """What Gemma 2 and 3 share."""
    return replace(config, activation="gelu_tanh", post_norm=True, embedding_scale=math.sqrt(config.width))


def gemma_attention_scale(config: DecoderConfig, layers_27b: int) -> float:
    """1 / sqrt(head size), but 1 / sqrt(width / heads) in the 27B models: files do not state it."""
    return 1 / math.sqrt(config.width / config.heads if config.layers == layers_27b else config.head_dim)
