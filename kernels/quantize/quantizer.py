"""Turning float32 weights into quantized ones (native/): rows into GGUF blocks, or codes and scales.

Every function is a function of its arguments alone: the bytes are the same for any number of threads, instruction set
and compiler. A method ("search-1") names one algorithm for ever; its results never change under that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Codes = npt.NDArray[Any]

# GGUF types that `quantize_rows` makes.
QUANTIZABLE: tuple[str, ...] = ("F16", "BF16", "Q8_0", "Q4_0")
# What a caller may ask for, and the algorithm that stands for it today (to be written into provenance).
METHODS = {"search": "search-1", "search-1": "search-1"}
FEEDBACK_METHODS = {"feedback": "feedback-1", "feedback-1": "feedback-1"}


@dataclass(frozen=True)
class Hessian:
    """Second moments of what a matrix is multiplied with: sums (or means) of x xᵀ over tokens.

    `grams`: symmetric float32 matrices along the diagonal, from the first column on; their sizes add up to the columns
    of the weights. One matrix means all of it; what lies outside of the blocks counts as zero. Only ratios matter.
    """

    grams: tuple[Floats, ...]

    @property
    def columns(self) -> int:
        return sum(len(gram) for gram in self.grams)


def quantize_rows(
    type_name: str,
    weights: Floats,
    *,
    importance: Floats | None = None,
    method: str = "search",
    threads: int = 0,
) -> bytearray:
    """The GGUF blocks of `weights` float32 [rows, columns], row after row, as type `type_name` of QUANTIZABLE.

    `importance` float32 [columns], not negative: how much the squared error of each column counts (None: alike).
    `threads` 0 means as many as there are processors. Raises LocalInferError, naming the row, for NaN or infinity, and
    for weights that are too large for the type; UnsupportedError for a type or method that is not known here.
    """
    raise NotImplementedError


def quantize_with_feedback(
    type_name: str,
    weights: Floats,
    *,
    hessian: Hessian,
    damping: float = 0.01,
    method: str = "feedback",
    threads: int = 0,
) -> bytearray:
    """As `quantize_rows`, but the error of each column is compensated in those that follow (GPTQ, Frantar et al. 2022).

    What is minimized is the error of the products, Σ (row error)ᵀ H (row error), with `damping` times the mean of the
    diagonal added to it. Raises LocalInferError, too, if the hessian does not fit the weights or holds NaN.
    """
    raise NotImplementedError


def quantize_int8(
    weights: Floats,
    *,
    importance: Floats | None = None,
    hessian: Hessian | None = None,
    scale_type: str = "F32",
    threads: int = 0,
) -> tuple[Codes, Floats]:
    """Symmetric int8 per channel: codes int8 [rows, columns] in -127..127, scales float32 [rows, 1]; w = scale * code.

    `scale_type` F32, F16 or BF16: scales are numbers that this type holds exactly. With a hessian, errors are fed back.
    """
    raise NotImplementedError


def quantize_int4(
    weights: Floats,
    *,
    group: int = 128,
    symmetric: bool = True,
    importance: Floats | None = None,
    hessian: Hessian | None = None,
    scale_type: str = "F32",
    threads: int = 0,
) -> tuple[Codes, Floats, Codes]:
    """int4 in groups of columns: codes int8 [rows, columns] in -8..7, scales float32 and zeros int8 [rows, groups].

    w = scale * (code - zero); symmetric means that all zeros are 0. The last group may be smaller.
    """
    raise NotImplementedError


def quantize_fp8(
    weights: Floats,
    *,
    block: tuple[int, int] | None = None,
    importance: Floats | None = None,
    hessian: Hessian | None = None,
    scale_type: str = "F32",
    threads: int = 0,
) -> tuple[Codes, Floats]:
    """FP8 E4M3: codes uint8 [rows, columns] (bit patterns), scales float32 [rows, 1]; w = scale * code.

    With `block` (128, 128), scales are shared by blocks of rows and columns: [rows / 128, columns / 128], rounded up.
    """
    raise NotImplementedError
