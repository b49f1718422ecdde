"""localinfer: local inference for quantized language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localinfer.errors import LocalInferError

if TYPE_CHECKING:
    from localinfer.engine.llm import LLM
    from localinfer.engine.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "LocalInferError", "SamplingParams", "__version__"]

# Imported on first use: `import localinfer` must not cost what loading a model costs.
_LAZY = {"LLM": "localinfer.engine.llm", "SamplingParams": "localinfer.engine.sampling"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'localinfer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
