"""Model families: each records itself once, at load, as a `Program`.

To add one, write `<family>.py` with a function `record(source: ModelSource) -> Program`, add its row here and a row
of tiny sizes in `tests/tiny_models.py`.
"""

if __name__ != "localinfer.models":
    raise ImportError(f"import this package as localinfer.models, not as {__name__}")

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from localinfer.errors import FormatError, UnsupportedError
from localinfer.kernels.base import TensorSource
from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource, RecordFamily

# general.architecture in the file -> module of this package
FAMILIES = {
    "bert": "bert",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "granite": "granite",
    "llama": "llama",
    "nomic-bert": "bert",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}

# Read while recording, so that no op names them.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def record(metadata: Mapping[str, Any], tensors: TensorSource, context: int = 0) -> Program:
    """Records the model that a file describes.

    `metadata` are the file's key-value pairs (GGUF names), `context` the number of positions that it will be served
    with (0: as many as it allows). UnsupportedError for an architecture that is not in FAMILIES; FormatError where
    metadata or tensors are missing or contradict each other.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise FormatError(f"metadata key general.architecture: expected a string, found {architecture!r}")
    if architecture not in FAMILIES:
        raise UnsupportedError(
            f"model architecture {architecture!r} is not supported",
            f"supported are {', '.join(sorted(FAMILIES))}",
        )
    family: RecordFamily = import_module(f"localinfer.models.{FAMILIES[architecture]}").record
    return family(ModelSource(architecture, metadata, tensors, context))


def refuse_unused(program: Program, names: Iterable[str]) -> None:
    """UnsupportedError if the file has tensors that the program does not read: it would answer, but wrongly.

    `names` are all tensors of the file.
    """
    used = {w.name for op in program.ops for w in op.weights}.union(ROPE_TENSORS)
    unused = [name for name in names if name not in used]
    if unused:
        architecture = program.metadata["architecture"]
        raise UnsupportedError(
            f"this {architecture} model has {len(unused)} tensors that are not supported: {', '.join(unused[:4])}",
            "it may be a variant of the architecture; a newer version of localinfer may know it",
        )
