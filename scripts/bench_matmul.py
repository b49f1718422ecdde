"""Measures the CPU backend's matrix products alone: GB/s of weights for few tokens, GMAC/s for many.

    python scripts/bench_matmul.py [--isa avx2] [--types Q4_1,Q8_0] [--threads 1,2] [--tokens 1,4,480]

Each round measures every cell once, between a probe of the read bandwidth and one of the integer peak of the same
threads, so that a busy machine disturbs all alike. Prints best and median per cell; the last line is JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from localinfer.kernels.native_library import open_library
from localinfer.kernels.types import TYPES

Array = np.ndarray[Any, Any]
FAST = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
STREAM_BYTES = 256 << 20  # more than any cache
COLUMNS = 2048
MANY_ROWS = 1024  # rows of the matrix for many tokens: compute-bound, so it need not be large
FEW_TOKENS = 16

LIBRARY = open_library("localinfer.kernels.cpu._cpu")
LIBRARY.li_matmul_group_bytes.restype = ctypes.c_size_t
LIBRARY.li_matmul_probe_integer.restype = ctypes.c_double


class Team:
    """Threads that wait at a barrier, so that a measurement does not pay for starting them."""

    def __init__(self, count: int) -> None:
        self.count, self.job = count, lambda index: None
        self.start, self.end = threading.Barrier(count), threading.Barrier(count)
        for index in range(1, count):
            threading.Thread(target=self._work, args=(index,), daemon=True).start()

    def _work(self, index: int) -> None:
        while True:
            self.start.wait()
            self.job(index)
            self.end.wait()

    def seconds(self, job: Callable[[int], None]) -> float:
        self.job = job
        self.start.wait()
        begin = time.perf_counter()
        job(0)
        self.end.wait()
        return time.perf_counter() - begin


class Matrix:
    """A packed matrix of `rows` rows in huge pages; 64 random rows, repeated."""

    def __init__(self, isa: bytes, name: str, rows: int) -> None:
        self.isa, self.type, self.rows = isa, TYPES[name], rows
        self.group_bytes = int(LIBRARY.li_matmul_group_bytes(isa, self.type.id, COLUMNS))
        row_bytes = self.type.row_bytes(COLUMNS)
        raw = np.random.default_rng(0).integers(0, 0x38, 64 * row_bytes, np.uint8)  # any two bytes: a small half
        if not self.type.in_gguf:
            blocks = raw.reshape(-1, self.type.block_bytes)
            blocks[:, :4] = np.array([0.01], np.float32).view(np.uint8)
            if name.startswith("F8"):  # as weights are distributed: how many are small decides how they are read
                weights = np.random.default_rng(0).normal(0, 448 / 4.5 / 256, (len(blocks), self.type.block_size))
                bits = weights.astype(np.float16).view(np.uint16)
                blocks[:, 4:] = bits >> 8 & 0x80 | bits >> 7 & 0x7F
        part = np.zeros(8 * self.group_bytes + 64, np.uint8)
        part = part[-part.ctypes.data % 64 :][: 8 * self.group_bytes]
        begin = time.perf_counter()
        for _ in range(20):
            LIBRARY.li_matmul_pack(
                isa, self.type.id, address(raw), ctypes.c_size_t(row_bytes), 64, COLUMNS, address(part)
            )
        self.pack_rate = 20 * raw.size / (time.perf_counter() - begin)
        self.bytes = rows // 8 * self.group_bytes
        self.memory = mmap.mmap(-1, self.bytes + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.data = np.frombuffer(self.memory, np.uint8)
        self.data = self.data[-self.data.ctypes.data % 64 :][: self.bytes]
        self.data.reshape(-1, part.size)[:] = part

    def multiply(self, a: Inputs, tokens: int, begin: int, end: int) -> None:
        LIBRARY.li_matmul_multiply(
            self.isa, self.type.id, self.rows, COLUMNS, address(self.data),
            *(address(x) for x in (a.x, a.q, a.scale, a.sum16, a.sum32)),
            tokens, begin, end, address(a.y), ctypes.c_size_t(self.rows), None,
        )  # fmt: skip


class Inputs:
    """Random activations and room for the outputs."""

    def __init__(self, isa: bytes, tokens: int, most_outputs: int) -> None:
        self.x = np.random.default_rng(0).standard_normal((tokens, COLUMNS)).astype(np.float32)
        self.q = np.empty((tokens, COLUMNS), np.int8)
        self.scale, self.sum16 = (np.empty((tokens, COLUMNS // 16), np.float32) for _ in range(2))
        self.sum32 = np.empty((tokens, COLUMNS // 32), np.float32)
        self.y = np.zeros(most_outputs, np.float32)
        begin = time.perf_counter()
        LIBRARY.li_matmul_quantize(
            isa, address(self.x), tokens, COLUMNS, *(address(x) for x in (self.q, self.scale, self.sum16, self.sum32))
        )
        self.quantize_rate = self.x.size / (time.perf_counter() - begin)


def address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def share(total: int, index: int, count: int) -> tuple[int, int]:
    return total * index // count, total * (index + 1) // count


def measure(team: Team, matrix: Matrix, inputs: Inputs, tokens: int) -> float:
    """GB/s of weights up to FEW_TOKENS tokens, GMAC/s for more."""
    groups = matrix.rows // 8
    seconds = team.seconds(lambda i: matrix.multiply(inputs, tokens, *share(groups, i, team.count)))
    work = matrix.bytes if tokens <= FEW_TOKENS else matrix.rows * COLUMNS * tokens
    return work / seconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="", help="portable, avx2 or avx512vnni (default: the best)")
    parser.add_argument("--types", default=",".join(FAST))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tokens", default="1,4,480")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    usable = [name for name in ("avx512vnni", "avx2", "portable") if LIBRARY.li_matmul_has(name.encode())]
    isa = (options.isa or usable[0]).encode()
    if isa.decode() not in usable:
        raise SystemExit(f"error: {options.isa} cannot run here\n\nhint: use one of {', '.join(usable)}")
    token_counts = [int(t) for t in options.tokens.split(",")]
    teams = [Team(int(t)) for t in options.threads.split(",")]
    probe = np.ones(STREAM_BYTES // 8, np.uint64)  # touched: untouched pages would all be the one zero page
    results: dict[str, dict[str, float]] = {}

    def read(team: Team) -> float:
        def job(i: int) -> None:
            begin, end = share(probe.size // 64, i, team.count)
            LIBRARY.li_matmul_probe_read(address(probe[64 * begin :]), ctypes.c_size_t((end - begin) * 512))

        return probe.nbytes / team.seconds(job) / 1e9

    def peak(team: Team) -> float:
        done = [0.0] * team.count

        def job(i: int) -> None:
            done[i] = LIBRARY.li_matmul_probe_integer(isa, ctypes.c_long(1_000_000))

        return team.seconds(job) ** -1 * sum(done) / 1e9

    print(f"{isa.decode()}, {COLUMNS} columns; best / median of {options.rounds} rounds")
    for name in options.types.split(","):
        rows = STREAM_BYTES // TYPES[name].row_bytes(COLUMNS) // 64 * 64
        large, small = (Matrix(isa, name, r) for r in (rows, MANY_ROWS))
        inputs = Inputs(isa, max(token_counts), max(rows * FEW_TOKENS, MANY_ROWS * max(token_counts)))
        cells: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for team in teams:
                cells.setdefault(f"read probe GB/s x{team.count}", []).append(read(team))
                for tokens in token_counts:
                    unit = "GB/s" if tokens <= FEW_TOKENS else "GMAC/s"
                    matrix = large if tokens <= FEW_TOKENS else small
                    rate = measure(team, matrix, inputs, tokens)
                    cells.setdefault(f"{tokens} tokens {unit} x{team.count}", []).append(rate)
                cells.setdefault(f"integer probe GMAC/s x{team.count}", []).append(peak(team))
        results[name] = {key: statistics.median(values) for key, values in cells.items()}
        results[name] |= {"pack GB/s": large.pack_rate / 1e9, "quantize Gvalues/s": inputs.quantize_rate / 1e9}
        parts = [f"{key} {max(values):.1f}/{statistics.median(values):.1f}" for key, values in cells.items()]
        print(f"{name}: pack {large.pack_rate / 1e9:.2f} GB/s, quantize {inputs.quantize_rate / 1e9:.2f} Gvalues/s")
        print("    " + "\n    ".join(parts), flush=True)
    print(json.dumps({"isa": isa.decode(), "results": results}))


if __name__ == "__main__":
    main()
