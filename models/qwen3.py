"""Qwen3 (arXiv:2505.09388): an RMS norm of every q and k head before rope, no biases."""

from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, record_decoder


def record(source: ModelSource) -> Program:
    return record_decoder(source, replace(read_config(source, "halves"), qk_norm="head"))
