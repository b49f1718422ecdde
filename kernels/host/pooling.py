"""Sums of native rows (native/pooling.cpp)."""

from __future__ import annotations

import ctypes
from array import array
from functools import cache

from localinfer.kernels.native_library import open_library


@cache
def _library() -> ctypes.CDLL:
    library = open_library("localinfer.kernels.host._host")
    library.li_add_rows.restype = ctypes.c_bool
    library.li_add_rows.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    return library


def add_rows(total: array[float], rows: int, count: int) -> None:
    """Adds `count` float32 rows of `len(total)` numbers, which lie at the address `rows`, to `total` (`array("d")`).

    One after the other: however the rows are divided between calls, the sums have the same bits.
    """
    if total.typecode != "d" or not _library().li_add_rows(total.buffer_info()[0], rows, count, len(total)):
        raise ValueError(f"{count} rows cannot be added to {len(total)} sums of type {total.typecode}")
