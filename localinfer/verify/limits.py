"""How small a change would have been found? Measured, by changing the source and the file and looking again.

For the first tensor of each type that was found consistent: noise is added to the source's weights, one of its rows is
multiplied by a factor, and single bits of the file are flipped; then the same rule looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from localinfer.kernels.reference.dequantize import dequantize
from localinfer.verify.budget import BUDGETS
from localinfer.verify.examine import Finding, complaint_about, tally_blocks
from localinfer.verify.pair import Chunk, Pair
from localinfer.verify.report import Limit
from localinfer.verify.rules import Rule, rules_for

_WEIGHTS = 1 << 18  # looked at
_FLIPS = 200
_LARGEST, _SMALLEST = 4.0, 2.0**-30  # sizes of changes between which the limit is looked for
_STEPS = 12  # halvings of that interval's logarithm

Floats = npt.NDArray[np.float32]


def measure_limits(consistent: Sequence[tuple[Pair, Finding]], seed: int) -> list[Limit]:
    """One limit per type, on its largest tensor."""
    largest: dict[str, tuple[Pair, Finding]] = {}
    for pair, finding in consistent:
        name = pair.file.type.name
        if name not in largest or pair.file.nbytes > largest[name][0].file.nbytes:
            largest[name] = (pair, finding)
    return [measure_limit(pair, finding, seed) for pair, finding in largest.values()]


def measure_limit(pair: Pair, finding: Finding, seed: int) -> Limit:
    """The limits for a tensor that obeys the rule of its finding."""
    rule = next(rule for rule in rules_for(pair.file.type.name) if rule.name == finding.how)
    return _Trial(pair, rule, finding.way, np.random.default_rng(seed)).limit()


class _Trial:
    """Some rows of a pair, as blocks: from the middle of the tensor, since embeddings begin with unused tokens."""

    def __init__(self, pair: Pair, rule: Rule, way: str, random: np.random.Generator) -> None:
        self._pair = pair
        self._rule = rule
        self._random = random
        self._type = pair.file.type
        rows = min(pair.rows, max(1, _WEIGHTS // pair.columns))
        chunk = Chunk((pair.rows - rows) // 2, rows)
        self._rows = rows
        self._data = pair.data(chunk)
        self._weights = pair.weights(chunk, way)
        self._values = pair.values(chunk)

    def limit(self) -> Limit:
        noise = self._random.standard_normal(self._weights.shape, np.float32)
        noise *= np.sqrt(np.mean(self._weights.astype(np.float64) ** 2)).astype(np.float32)
        row = int(np.argmax(np.einsum("ij,ij->i", self._weights, self._weights)))

        def noisy(size: float) -> bool:
            return self._found(self._weights + np.float32(size) * noise)

        def scaled(size: float) -> bool:
            changed = self._weights[row : row + 1] * np.float32(1 + size)
            return self._found(changed, slice(row, row + 1))

        return Limit(
            self._type.name,
            self._pair.file.name,
            self._rule.name,
            self._rows,
            _smallest(noisy),
            _smallest(scaled),
            self._flips_found(),
        )

    def _found(self, weights: Floats, rows: slice = slice(None)) -> bool:
        size = self._type.row_bytes(self._pair.columns)
        start, stop, _ = rows.indices(self._rows)
        data = self._data[start * size : stop * size]
        return _is_found(self._pair, self._rule, weights, data, self._values[rows])

    def _flips_found(self) -> float:
        """Whether the block breaks the rule, for single bits of different blocks."""
        blocks = len(self._data) // self._type.block_bytes
        chosen = self._random.choice(blocks, min(blocks, _FLIPS), replace=False)
        data = np.frombuffer(self._data, np.uint8).reshape(blocks, -1)[chosen].copy()
        bits = self._random.integers(0, 8 * self._type.block_bytes, len(chosen))
        data[np.arange(len(chosen)), bits // 8] ^= (1 << (bits % 8)).astype(np.uint8)
        weights = self._weights.reshape(blocks, -1)[chosen]
        values = dequantize(self._type, data.tobytes(), weights.shape)
        found = [
            _is_found(self._pair, self._rule, weights[i : i + 1], data[i : i + 1].tobytes(), values[i : i + 1])
            for i in range(len(chosen))
        ]
        return sum(found) / len(found)


def _is_found(pair: Pair, rule: Rule, weights: Floats, data: memoryview | bytes, values: Floats) -> bool:
    size, budget = pair.file.type.block_size, BUDGETS.get(pair.file.type.name)
    per_row = max(1, weights.shape[-1] // size)
    tally = tally_blocks(weights.reshape(-1, size), data, values.reshape(-1, size), rule, budget, 0, per_row)
    return bool(tally.broken or complaint_about(tally, budget))


def _smallest(found: Callable[[float], bool]) -> float:
    """The smallest size of change that is found, to within a few per cent of its logarithm; infinite if none is."""
    low, high = np.log(_SMALLEST), np.log(_LARGEST)
    if not found(_LARGEST):
        return float("inf")
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if found(float(np.exp(middle))):
            high = middle
        else:
            low = middle
    return float(np.exp(high))
