"""Qwen2 and Qwen2.5 (arXiv:2407.10671): biases on q, k and v, which the file holds as tensors."""

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, record_decoder


def record(source: ModelSource) -> Program:
    return record_decoder(source, read_config(source, "halves"))
