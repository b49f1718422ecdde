"""Does this tensor come from that one? Looks at every block, and says what was found."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from localinfer.verify.budget import BUDGETS, Budget, energy
from localinfer.verify.known import Quantizer, quantizers_for
from localinfer.verify.pair import Chunk, Pair
from localinfer.verify.rules import SAME, Rule, rules_for

_WORST = 5  # places that are told
_AHEAD = 4  # chunks that may wait
_MOST_LEANING = 7.0  # standard deviations
# Error feedback, and large changes of the weights, leave hardly a block with every weight on its nearest level.
_MOST_BLOCKS = 0.5
_FEW_BROKEN = 0.3  # of the blocks are whole
_RELATED = 0.3  # less correlation is none

Floats = npt.NDArray[np.float32]
Result = TypeVar("Result")


class Verdict(StrEnum):
    """What is known of a tensor, from best to worst."""

    IDENTICAL = "identical"  # a known quantizer makes these very bytes from the source
    CONSISTENT = "consistent"  # every block obeys what honest quantizers of its type obey
    UNPROVEN = "unproven"  # close, but not by a rule that is known; the report says what it may be
    DIFFERENT = "different"  # not from this source


class Place(NamedTuple):
    """Where a tensor departs from its source: the row, the first column of the block, and by how much."""

    row: int
    column: int
    excess: float


@dataclass(frozen=True)
class Tally:
    """What looking at chunks adds up to. Energies are sums of squares.

    broken     blocks that break the rule; `broken_rows` have at least one
    lavish     blocks that lose more than their budget
    leaning    rows whose scales lean to one side
    excess     by how much broken blocks break the rule, summed; more than 100 steps count as 100
    error      of the file's values; `plain` is that of plain rounding (budget.py)
    product    of weights and the file's values, summed
    too_small, too_small_squared   what blocks' scales are too small by beyond the budget's lean, in energy, summed;
               and the squares of that; `too_large` alike
    """

    rows: int = 0
    weights: int = 0
    blocks: int = 0
    broken: int = 0
    broken_rows: int = 0
    lavish: int = 0
    leaning: int = 0
    excess: float = 0.0
    source_energy: float = 0.0
    file_energy: float = 0.0
    product: float = 0.0
    error: float = 0.0
    plain: float = 0.0
    too_small: float = 0.0
    too_small_squared: float = 0.0
    too_large: float = 0.0
    too_large_squared: float = 0.0
    worst: tuple[Place, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        worst = sorted((*self.worst, *other.worst), key=lambda place: -place.excess)[:_WORST]
        names = [name for name in self.__dataclass_fields__ if name != "worst"]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names}, worst=tuple(worst))

    @property
    def correlation(self) -> float:
        scale = math.sqrt(self.source_energy * self.file_energy)
        return self.product / scale if scale else float(self.source_energy == self.file_energy)

    @property
    def relative_error(self) -> float:
        """Of the file's values, over the weights; both root mean square."""
        return math.sqrt(self.error / self.source_energy) if self.source_energy else float(self.error > 0)


@dataclass(frozen=True)
class Finding:
    """A verdict about one tensor, and what it rests on.

    how     the quantizer that makes the same bytes; the rule that all blocks obey; or what speaks against
    way     a type by way of which the weights went, "" if none
    change  an estimate of how far the weights are from the source's, relative; None where nothing points at a change
    """

    verdict: Verdict
    how: str
    way: str = ""
    tally: Tally = field(default_factory=Tally)
    change: float | None = None


def examine(
    pair: Pair,
    chunks: Sequence[Chunk],
    pool: Executor,
    more: Mapping[str, Quantizer] | None = None,
    feedback: bool = False,
) -> Finding:
    """The verdict about a tensor from some of its rows, or all of them. `more` quantizers are tried first.

    `feedback` says that the file tells of error feedback. That may make single blocks much worse, as Q8_0 shows, where
    a step is small: it does not speak against the tensor then.
    """
    return _Examination(pair, list(chunks), pool, more or {}, feedback).finding()


