"""Making a file's tensors again from its source, by what its provenance says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from localinfer.checkpoints import open_model
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES
from localinfer.quantize import compressed
from localinfer.quantize.calibrate import DEFAULT, Known, Report, known_from
from localinfer.quantize.convert import GGUFJob
from localinfer.quantize.provenance import Provenance
from localinfer.quantize.recipes import Choice
from localinfer.quantize.stream import Job


@contextmanager
def rederivation(
    provenance: Provenance, source: Path, report: Report, *, statistics: str = "", threads: int = 0
) -> Iterator[list[Job]]:
    """The jobs that make the tensors of a file again from `source`: those of the source that still have their names.

    `statistics` names the statistics, or the text, that the file was calibrated with; "" means the text that ships with
    localinfer. LocalInferError if they are not those that the provenance names, UnsupportedError if a tensor was made
    by a method that this version does not have.
    """
    scheme = str(provenance.recipe.get("name", ""))
    with ExitStack() as stack:
        model = stack.enter_context(open_model(source))
        known = Known()
        if provenance.calibration is not None:
            feedback = provenance.calibration.get("feedback") is True
            known = known_from(statistics or DEFAULT, model, feedback, threads, report)
            _check_statistics(provenance, known)
        if scheme in compressed.SCHEMES:
            from localinfer.formats.safetensors import open_safetensors

            stored = stack.enter_context(open_safetensors(source))
            architecture = model.metadata.get_str("general.architecture")
            jobs: list[Job] = list(compressed.plan_jobs(stored, scheme, architecture, known.of_all(model)))
        else:
            jobs = [
                _gguf_job(provenance, name, model.tensor(name), known)
                for name in provenance.tensors
                if model.has_tensor(name)
            ]
        for job in jobs:
            _check_method(provenance, job)
        yield jobs


def derived_hashes(job: Job, threads: int = 1) -> dict[str, str]:
    """Makes what a job makes; sha256 by the names of the result's tensors."""
    found = {name: hashlib.sha256() for name in job.outputs}
    for start, rows in job.pieces():
        for part in job.convert(start, rows, threads):
            found[part.name].update(part.data)
    return {name: digest.hexdigest() for name, digest in found.items()}


def _gguf_job(provenance: Provenance, name: str, tensor: Tensor, known: Known) -> GGUFJob:
    record = provenance.tensors[name]
    if record.type not in TYPES:
        raise FormatError(f"the provenance says that {name} is of type {record.type}, which is not known")
    calibration = known.of(name) if record.calibrated else Known().of(name)
    return GGUFJob(tensor, Choice(name, tensor.shape, tensor.type.name, record.type), calibration)


def _check_statistics(provenance: Provenance, known: Known) -> None:
    wanted = (provenance.calibration or {}).get("sha256")
    found = known.statistics.sha256 if known.statistics is not None else ""
    if found != wanted:
        raise LocalInferError(
            f"the file was calibrated with other statistics: {wanted} instead of {found}",
            "name the text or the statistics that it was calibrated with",
        )


def _check_method(provenance: Provenance, job: Job) -> None:
    method = job.method
    for name in job.outputs:
        record = provenance.tensors.get(name)
        if record is not None and record.method != method:
            raise UnsupportedError(
                f"{name} was made by the method {record.method}, and this version of localinfer makes it by {method}",
                f"install the version that made the file: {provenance.version}",
            )
