"""Making a file of ours again, from its source and what its provenance says, to compare the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from localinfer.checkpoints.names import gguf_name, text_name
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.formats.model_file import ModelFile
from localinfer.formats.safetensors import SafetensorsFolder, open_safetensors
from localinfer.kernels.quantize.quantizer import FEEDBACK_METHODS, METHODS, quantize_rows, quantize_with_feedback
from localinfer.quantize.calibrate import Known
from localinfer.quantize.compressed import SCHEMES, CompressedJob, plan_jobs
from localinfer.quantize.provenance import Provenance, TensorRecord
from localinfer.quantize.stream import StoredBytes
from localinfer.verify.known import Bytes, Floats, Quantizer


def calibrated_quantizers(record: TensorRecord | None, known: Known, name: str) -> dict[str, Quantizer]:
    """The quantizer that a record names, with the calibration statistics of that tensor; none without them."""
    calibration = known.of(name)
    if record is None or not record.calibrated or not calibration.known:
        return {}
    feedback = record.method.startswith("feedback")
    if feedback and calibration.hessian is None:
        return {}

    def make(weights: Floats) -> Bytes:
        try:
            if feedback:
                assert calibration.hessian is not None
                made = quantize_with_feedback(
                    record.type, weights, hessian=calibration.hessian, method=record.method, threads=1
                )
            else:
                made = quantize_rows(
                    record.type, weights, importance=calibration.importance, method=record.method, threads=1
                )
        except (UnsupportedError, LocalInferError):  # a method that this version does not know, or no numbers
            return b""
        return memoryview(made).cast("B")

    return {f"localinfer's {record.method}, calibrated": make}


def is_claimed(record: TensorRecord, known: Known, name: str, source: StoredBytes) -> bool:
    """Whether a record says that its tensor was made of this one, in a way that can be repeated here.

    `known` are the statistics that the file was made with, or none. A method stands for the same bytes for ever: if
    such a tensor has others, its record is false.
    """
    if record.source_sha256 != hashlib.sha256(source.buffer).hexdigest():
        return False
    if not record.calibrated:
        return record.method in METHODS.values()
    calibration = known.of(name)
    if record.method in FEEDBACK_METHODS.values():
        return calibration.hessian is not None
    return calibration.known and record.method in METHODS.values()


def tells_of_feedback(record: TensorRecord | None, source: StoredBytes) -> bool:
    """Whether a record says that its tensor was made of this one with error feedback."""
    return (
        record is not None
        and record.method in FEEDBACK_METHODS.values()
        and record.source_sha256 == hashlib.sha256(source.buffer).hexdigest()
    )


def false_claim(method: str) -> str:
    """What is wrong with a tensor whose record is false."""
    return f"its provenance is false: localinfer's {method} makes other bytes of this source"


def derived_again(
    path: Path,
    source: Path,
    model: ModelFile,
    provenance: Provenance,
    known: Known,
    pool: Executor,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, str], dict[str, str]]:
    """GGUF names of the tensors of a compressed-tensors folder of ours that come out the same → how.

    And of those that do not, though their records say that they were made of this source in this way → the method.
    `model` is the source, opened; statistics go by its names.
    """
    scheme = str(provenance.recipe.get("name"))
    if scheme not in SCHEMES or source.suffix == ".gguf":
        return {}, {}
    architecture = model.metadata.get_str("general.architecture")
    found: dict[str, str] = {}
    false: dict[str, str] = {}
    done = 0
    with open_safetensors(path) as made, open_safetensors(source) as stored:
        jobs = plan_jobs(stored, scheme, architecture, known.of_all(model))
        total = sum(job.source.nbytes for job in jobs)
        for job in jobs:
            progress(done, total)
            done += job.source.nbytes
            name = gguf_name(text_name(job.name), architecture)
            if name is None:
                continue
            if _comes_out_the_same(job, made, pool):
                found[name] = f"localinfer's {job.method}{', calibrated' * job.calibration.known}"
            elif _is_claimed(job, provenance):
                false[name] = job.method
    return found, false


def _is_claimed(job: CompressedJob, provenance: Provenance) -> bool:
    record = provenance.tensors.get(job.infos[0].name)
    return (
        record is not None
        and (record.method, record.calibrated) == (job.method, job.calibration.known)
        and record.source_sha256 == hashlib.sha256(job.source.buffer).hexdigest()
    )


def _comes_out_the_same(job: CompressedJob, made: SafetensorsFolder, pool: Executor) -> bool:
    if any(info.name not in made.tensors or made.tensors[info.name].nbytes != info.nbytes for info in job.infos):
        return False

    def same(piece: tuple[int, int]) -> bool:
        try:
            parts = job.convert(*piece, 1)
        except LocalInferError:
            return False
        return all(
            made.tensors[part.name].buffer[part.at : part.at + len(memoryview(part.data).cast("B"))] == part.data
            for part in parts
        )

    return all(pool.map(same, job.pieces()))
