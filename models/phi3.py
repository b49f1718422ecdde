"""Phi-3, Phi-3.5-mini and Phi-4 (arXiv:2404.14219).

One fused tensor for q, k and v, one for gate and up. Long contexts by longrope, partial rotary in Phi-4-mini.
"""

from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, record_decoder


def record(source: ModelSource) -> Program:
    return record_decoder(source, replace(read_config(source, "halves"), gate_in_up=True))
