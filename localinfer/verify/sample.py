"""Which rows are looked at: all of them, or some that nobody can know beforehand."""

from __future__ import annotations

import random

from localinfer.verify.pair import CHUNK_WEIGHTS, Chunk, Pair

_RUN = 4  # rows that lie side by side in a sample
_LEAST_RUNS = 16  # of a tensor, if it has as many


def chunks_of(pair: Pair, share: float, seed: int) -> list[Chunk]:
    """Runs of rows: all rows with a share of 1, else about that share of them, spread over the tensor by chance.

    A few runs are taken even of small tensors. The same seed gives the same rows of a tensor of the same name.
    """
    step = max(1, CHUNK_WEIGHTS // pair.columns)
    if share >= 1:
        return [Chunk(start, min(step, pair.rows - start)) for start in range(0, pair.rows, step)]
    length = min(_RUN, step)
    runs = range(0, pair.rows, length)
    count = min(len(runs), max(_LEAST_RUNS, round(share * len(runs))))
    chosen = sorted(random.Random(f"{seed} {pair.file.name}").sample(runs, count))
    return [Chunk(start, min(length, pair.rows - start)) for start in chosen]
