"""Checkpoints whose matrices are quantized already, in formats other than GGUF.

A reader finds the quantized matrices among the tensors of a checkpoint and gives each as rows of a tensor type,
exactly: every weight is scale * (code - zero point), or scale * small float, in real numbers rounded once to float32.
That is what the formats mean; their own libraries round the same product to the type of the scale, bfloat16 or float16.

Most matrices become types of our own (I8, I4, F8 in kernels/types.py), which hold the same codes, scales and zero
points in another order and are multiplied as fast as GGUF's. What these cannot hold (groups that are no multiple of 32
columns, or columns that are quantized in another order than they lie) becomes F32.

Nothing of this is imported for a checkpoint that is not quantized.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from localinfer.checkpoints.quantized.matrix import Quantized, QuantizedReader
from localinfer.checkpoints.quantized.settings import read_settings
from localinfer.errors import UnsupportedError
from localinfer.formats.safetensors import SafetensorsFolder

# Methods, and the modules here that read them.
_READERS = {
    "compressed-tensors": "compressed_tensors",
    "gptq": "gptq",
    "awq": "awq",
    "fp8": "fp8",
    "fbgemm-fp8": "fp8",
    "modelopt": "fp8",
}


def reader_for(config: Mapping[str, Any], tensors: SafetensorsFolder) -> QuantizedReader | None:
    """A reader for the checkpoint whose config.json is `config`; None if it is not quantized.

    Reads headers and small tensors only. FormatError if configuration and tensors contradict each other,
    UnsupportedError for a format, or a variant of one, that is not read.
    """
    settings = read_settings(config, tensors.paths[0].parent)
    if settings is None:
        return None
    method = settings.text("quant_method").lower().replace("_", "-")
    if method not in _READERS:
        raise UnsupportedError(
            f"{settings.path}: the model is quantized by the method {method!r}, which is not read",
            f"read are {', '.join(_READERS)}; a GGUF version of the model would do as well",
        )
    module = importlib.import_module(f"{__name__}.{_READERS[method]}")
    reader: QuantizedReader = module.read(settings, tensors)
    return reader


__all__ = ["Quantized", "QuantizedReader", "reader_for"]
