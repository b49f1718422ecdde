"""What rows of logits say: how surprising a token is, how far two models are apart (native/divergence.cpp)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from localinfer.errors import LocalInferError
from localinfer.kernels.native_library import open_library

COLUMNS = 4  # numbers per row that `row_divergences` gives


@cache
def _library() -> ctypes.CDLL:
    library = open_library("localinfer.kernels.host._host")
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    library.li_row_losses.restype = library.li_row_divergences.restype = number
    library.li_row_losses.argtypes = [pointer, number, number, pointer, pointer]
    library.li_row_divergences.argtypes = [pointer, pointer, number, number, pointer, pointer]
    return library


def row_losses(logits: int, size: int, targets: Sequence[int], threads: int = 1) -> array[float]:
    """-log softmax(row)[target] in nats for each float32 row `[size]` at the address `logits`, as `array("d")`.

    There are as many rows as `targets`. LocalInferError if a logit is not a number.
    """
    library = _library()

    def part(row: int, count: int, target: int, out: int) -> int:
        return int(library.li_row_losses(logits + 4 * size * row, count, size, target, out))

    return _in_parts(part, targets, 1, threads)


def row_divergences(source: int, model: int, size: int, targets: Sequence[int], threads: int = 1) -> array[float]:
    """For each pair of float32 rows `[size]` at the two addresses, COLUMNS numbers, as `array("d")`:

    loss of the source's row and of the model's (see `row_losses`), KL(source || model) in nats, and 1.0 if the
    likeliest token is the same, else 0.0. LocalInferError if a logit is not a number.
    """
    library = _library()

    def part(row: int, count: int, target: int, out: int) -> int:
        offset = 4 * size * row
        return int(library.li_row_divergences(source + offset, model + offset, count, size, target, out))

    return _in_parts(part, targets, COLUMNS, threads)


def _in_parts(
    part: Callable[[int, int, int, int], int], targets: Sequence[int], columns: int, threads: int
) -> array[float]:
    """Splits the rows among threads: each row's numbers depend on it alone."""
    wanted = array("i", targets)
    found = array("d", bytes(8 * columns * len(wanted)))
    target, out = wanted.buffer_info()[0], found.buffer_info()[0]
    bounds = [len(wanted) * i // threads for i in range(threads + 1)]

    def run(begin: int, end: int) -> None:
        if begin == end:
            return
        done = part(begin, end - begin, target + 4 * begin, out + 8 * columns * begin)
        if done < 0:
            raise ValueError("a target is outside the vocabulary")
        if done < end - begin:
            raise LocalInferError(
                "the model computes logits that are not numbers",
                "the file may be damaged, or its numbers too large for this type: `localinfer show` looks into it",
            )

    if threads == 1:
        run(0, len(wanted))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, bounds, bounds[1:]))
    return found
