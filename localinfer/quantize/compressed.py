"""INT8, INT4 and FP8 weights as compressed-tensors writes them: what transformers and vLLM load.

Matrices of layers are quantized; embeddings and the head stay as they are, as these formats' own tools leave them. A
matrix `X.weight` becomes (compressed-tensors, its compressors):

    int8        X.weight         I8    [rows, columns]          w = scale * code
                X.weight_scale   the type of the source [rows, 1]
    int4        X.weight_packed  I32   [rows, columns / 8]      eight codes + 8 in a word, the first in its lowest bits
                X.weight_scale   the type of the source [rows, columns / 128]
                X.weight_shape   I64   [2]                      rows, columns
    fp8         X.weight         F8_E4M3, scales as int8
    fp8-block   the same, with a scale for each block of 128 rows and 128 columns
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localinfer.checkpoints.names import gguf_name, text_name
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.formats.json_file import read_json_object
from localinfer.formats.safetensors import SafetensorsFolder, StoredTensor
from localinfer.formats.safetensors_writer import SafetensorsInfo, SafetensorsLayout
from localinfer.kernels.types import TYPES
from localinfer.quantize.convert import COPY, NONE, Calibration
from localinfer.quantize.provenance import KEY, UNKNOWN_HASH, TensorRecord
from localinfer.quantize.stream import Hashes, Job, Part

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WEIGHTS_FILE = "model.safetensors"
_MATRIX = re.compile(r".*\.layers\.\d+\..*\.weight", re.DOTALL)
_FLOATS = ("F32", "F16", "BF16")
_INT4_GROUP = 128
_FP8_BLOCK = 128
_UNKNOWN = Hashes(UNKNOWN_HASH, {})

_TOKEN_INT8 = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
_TOKEN_FP8 = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
_GROUP_FP8 = _TOKEN_FP8 | {"strategy": "group", "group_size": _FP8_BLOCK}


@dataclass(frozen=True)
class Scheme:
    """One way to quantize. `method` names the algorithm for ever; `weights` and `inputs` are the config's words."""

    format: str
    method: str
    weights: Mapping[str, Any]
    inputs: Mapping[str, Any] | None
    column_unit: int = 1  # a matrix whose columns are no multiple is not quantized
    row_unit: int = 1

    def config(self, ignore: Sequence[str]) -> dict[str, Any]:
        """`quantization_config` of config.json."""
        group: dict[str, Any] = {"targets": ["Linear"], "weights": dict(self.weights)}
        group["input_activations"] = None if self.inputs is None else dict(self.inputs)
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignore),
            "kv_cache_scheme": None,
        }


def _weights(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False} | more


SCHEMES = {
    "int8": Scheme("int-quantized", "int8-channel-1", _weights("int", 8, "channel"), _TOKEN_INT8),
    "int4": Scheme(
        "pack-quantized",
        "int4-group-1",
        _weights("int", 4, "group", group_size=_INT4_GROUP),
        None,
        column_unit=_INT4_GROUP,
    ),
    "fp8": Scheme("float-quantized", "fp8-channel-1", _weights("float", 8, "channel"), _TOKEN_FP8),
    "fp8-block": Scheme(
        "float-quantized",
        "fp8-block-1",
        _weights("float", 8, "block", block_structure=[_FP8_BLOCK, _FP8_BLOCK]),
        _GROUP_FP8,
        row_unit=_FP8_BLOCK,
    ),
}


