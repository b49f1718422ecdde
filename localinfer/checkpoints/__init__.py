"""Models on disk, opened whatever they are: GGUF files, and folders as the Hugging Face hub has them.

A folder is presented under the names and keys that llama.cpp's converter would write, so that everything above sees
one kind of model. Nothing of this is imported for a GGUF file.
"""

from __future__ import annotations

import os
from pathlib import Path

from localinfer.errors import UnsupportedError
from localinfer.formats.model_file import ModelFile


def open_model(path: Path | str, quant: str = "") -> ModelFile:
    """Opens a .gguf file (any part of a split one), a folder with config.json and safetensors, or a file in one.

    `quant` names the type (q8_0, q4_k, ...) that the matrices of a folder are quantized to while it is opened.
    FormatError, UnsupportedError or LocalInferError as `open_gguf` and `open_checkpoint` raise them.
    """
    path = Path(path)
    if path.suffix == ".safetensors" or os.path.isdir(path):
        from localinfer.checkpoints.checkpoint import open_checkpoint

        return open_checkpoint(path, quant)
    from localinfer.formats.gguf import open_gguf

    if quant:
        raise UnsupportedError(
            f"{path} is a GGUF file, which is not quantized again while it is opened",
            f"localinfer quantize {path} --to {quant} writes a file of that type",
        )
    return open_gguf(path)


def is_checkpoint(path: Path | str) -> bool:
    """Whether this is a folder as the Hugging Face hub has them, or a safetensors file in one."""
    folder = os.path.dirname(path) if str(path).endswith(".safetensors") else path
    return os.path.isfile(os.path.join(folder, "config.json"))


__all__ = ["ModelFile", "is_checkpoint", "open_model"]
