"""One tensor into another type, a piece at a time.

A piece is a run of whole rows. Rows do not depend on each other, so neither the size of the pieces nor the number of
threads changes a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localinfer.errors import LocalInferError
from localinfer.kernels.base import Tensor
from localinfer.kernels.quantize.quantizer import METHODS
from localinfer.quantize.recipes import Choice

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localinfer.kernels.quantize.quantizer import Hessian

COPY, CAST = "copy", "cast"
PIECE_WEIGHTS = 1 << 22  # converted at once: 16 MiB of floats
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Calibration:
    """What calibration knows of one matrix's inputs: their mean squares, and their second moments if they were kept."""

    importance: npt.NDArray[np.float32] | None = None
    hessian: Hessian | None = None


@dataclass(frozen=True)
class Job:
    """How one tensor is made: its source, its choice, and what calibration knows. `method` goes into provenance."""

    tensor: Tensor
    choice: Choice
    method: str
    calibration: Calibration = Calibration()

    @property
    def calibrated(self) -> bool:
        return self.calibration.importance is not None or self.calibration.hessian is not None

    @property
    def rows(self) -> int:
        rows = 1
        for dimension in self.tensor.shape[:-1]:
            rows *= dimension
        return rows

    @property
    def source_row_bytes(self) -> int:
        return self.tensor.nbytes // self.rows

    @property
    def row_bytes(self) -> int:
        return self.choice.nbytes // self.rows


def make_job(tensor: Tensor, choice: Choice, calibration: Calibration, method: str) -> Job:
    """The job of a choice; `method` is used where weights are rounded to blocks."""
    if choice.type == tensor.type.name:
        return Job(tensor, choice, COPY)
    if choice.type in _FLOATS:
        return Job(tensor, choice, CAST)
    return Job(tensor, choice, method, calibration)


def default_method() -> str:
    """The algorithm that quantizes without error feedback, by the name that stands for it for ever."""
    return METHODS["search"]


def pieces(job: Job) -> Iterator[tuple[int, int]]:
    """`(first row, rows)` of every piece, in order."""
    step = max(1, PIECE_WEIGHTS // job.tensor.shape[-1])
    for start in range(0, job.rows, step):
        yield start, min(step, job.rows - start)


def source_bytes(job: Job, start: int, rows: int) -> memoryview:
    """The bytes of a piece as they lie in the source."""
    size = job.source_row_bytes
    return job.tensor.buffer[start * size : (start + rows) * size]


def convert(job: Job, start: int, rows: int, threads: int = 1) -> bytes | bytearray | memoryview:
    """The bytes of a piece in the type to be. LocalInferError, with the tensor's name, for weights that are no numbers."""
    if job.method == COPY:
        return source_bytes(job, start, rows)
    from localinfer.checkpoints.values import float_rows

    weights = float_rows(job.tensor, start, rows)
    try:
        return _quantize(job, weights, threads)
    except LocalInferError as error:
        raise LocalInferError(f"tensor {job.tensor.name}: {error.message}", error.hint) from error


def _quantize(job: Job, weights: npt.NDArray[np.float32], threads: int) -> bytes | bytearray | memoryview:
    from localinfer.kernels.quantize.quantizer import quantize_rows, quantize_with_feedback

    if job.choice.type == "F32":
        return memoryview(weights).cast("B")
    if job.calibration.hessian is not None:
        return quantize_with_feedback(
            job.choice.type, weights, hessian=job.calibration.hessian, method=job.method, threads=threads
        )
    method = job.method if job.method != CAST else default_method()
    return quantize_rows(
        job.choice.type, weights, importance=job.calibration.importance, method=method, threads=threads
    )
