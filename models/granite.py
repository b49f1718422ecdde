"""Granite 3 (github.com/ibm-granite): llama with factors on embeddings, attention, residual branches and logits."""

from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, record_decoder


def record(source: ModelSource) -> Program:
    config = read_config(source, "adjacent")
    # Granite's converter says with this key whether there is rope at all.
    has_rope = source.flag("rope.scaling.finetuned", True)
    config = replace(
        config,
        rope=config.rope if has_rope else (None,) * config.layers,
        embedding_scale=source.positive("embedding_scale", 1.0),
        residual_scale=source.positive("residual_scale", 1.0),
        logit_scale=1 / source.positive("logit_scale"),
    )
    return record_decoder(source, config)
