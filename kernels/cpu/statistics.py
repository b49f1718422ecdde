"""Sums over the inputs of matrix products (native/statistics.inl), which quantizers are calibrated with."""

from __future__ import annotations

from ctypes import CDLL, c_char_p, c_int, c_int32, c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

from localinfer.kernels.cpu.native import library

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@cache
def statistics_library() -> CDLL:
    """The native library, with the types of the functions that collect declared."""
    native = library()
    sums: list[Any] = [c_void_p, c_int32, c_void_p, c_int64, c_int32]
    native.li_cpu_collect.restype = native.li_cpu_add_statistics.restype = c_int
    native.li_cpu_collect.argtypes = [c_void_p, c_int, *sums]
    native.li_cpu_add_statistics.argtypes = [c_char_p, c_void_p, c_int32, *sums]
    return native


class InputSums:
    """What is summed up over the rows x of an input of `cols` columns, in their order.

    squares  float64 `[cols]`: sum of x²
    grams    float32 matrices `[n, n]`: sums of x xᵀ for runs of `block` columns each, of which the last may be shorter;
             none if `block` is 0. `symmetric_grams` completes them.
    """

    def __init__(self, cols: int, block: int = 0) -> None:
        import numpy as np

        self.cols = cols
        self.block = min(block, cols)
        self.squares: npt.NDArray[np.float64] = np.zeros(cols)
        runs = [min(self.block, cols - first) for first in range(0, cols, self.block)] if block else []
        self._products: npt.NDArray[np.float32] = np.zeros(sum(n * n for n in runs), np.float32)
        ends = np.cumsum([n * n for n in runs], dtype=np.int64)
        self.grams = [self._products[end - n * n : end].reshape(n, n) for n, end in zip(runs, ends, strict=True)]

    @property
    def arguments(self) -> tuple[int, int, int, int, int]:
        """Squares, columns, products, their number, and the block, as native code takes them."""
        products = self._products.ctypes.data if self.block else 0
        return self.squares.ctypes.data, self.cols, products, self._products.size, self.block

    def add(self, address: int, rows: int) -> None:
        """Adds float32 rows that lie one behind the other in memory."""
        if statistics_library().li_cpu_add_statistics(None, address, rows, *self.arguments):
            raise ValueError(f"{rows} rows cannot be added to sums of {self.cols} columns")

    def symmetric_grams(self) -> list[npt.NDArray[np.float32]]:
        """The matrices with both halves filled: native code fills the upper one."""
        import numpy as np

        upper = [np.triu(gram) for gram in self.grams]
        return [half + np.triu(half, 1).T for half in upper]
