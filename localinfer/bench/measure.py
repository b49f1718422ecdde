"""Prefill and decode rates of a loaded model: steps of random tokens, straight on the Executable.

Which tokens they are does not matter for the time of a step, so no tokenizer takes part, and a base model can be
measured like any other. Cases are measured in turn, round by round, so that a machine that slows down meanwhile
slows all of them alike.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localinfer.kernels.base import Batch, Executable, LoadConfig

SEED = 1


@dataclass(frozen=True)
class Case:
    """`tokens` tokens after `depth` earlier ones: in as few steps as possible (prefill) or one by one (decode)."""

    what: str  # "prefill" or "decode"
    tokens: int
    depth: int


@dataclass(frozen=True)
class Result:
    """A case and the seconds that each round of it took."""

    case: Case
    seconds: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Tokens per second in the median round."""
        return self.case.tokens / statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Tokens per second in the slowest and in the fastest round."""
        return self.case.tokens / max(self.seconds), self.case.tokens / min(self.seconds)


def cases(prompts: Sequence[int], decodes: Sequence[int], depths: Sequence[int]) -> list[Case]:
    """Every length at every depth; a length of 0 is left out."""
    return [
        Case(what, tokens, depth)
        for depth in sorted(set(depths))
        for what, lengths in (("prefill", prompts), ("decode", decodes))
        for tokens in lengths
        if tokens
    ]


def context_needed(wanted: Sequence[Case]) -> int:
    return max(2, *(case.depth + case.tokens for case in wanted))


class Stepper:
    """Runs steps of one sequence whose block table covers the whole context."""

    def __init__(self, executable: Executable, vocab_size: int, config: LoadConfig) -> None:
        self._executable, self._chunk = executable, config.max_tokens
        self._blocks = array("i", range(config.kv_blocks))
        draw = random.Random(SEED)
        self._tokens = array("i", (draw.randrange(vocab_size) for _ in range(config.context)))

    def run(self, first: int, last: int, chunk: int = 0) -> None:
        """Processes positions `[first, last)`, `chunk` at a time (0: the largest step); logits of each step's last."""
        chunk = chunk or self._chunk
        for start in range(first, last, chunk):
            end = min(start + chunk, last)
            self._executable.step(
                Batch(
                    tokens=self._tokens[start:end],
                    positions=array("i", range(start, end)),
                    starts=array("i", [0, end - start]),
                    block_table=self._blocks,
                    table_starts=array("i", [0, len(self._blocks)]),
                    logit_rows=array("i", [end - start - 1]),
                )
            )


def measure(
    stepper: Stepper, wanted: Sequence[Case], rounds: int, progress: Callable[[int, int], None] | None = None
) -> list[Result]:
    """Runs all cases `rounds` times; `progress` hears how many of how many runs are done."""
    stepper.run(0, max(case.depth for case in wanted))
    for what in {case.what for case in wanted}:  # once unmeasured: memory is touched, threads are awake
        _run(stepper, next(case for case in wanted if case.what == what))
    seconds: list[list[float]] = [[] for _ in wanted]
    for number in range(rounds):
        for i, case in enumerate(wanted):
            start = time.perf_counter()
            _run(stepper, case)
            seconds[i].append(time.perf_counter() - start)
            if progress:
                progress(number * len(wanted) + i + 1, rounds * len(wanted))
    return [Result(case, tuple(times)) for case, times in zip(wanted, seconds, strict=True)]


def _run(stepper: Stepper, case: Case) -> None:
    # Earlier positions hold the same tokens whatever ran before, so a case finds the keys and values it needs.
    stepper.run(case.depth, case.depth + case.tokens, chunk=1 if case.what == "decode" else 0)
