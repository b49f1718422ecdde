"""Compares products with int8, int4 and FP8 weights with those of the GGUF type of equal size, in interleaved pairs.

    python scripts/bench_quantized_types.py [--isa avx2] [--threads 2] [--tokens 1,4,512] [--rounds 15]

Each pair is measured turn about, many times, on matrices of the same shape: a quotient of one pair compares what ran
milliseconds apart, so that a busy machine disturbs both alike. Prints the median quotient of times (ours / GGUF's) and
its quartiles; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics

from bench_matmul import COLUMNS, FEW_TOKENS, LIBRARY, MANY_ROWS, Inputs, Matrix, Team, share

from localinfer.kernels.types import TYPES

# Types of our own, and what a GGUF file of about that size has.
PAIRS = (
    ("I8_128", "Q8_0"),
    ("I8_32", "Q8_0"),
    ("I4_128", "Q4_0"),
    ("I4_64", "Q4_0"),
    ("I4_32", "Q4_1"),
    ("F8_128", "Q8_0"),
    ("F8_32", "Q8_0"),
    ("F8_128", "F16"),
)
STREAM_BYTES = 128 << 20  # more than any cache


def seconds(team: Team, matrix: Matrix, inputs: Inputs, tokens: int) -> float:
    groups = matrix.rows // 8
    return team.seconds(lambda i: matrix.multiply(inputs, tokens, *share(groups, i, team.count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="", help="portable, avx2 or avx512vnni (default: the best)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", default="1,4,512")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", default=",".join("/".join(pair) for pair in PAIRS))
    options = parser.parse_args()
    usable = [name for name in ("avx512vnni", "avx2", "portable") if LIBRARY.li_matmul_has(name.encode())]
    isa = (options.isa or usable[0]).encode()
    team = Team(options.threads)
    results: dict[str, dict[str, float]] = {}
    print(f"{isa.decode()}, {options.threads} threads, {COLUMNS} columns; time / time: median (quartiles)")
    for pair in (pair.split("/") for pair in options.pairs.split(",")):
        cells: dict[str, list[float]] = {}
        for tokens in (int(t) for t in options.tokens.split(",")):
            few = tokens <= FEW_TOKENS
            rows = STREAM_BYTES // TYPES[pair[1]].row_bytes(COLUMNS) // 64 * 64 if few else MANY_ROWS
            inputs = Inputs(isa, tokens, rows * tokens)
            matrices = [Matrix(isa, name, rows) for name in pair]
            for _ in range(options.rounds + 1):
                one, other = (seconds(team, matrix, inputs, tokens) for matrix in matrices)
                cells.setdefault(f"{tokens} tokens", []).append(one / other)
        name = " / ".join(pair)
        results[name] = {key: statistics.median(values[1:]) for key, values in cells.items()}
        size = TYPES[pair[0]].row_bytes(COLUMNS) / TYPES[pair[1]].row_bytes(COLUMNS)
        print(f"{name}, {size:.2f} times the size:", end="")
        for key, values in cells.items():
            low, middle, high = statistics.quantiles(values[1:], n=4)
            print(f"  {key} {middle:.2f} ({low:.2f}-{high:.2f})", end="")
        print(flush=True)
    print(json.dumps({"isa": isa.decode(), "threads": options.threads, "results": results}))


if __name__ == "__main__":
    main()
