"""The header of a quantized GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from localinfer.formats.gguf import GGUFFile
from localinfer.formats.gguf_writer import GGUFLayout, TensorInfo, encode_value
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.types import TYPES
from localinfer.quantize.convert import GGUFJob
from localinfer.quantize.provenance import KEY, UNKNOWN_HASH, TensorRecord
from localinfer.quantize.stream import Hashes

QUANTIZATION_VERSION = 2  # of the block formats, as general.quantization_version counts
# Told about the file that it was in, or about how that was made.
_NOT_COPIED = ("split.", "quantize.imatrix.", "localinfer.")
_UNKNOWN = Hashes(UNKNOWN_HASH, {})


def layout_of(model: ModelFile, jobs: Sequence[GGUFJob], file_type: int, provenance: str) -> GGUFLayout:
    """Where everything will lie, and the metadata: that of the source, exactly; file type and provenance are ours."""
    pairs = {
        key: model.encoded(key) if isinstance(model, GGUFFile) else encode_value(value)
        for key, value in model.metadata.items()
        if not key.startswith(_NOT_COPIED)
    }
    pairs["general.file_type"] = encode_value(file_type)
    pairs["general.quantization_version"] = encode_value(QUANTIZATION_VERSION)
    pairs[KEY] = encode_value(provenance)
    infos = [TensorInfo(job.name, TYPES[job.choice.type], job.tensor.shape) for job in jobs]
    return GGUFLayout(pairs, infos)


def records(jobs: Sequence[GGUFJob], hashes: Mapping[str, Hashes]) -> dict[str, TensorRecord]:
    """What provenance says of every tensor; where hashes are missing, blanks of the same length."""
    found = {}
    for job in jobs:
        known = hashes.get(job.name, _UNKNOWN)
        found[job.name] = TensorRecord(
            type=job.choice.type,
            method=job.method,
            calibrated=job.calibration.known,
            source_type=job.tensor.type.name,
            source_sha256=known.source,
            sha256=known.outputs.get(job.name, UNKNOWN_HASH),
        )
    return found
