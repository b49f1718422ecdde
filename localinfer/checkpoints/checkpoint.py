"""A folder as the Hugging Face hub has them, as a model file."""

from __future__ import annotations

from pathlib import Path

from localinfer.errors import UnsupportedError
from localinfer.formats.model_file import ModelFile


def open_checkpoint(path: Path, quant: str = "") -> ModelFile:
    """Opens a folder with config.json and safetensors; FormatError if it is damaged."""
    raise UnsupportedError(f"{path} is a folder, which cannot be opened yet")
