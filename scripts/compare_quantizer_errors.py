"""Errors of our quantizers beside those of llama.cpp's, type by type, and on request their speed.

    scripts/compare_quantizer_errors.py LIBGGML_BASE [--time] [--record tests/data/quantizers.json]

LIBGGML_BASE is llama.cpp's libggml-base.so. Prints a table and, last, one line of JSON. --record keeps what tests
compare: llama.cpp's errors on their rows, and the hashes of our bytes (look at why they changed before you do).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import test_quantizers as tests
from localinfer.kernels.quantize.quantizer import (
    QUANTIZABLE,
    WITH_FEEDBACK,
    Hessian,
    quantize_rows,
    quantize_with_feedback,
)
from localinfer.kernels.types import TYPES
from quantizer_rows import KINDS, bell, gram, importance, rows_of

ROWS, COLUMNS = 128, 1024


class LlamaCpp:
    """`ggml_quantize_chunk` of llama.cpp's library."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self._library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self._library.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, i64, i64, i64, pointer]

    def quantize(self, name: str, weights: Any, weight: Any) -> bytes:
        rows, columns = weights.shape
        weights = np.ascontiguousarray(weights)
        out = np.zeros(rows * TYPES[name].row_bytes(columns), np.uint8)
        self._library.ggml_quantize_init(TYPES[name].id)
        address = None if weight is None else weight.ctypes.data
        self._library.ggml_quantize_chunk(
            TYPES[name].id, weights.ctypes.data, out.ctypes.data, 0, rows, columns, address
        )
        return out.tobytes()


def nanoseconds(work: Callable[[], object], weights: int) -> float:
    """Per weight, the best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best / weights * 1e9


def compare(llama: LlamaCpp, name: str, timed: bool) -> dict[str, float]:
    """Our error by llama.cpp's on gaussian and heavy-tailed rows, with importance and without; times on one thread."""
    found = {}
    for label, weights in (("gaussian", bell(ROWS, COLUMNS)), ("heavy", bell(ROWS, COLUMNS) ** 3)):
        for kind, weight in (("", None), (", weighted", importance(COLUMNS))):
            ours = tests.errors(name, quantize_rows(name, weights, importance=weight), weights, weight)
            found[label + kind] = ours / tests.errors(name, llama.quantize(name, weights, weight), weights, weight)
    if timed:
        weights, weight = bell(ROWS, COLUMNS), importance(COLUMNS)
        found["ns"] = nanoseconds(lambda: quantize_rows(name, weights, threads=1), weights.size)
        found["llama.cpp ns"] = nanoseconds(lambda: llama.quantize(name, weights, None), weights.size)
        found["llama.cpp weighted ns"] = nanoseconds(lambda: llama.quantize(name, weights, weight), weights.size)
    return found


def record(llama: LlamaCpp, path: Path) -> None:
    """Writes what tests/test_quantizers.py compares."""
    weights, weight, hessian = tests.every_kind(), importance(tests.COLUMNS), Hessian([gram(tests.COLUMNS)])
    recorded: dict[str, Any] = {
        "search-1": {name: tests.digest(quantize_rows(name, weights)) for name in QUANTIZABLE},
        "search-1, with importance": {
            name: tests.digest(quantize_rows(name, weights, importance=weight)) for name in QUANTIZABLE
        },
        "feedback-1": {
            name: tests.digest(quantize_with_feedback(name, weights, hessian=hessian)) for name in WITH_FEEDBACK
        },
        "codes": tests.codes(),
    }
    for key, each in (("error", None), ("weighted error", weight)):
        recorded[f"llama.cpp: {key}"] = {}
        for name in tests.BLOCKS:
            by_kind = recorded[f"llama.cpp: {key}"].setdefault(name, {})
            for kind in KINDS:
                rows = rows_of(kind, tests.ROWS, tests.COLUMNS)
                error = tests.errors(name, llama.quantize(name, rows, each), rows, each)
                by_kind[kind] = float(f"{error:.6g}")
    path.write_text(json.dumps(recorded, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--time", action="store_true", help="run alone on an idle machine")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    llama = LlamaCpp(arguments.library)
    if arguments.record:
        record(llama, arguments.record)
        return
    found = {name: compare(llama, name, arguments.time) for name in tests.BLOCKS}
    columns = list(found[tests.BLOCKS[0]])
    print("our error / llama.cpp's" + (", and nanoseconds per weight on one thread" if arguments.time else ""))
    print(f"{'type':8}" + "".join(f"{column:>22}" for column in columns))
    for name, row in found.items():
        print(f"{name:8}" + "".join(f"{row[column]:22.3f}" for column in columns))
    print(json.dumps({name: {key: round(value, 4) for key, value in row.items()} for name, row in found.items()}))


if __name__ == "__main__":
    main()
