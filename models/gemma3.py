"""Gemma 3 text models (arXiv:2503.19786).

As Gemma 2, with norms of q and k heads instead of soft caps. Five layers of six have a window; these use rope with
their own base and without scaling.
"""

from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, read_windows, record_decoder
from localinfer.models.gemma2 import gemma_attention_scale, gemma_config
from localinfer.models.rope import plain_rope, read_base, rotated_columns

LAYERS_27B = 62


def record(source: ModelSource) -> Program:
    config = read_config(source, "halves")
    windows = read_windows(source, config.layers, period=6)
    base = read_base(source, "rope.freq_base_swa", 10000.0)
    local = plain_rope(base, rotated_columns(source, config.head_dim), "halves")
    config = replace(
        gemma_config(config),
        windows=windows,
        rope=tuple(local if window else rope for window, rope in zip(windows, config.rope, strict=True)),
        qk_norm="head",
        attention_scale=source.positive("attention.scale", gemma_attention_scale(config, LAYERS_27B)),
        logit_softcap=source.number("final_logit_softcapping", 0.0),
    )
    return record_decoder(source, config)
