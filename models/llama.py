"""Llama 2 and 3.x, Mistral, SmolLM2, TinyLlama and other models of the same shape (arXiv:2302.13971).

q and k rows are stored so that the columns of a rotary pair are adjacent. Llama 3's frequency scaling is the
tensor `rope_freqs.weight`; a sliding window (Mistral 7B v0.1) holds in all layers.
"""

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, record_decoder


def record(source: ModelSource) -> Program:
    return record_decoder(source, read_config(source, "adjacent"))
