"""One tensor of a GGUF file made from one of the source, in the type that was chosen for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localinfer.errors import LocalInferError
from localinfer.kernels.base import Tensor
from localinfer.kernels.quantize.quantizer import FEEDBACK_METHODS, METHODS
from localinfer.quantize.recipes import Choice
from localinfer.quantize.stream import Bytes, Job, Part

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localinfer.kernels.quantize.quantizer import Hessian

COPY, CAST = "copy", "cast"
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Calibration:
    """What is known of one matrix's inputs: mean squares by column, and second moments if they were collected."""

    importance: npt.NDArray[np.float32] | None = None
    hessian: Hessian | None = None

    @property
    def known(self) -> bool:
        return self.importance is not None or self.hessian is not None


NONE = Calibration()


class GGUFJob(Job):
    """Makes a tensor of a GGUF file. `method` goes into provenance; `calibrated`: whether calibration was used."""

    def __init__(self, tensor: Tensor, choice: Choice, calibration: Calibration = NONE) -> None:
        if choice.type == tensor.type.name:
            method, calibration = COPY, NONE
        elif choice.type in _FLOATS:
            method, calibration = CAST, NONE
        elif calibration.hessian is not None:
            method = FEEDBACK_METHODS["feedback"]
        else:
            method = METHODS["search"]
        super().__init__(tensor, {tensor.name: choice.nbytes}, method, alone=calibration.hessian is not None)
        self.tensor = tensor
        self.choice = choice
        self.calibration = calibration

    def convert(self, start: int, rows: int, threads: int) -> list[Part]:
        data = self.source_bytes(start, rows) if self.method == COPY else self._converted(start, rows, threads)
        return [Part(self.name, start * (self.choice.nbytes // self.rows), data)]

    def _converted(self, start: int, rows: int, threads: int) -> Bytes:
        from localinfer.checkpoints.values import float_rows

        weights = float_rows(self.tensor, start, rows)
        try:
            return quantized(self.choice.type, weights, self.calibration, threads)
        except LocalInferError as error:
            raise LocalInferError(f"tensor {self.name}: {error.message}", error.hint) from error


def quantized(type_name: str, weights: npt.NDArray[np.float32], calibration: Calibration, threads: int) -> Bytes:
    """Rows `[rows, columns]` as the blocks of a GGUF type, with error feedback where second moments are known."""
    from localinfer.kernels.quantize.quantizer import quantize_rows, quantize_with_feedback

    if type_name == "F32":
        return weights.tobytes()
    if calibration.hessian is not None:
        return quantize_with_feedback(type_name, weights, hessian=calibration.hessian, threads=threads)
    return quantize_rows(type_name, weights, importance=calibration.importance, threads=threads)