class _Examination:
    """One tensor. A chunk that refuted something is asked first from then on."""

    def __init__(
        self, pair: Pair, chunks: list[Chunk], pool: Executor, more: Mapping[str, Quantizer], feedback: bool
    ) -> None:
        self._pair = pair
        self._feedback = feedback
        self._chunks = chunks
        self._pool = pool
        self._budget = BUDGETS.get(pair.file.type.name)
        self._rules = rules_for(pair.file.type.name)
        self._quantizers = {**more, **quantizers_for(pair.file.type.name)}

    def finding(self) -> Finding:
        looked = Tally(rows=sum(chunk.rows for chunk in self._chunks))
        looked = looked + Tally(weights=looked.rows * self._pair.columns)
        if self._holds(self._pair.same_bytes):
            return Finding(Verdict.IDENTICAL, "the same bytes", tally=looked)
        ways = ["", *self._pair.conversions()]
        for way in ways:
            for name, quantizer in self._quantizers.items():
                if self._reproduced(way, quantizer):
                    return Finding(Verdict.IDENTICAL, name, way, looked)
        for way in ways:
            for rule in self._rules:
                tally = self._tally(rule, way, stop=True)
                if tally is not None and not tally.broken:
                    return self._within_budget(Finding(Verdict.CONSISTENT, rule.name, way, tally))
        return self._detour() or self._departure()

    def _reproduced(self, way: str, quantizer: Quantizer) -> bool:
        """Whether a quantizer makes the same bytes."""
        return self._holds(lambda chunk: bool(quantizer(self._pair.weights(chunk, way)) == self._pair.data(chunk)))

    def _holds(self, test: Callable[[Chunk], bool]) -> bool:
        """Whether a test holds for all chunks."""
        for chunk, result in _in_order(self._pool, test, self._chunks):
            if not result:
                self._ask_first(chunk)
                return False
        return True

    def _tally(self, rule: Rule, way: str, stop: bool) -> Tally | None:
        """What all chunks add up to; with `stop`, None as soon as one breaks the rule."""
        total = Tally()

        def look(chunk: Chunk) -> Tally:
            return tally_chunk(self._pair, chunk, rule, self._budget, way)

        for chunk, tally in _in_order(self._pool, look, self._chunks):
            if stop and tally.broken:
                self._ask_first(chunk)
                return None
            total += tally
        return total

    def _ask_first(self, chunk: Chunk) -> None:
        self._chunks.remove(chunk)
        self._chunks.insert(0, chunk)

    def _within_budget(self, finding: Finding) -> Finding:
        complaint = complaint_about(finding.tally, self._budget)
        return Finding(Verdict.UNPROVEN, complaint, finding.way, finding.tally) if complaint else finding

    def _detour(self) -> Finding | None:
        """Whether the file was made from a quantized version of the source."""
        for way in self._pair.requantizations():
            for name, quantizer in self._quantizers.items():
                if self._reproduced(way, quantizer):
                    return Finding(Verdict.UNPROVEN, f"requantized, {name}", way)
            for rule in (rule for rule in self._rules if rule.sharp):
                tally = self._tally(rule, way, stop=True)
                if tally is not None and not tally.broken:
                    return Finding(Verdict.UNPROVEN, f"requantized, {rule.name}", way, tally)
        return None

    def _departure(self) -> Finding:
        """The weights are others, or were quantized in a way that is not known."""
        first = [self._chunks[0]]
        rules = tuple(reversed(self._rules)) or (SAME,)
        rule = min(rules, key=lambda rule: tally_chunk(self._pair, first[0], rule, self._budget, "").broken)
        tally = self._tally(rule, "", stop=False) or Tally()
        change = _change(tally)
        close = tally.broken > _MOST_BLOCKS * tally.blocks and tally.correlation > _RELATED
        close = close and (self._feedback or not tally.lavish)
        if self._budget and close and tally.error <= _affordable(tally, self._budget):
            return Finding(Verdict.UNPROVEN, "error feedback, or other weights", "", tally, change)
        return Finding(Verdict.DIFFERENT, f"breaks {rule.name}", "", tally, change)


def complaint_about(tally: Tally, budget: Budget | None) -> str:
    """What is wrong with the scales of blocks that obey a rule; "" if nothing is."""
    if budget is None:
        return ""
    if tally.lavish:
        return "scales that lose too much"
    if tally.error > _affordable(tally, budget):
        return "scales that lose too much all over"
    leaning = _leans(tally.too_small, tally.too_small_squared) or _leans(tally.too_large, tally.too_large_squared)
    return "scales that lean to one side" if tally.leaning or leaning else ""


def _affordable(tally: Tally, budget: Budget) -> float:
    return budget.tensor * tally.plain + budget.slack * tally.weights


def _leans(total: Any, squares: Any) -> Any:
    return total > _MOST_LEANING * np.sqrt(squares)


