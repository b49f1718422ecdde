"""SmolLM3 (huggingface.co/blog/smollm3): llama whose every fourth layer has no rope (NoPE, arXiv:2501.18795)."""

from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, record_decoder

NOPE_PERIOD = 4  # not in the metadata


def record(source: ModelSource) -> Program:
    config = read_config(source, "adjacent")
    rope = tuple(None if (i + 1) % NOPE_PERIOD == 0 else r for i, r in enumerate(config.rope))
    return record_decoder(source, replace(config, rope=rope))
