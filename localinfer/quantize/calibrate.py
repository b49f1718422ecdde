"""What a matrix's quantizer is told about its inputs, from whatever a person names with --calibrate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localinfer.errors import LocalInferError
from localinfer.formats.model_file import ModelFile
from localinfer.quantize.convert import NONE, Calibration
from localinfer.quantize.report import Report

if TYPE_CHECKING:
    from localinfer.kernels.quantize.quantizer import Hessian
    from localinfer.quantize.calibration import Statistics

DEFAULT = "default"
_IMATRIX = (".dat", ".gguf", ".imatrix")


@dataclass(frozen=True)
class Known:
    """Statistics, and what provenance says of them. `feedback`: whether second moments are to be used.

    Matrices with the same input share a Hessian, which keeps the factors that the quantizer computes of it.
    """

    statistics: Statistics | None = None
    feedback: bool = False
    _hessians: dict[int, Hessian] = field(default_factory=dict)

    def of(self, tensor: str) -> Calibration:
        """What is known of the inputs of one matrix."""
        if self.statistics is None:
            return NONE
        hessian = self.statistics.hessian(tensor) if self.feedback else None
        if hessian is not None:  # the statistics keep the arrays, so that their identities stay
            hessian = self._hessians.setdefault(id(hessian.grams[0]), hessian)
        return Calibration(self.statistics.importance(tensor), hessian)

    def of_all(self, model: ModelFile) -> Mapping[str, Calibration]:
        return {name: self.of(name) for name in model.tensors}

    def describe(self) -> dict[str, Any] | None:
        """For provenance."""
        return None if self.statistics is None else self.statistics.describe() | {"feedback": self.feedback}


def calibration_text(what: str) -> str:
    """The text that ships with localinfer, or that of a file. LocalInferError if it cannot be read."""
    if what == DEFAULT:
        from localinfer.evaluate.texts import default_text

        return default_text("calibration")
    try:
        return Path(what).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LocalInferError(
            f"{what} is not valid UTF-8 at byte {error.start}", "--calibrate takes default, a text, or statistics"
        ) from error
    except OSError as error:
        raise LocalInferError(
            f"cannot read the calibration text {what}: {error.strerror}",
            "--calibrate takes default, a text, or statistics",
        ) from error


def is_statistics(what: str) -> bool:
    """Whether this names a file of statistics, and not a text."""
    return what.endswith((".safetensors", *_IMATRIX))


def known_from(what: str, model: ModelFile, feedback: bool, threads: int, report: Report) -> Known:
    """Statistics by what a person names: "default", a text, a file of statistics, or llama.cpp's imatrix; "" is none.

    LocalInferError if the file cannot be read, or the model cannot be run over the text.
    """
    if not what:
        return Known()
    if what.endswith(".safetensors"):
        from localinfer.quantize.calibration import load_statistics

        return Known(load_statistics(what), feedback)
    if is_statistics(what):
        from localinfer.quantize.imatrix import read_imatrix

        if feedback:
            report.say(f"{what} has no second moments: errors are not fed back")
        return Known(read_imatrix(what))
    from localinfer.quantize.calibration import collect

    text = calibration_text(what)
    return Known(collect(model, text, grams=feedback, threads=threads, report=report.progress), feedback)