def tally_chunk(pair: Pair, chunk: Chunk, rule: Rule, budget: Budget | None, way: str = "") -> Tally:
    """What a run of rows shows under a rule."""
    size = pair.file.type.block_size if pair.file.type.block_size > 1 else pair.columns
    weights = pair.weights(chunk, way).reshape(-1, size)
    values = pair.values(chunk).reshape(-1, size)
    return tally_blocks(weights, pair.data(chunk), values, rule, budget, chunk.start, pair.columns // size)


def tally_blocks(
    weights: Floats,
    data: Any,
    values: Floats,
    rule: Rule,
    budget: Budget | None,
    first_row: int,
    blocks_per_row: int,
) -> Tally:
    """As `tally_chunk`, of n blocks: weights and values [n, size], and the blocks' bytes."""
    finite = np.asarray(np.isfinite(weights).all(axis=1) & np.isfinite(values).all(axis=1))
    if not finite.all():
        weights, values = (np.where(finite[:, None], array, np.float32(0)) for array in (weights, values))
    excess = np.where(finite, rule.excess(weights, data, values), np.float32(np.inf))
    broken = np.flatnonzero(excess)
    source, error = energy(weights), energy(values - weights)
    plain = budget.plain(weights) if budget else np.zeros(1)
    lavish = error > budget.block * plain + budget.slack * weights.shape[1] if budget else np.zeros(1, bool)
    leans = _leaning(weights, values, budget, blocks_per_row) if budget and rule.free_scale else {}
    told = np.union1d(broken[np.argsort(-excess[broken], kind="stable")[:_WORST]], np.flatnonzero(lavish)[:1])
    size = weights.shape[1]
    places = [
        Place(first_row + int(i) // blocks_per_row, int(i) % blocks_per_row * size, float(excess[i])) for i in told
    ]
    return Tally(
        rows=len(weights) // blocks_per_row,
        weights=weights.size,
        blocks=len(weights),
        broken=len(broken),
        broken_rows=len(np.unique(broken // blocks_per_row)),
        lavish=int(lavish.sum()),
        excess=float(np.minimum(excess[broken], 100).sum()),
        source_energy=float(source.sum()),
        file_energy=float(energy(values).sum()),
        product=float(np.einsum("ij,ij->", weights, values, dtype=np.float64)),
        error=float(error.sum()),
        plain=float(plain.sum()),
        **leans,
        worst=tuple(sorted(places, key=lambda place: -place.excess)[:_WORST]),
    )


def _leaning(weights: Floats, values: Floats, budget: Budget, blocks_per_row: int) -> dict[str, Any]:
    """Sums for `Tally` of what blocks' scales are too small, or too large, by: their values times their errors."""
    product = np.einsum("ij,ij->i", values, weights - values, dtype=np.float64)
    allowed = budget.lean * energy(values) + budget.slack * weights.shape[1]
    sums: dict[str, Any] = {}
    leaning = np.zeros(len(weights) // blocks_per_row, bool)
    for name, side in (("too_small", product), ("too_large", -product)):
        beyond = side - allowed
        rows = beyond.reshape(-1, blocks_per_row)
        leaning |= np.asarray(_leans(rows.sum(axis=1), (rows**2).sum(axis=1)))
        sums |= {name: float(beyond.sum()), f"{name}_squared": float((beyond**2).sum())}
    return sums | {"leaning": int(leaning.sum())}


def _change(tally: Tally) -> float | None:
    """How far other weights may be from the source's, relative to them, root mean square; None if that cannot be told.

    Small changes show in the share of weights that cross a border between levels, which is their mean size over the
    step: a block of n weights stays whole with probability exp(-n * share). Larger ones show in how far the worst
    weight of a block lies beyond its border, some two of their standard deviations; the largest in the error beyond
    that of plain rounding. The step is what makes an error of step^2 / 12. Weights that the file was made of are about
    as far from its values as plain rounding, and so no farther from the source than that and the error together.
    """
    if not tally.source_energy or not tally.blocks:
        return None
    plain = math.sqrt(tally.plain / tally.source_energy) if tally.plain else tally.relative_error
    step = math.sqrt(12) * min(tally.relative_error, plain)
    beyond = math.sqrt(max(0.0, tally.relative_error**2 - plain**2)) if tally.plain else tally.relative_error
    whole = 1 - tally.broken / tally.blocks
    if whole > _FEW_BROKEN:
        share = -math.log(whole) / (tally.weights / tally.blocks)
        return share * step * math.sqrt(math.pi / 2)
    crossed = tally.excess / tally.broken / 2 * step if tally.plain else 0.0
    return min(max(beyond, crossed), tally.relative_error + plain)


def _in_order(
    pool: Executor, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]
) -> Iterator[tuple[Chunk, Result]]:
    """Results of a function for chunks, in order, computed a few ahead."""
    waiting: deque[tuple[Chunk, Future[Result]]] = deque()
    try:
        for chunk in list(chunks):
            waiting.append((chunk, pool.submit(function, chunk)))
            if len(waiting) > _AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()