class CompressedJob(Job):
    """Makes what stands for one tensor. `infos` are the tensors of the result."""

    def __init__(self, source: StoredTensor, scheme: str | None, calibration: Calibration = NONE) -> None:
        self.scheme = scheme
        self.tensor = source
        self.calibration = calibration if scheme else NONE
        method = SCHEMES[scheme].method if scheme else COPY
        if self.calibration.hessian is not None:
            method = method.replace("-1", "-feedback-1")
        self.infos = _infos(source, scheme)
        super().__init__(
            source,
            {info.name: info.nbytes for info in self.infos},
            method,
            row_unit=SCHEMES[scheme].row_unit if scheme else 1,
            alone=self.calibration.hessian is not None,
        )

    def convert(self, start: int, rows: int, threads: int) -> list[Part]:
        if self.scheme is None:
            size = self.tensor.nbytes // self.rows
            return [Part(self.name, start * size, self.source_bytes(start, rows))]
        try:
            return self._quantized(self.scheme, start, rows, threads)
        except LocalInferError as error:
            raise LocalInferError(f"tensor {self.name}: {error.message}", error.hint) from error

    def _quantized(self, scheme: str, start: int, rows: int, threads: int) -> list[Part]:
        from localinfer.kernels.quantize.quantizer import quantize_fp8, quantize_int4, quantize_int8

        weights = _float_rows(self.tensor, start, rows)
        importance, hessian = self.calibration.importance, self.calibration.hessian
        scale_type = self.tensor.dtype
        if scheme == "int8":
            codes, scales = quantize_int8(
                weights, importance=importance, hessian=hessian, scale_type=scale_type, threads=threads
            )
        elif scheme == "int4":
            codes, scales, _ = quantize_int4(
                weights,
                group=_INT4_GROUP,
                importance=importance,
                hessian=hessian,
                scale_type=scale_type,
                threads=threads,
            )
            codes = _packed(codes)
        else:
            block = (_FP8_BLOCK, _FP8_BLOCK) if scheme == "fp8-block" else None
            codes, scales = quantize_fp8(
                weights, block=block, importance=importance, hessian=hessian, scale_type=scale_type, threads=threads
            )
        unit = SCHEMES[scheme].row_unit
        return self._parts(start, codes, start // unit, _as_type(scales, scale_type))

    def _parts(self, row: int, codes: npt.NDArray[Any], scale_row: int, scales: npt.NDArray[Any]) -> list[Part]:
        code, scale = self.infos[:2]
        parts = [
            Part(code.name, row * (codes.nbytes // len(codes)), codes.tobytes()),
            Part(scale.name, scale_row * (scales.nbytes // len(scales)), scales.tobytes()),
        ]
        if len(self.infos) == 3 and row == 0:
            parts.append(Part(self.infos[2].name, 0, struct.pack("<2q", *self.tensor.shape)))
        return parts


def plan_jobs(
    folder: SafetensorsFolder, scheme: str, architecture: str, calibration: Mapping[str, Calibration]
) -> list[CompressedJob]:
    """A job per tensor, in the order of the files. `calibration` goes by GGUF's names."""
    jobs = []
    for tensor in folder.tensors.values():
        quantized = is_quantized_matrix(tensor) and tensor.shape[1] % SCHEMES[scheme].column_unit == 0
        known = calibration.get(gguf_name(text_name(tensor.name), architecture) or "", NONE)
        jobs.append(CompressedJob(tensor, scheme if quantized else None, known if quantized else NONE))
    return jobs


def is_quantized_matrix(tensor: StoredTensor) -> bool:
    """Whether this is a matrix of a layer, in floats."""
    return _MATRIX.fullmatch(tensor.name) is not None and len(tensor.shape) == 2 and tensor.dtype in _FLOATS


def left_alone(jobs: Sequence[CompressedJob]) -> list[str]:
    """Modules whose matrices stay floats though they are Linear ones: what `ignore` of the config has to name."""
    modules = [job.name.removesuffix(".weight") for job in jobs if job.scheme is None and len(job.tensor.shape) == 2]
    return [module for module in modules if not module.endswith("embed_tokens")]


def layout_of(jobs: Sequence[CompressedJob], provenance: str) -> SafetensorsLayout:
    """Where everything will lie."""
    infos = [info for job in jobs for info in job.infos]
    return SafetensorsLayout({"format": "pt", KEY: provenance}, infos)


def records(jobs: Sequence[CompressedJob], hashes: Mapping[str, Hashes]) -> dict[str, TensorRecord]:
    """What provenance says of every tensor of the result; where hashes are missing, blanks of the same length."""
    found = {}
    for job in jobs:
        known = hashes.get(job.name, _UNKNOWN)
        for info in job.infos:
            found[info.name] = TensorRecord(
                type=info.dtype,
                method=job.method,
                calibrated=job.calibration.known,
                source_type=job.tensor.dtype,
                source_sha256=known.source,
                sha256=known.outputs.get(info.name, UNKNOWN_HASH),
            )
    return found


def fallbacks(jobs: Sequence[CompressedJob], scheme: str) -> list[str]:
    """A line if there are matrices that the scheme would quantize, and whose columns it cannot."""
    unit = SCHEMES[scheme].column_unit
    left = [job for job in jobs if job.scheme is None and is_quantized_matrix(job.tensor)]
    if not left:
        return []
    more = f" and {len(left) - 1} more matrices" if len(left) > 1 else ""
    return [f"{left[0].name}{more} stay as they are: rows of {left[0].tensor.shape[1]} are no multiple of {unit}"]


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. UnsupportedError if it says that the model is quantized already."""
    config: dict[str, Any] = read_json_object(folder / "config.json")
    if "quantization_config" in config:
        raise UnsupportedError(
            f"{folder} is quantized already, and its matrices are no floats",
            "quantize from the model's original weights",
        )
    return config


def beside(
    folder: Path, config: Mapping[str, Any], scheme: str, jobs: Sequence[CompressedJob]
) -> dict[str, str | Path]:
    """What else belongs into the folder: config.json with `quantization_config`; vocabulary and the like."""
    config = {**config, "quantization_config": SCHEMES[scheme].config(left_alone(jobs))}
    found: dict[str, str | Path] = {
        path.name: path
        for pattern in ("*.json", "*.model", "*.jinja", "vocab.txt", "merges.txt", "LICENSE*", "NOTICE*")
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not path.name.endswith((".index.json", ".provenance.json", ".intoto.json"))
    }
    return found | {"config.json": json.dumps(config, indent=2) + "\n"}


def _infos(source: StoredTensor, scheme: str | None) -> tuple[SafetensorsInfo, ...]:
    if scheme is None:
        return (SafetensorsInfo(source.name, source.dtype, source.shape),)
    rows, columns = source.shape
    scale = source.name + "_scale"
    if scheme == "int4":
        return (
            SafetensorsInfo(source.name + "_packed", "I32", (rows, columns // 8)),
            SafetensorsInfo(scale, source.dtype, (rows, columns // _INT4_GROUP)),
            SafetensorsInfo(source.name + "_shape", "I64", (2,)),
        )
    blocks = (-(-rows // _FP8_BLOCK), -(-columns // _FP8_BLOCK))
    return (
        SafetensorsInfo(source.name, "I8" if scheme == "int8" else "F8_E4M3", source.shape),
        SafetensorsInfo(scale, source.dtype, blocks if scheme == "fp8-block" else (rows, 1)),
    )


def _float_rows(tensor: StoredTensor, start: int, rows: int) -> npt.NDArray[np.float32]:
    from localinfer.checkpoints.values import float_rows
    from localinfer.kernels.base import Tensor

    kind = TYPES[tensor.dtype]
    same = Tensor(tensor.name, kind, tensor.shape, tensor.path, tensor.offset, tensor.nbytes, tensor.buffer)
    return float_rows(same, start, rows)


def _packed(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """int8 [rows, columns] in -8..7 → int32 [rows, columns / 8]."""
    import numpy as np

    unsigned = (codes + 8).astype(np.uint8)
    return (unsigned[:, 0::2] | unsigned[:, 1::2] << 4).view("<i4")


def _as_type(scales: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Scales, which the type holds exactly, in its bytes."""
    import numpy as np

    if dtype == "BF16":
        return (np.ascontiguousarray(scales).view("<u4") >> 16).astype("<u2")
    return scales.astype("<f2" if dtype == "F16" else "<f4")
