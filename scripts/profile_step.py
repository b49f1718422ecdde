"""Where the time of a step goes: seconds by kind of native op, on thread 0, barriers counted to the op behind them.

    python scripts/profile_step.py MODEL [--depth 0] [--prefill 512] [--isa avx2] [--threads 2]

Fills the context to the depth, then profiles one prefill step (row by row: op by op, unlike an ordinary step, which
takes runs of row-wise ops together) and the median decode step. Prints a table and last one JSON line.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from measure import print_result, table

from localinfer import models
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend, CpuExecutable

BLOCK = 16
DECODES = 32


def by_kind(executable: CpuExecutable, steps: int) -> dict[str, float]:
    """Milliseconds per step since the last call."""
    sums: dict[str, float] = defaultdict(float)
    for op, seconds in executable.profile():
        sums[op.kind] += 1000 * seconds / steps
    return dict(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa")
    options = parser.parse_args()
    context = options.depth + options.prefill + DECODES
    blocks = range(-(-context // BLOCK))

    with open_gguf(options.model) as file:
        program = models.record(file.metadata, file, context)
        config = LoadConfig(options.prefill, 1, 1, context, len(blocks), BLOCK, threads=options.threads)
        executable = CpuBackend(options.isa).load(program, file, config)

        def step(first: int, count: int) -> None:
            tokens = [(7 * position + 3) % program.vocab_size for position in range(first, first + count)]
            executable.step(batch_of([(tokens, first, blocks)]))

        for first in range(0, options.depth, options.prefill):
            step(first, min(options.prefill, options.depth - first))
        step(options.depth, options.prefill)  # touches all memory
        executable.profile()
        step(options.depth, options.prefill)
        prefill = by_kind(executable, 1)
        for i in range(DECODES):
            step(options.depth + options.prefill + i, 1)
        decode = by_kind(executable, DECODES)
        executable.close()

    kinds = sorted(prefill, key=lambda kind: -prefill[kind])
    rows = [[kind, prefill[kind], decode[kind]] for kind in kinds]
    rows.append(["all", sum(prefill.values()), sum(decode.values())])
    print(table(["op", f"prefill of {options.prefill}, ms", "decode, ms"], rows))
    print_result({"depth": options.depth, "prefill_ms": prefill, "decode_ms": decode})


if __name__ == "__main__":
    main()
