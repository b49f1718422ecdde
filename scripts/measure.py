"""Small statistics that the comparison scripts share. No dependencies."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Round by round, `numerators[i] / denominators[i]`: what both sides share in a round cancels out."""
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} rounds cannot be paired")
    return [n / d for n, d in zip(numerators, denominators, strict=True)]


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the paired ratios."""
    return statistics.median(paired_ratios(numerators, denominators))


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error, s / sqrt(n) with s² the unbiased variance (error 0 for one value)."""
    items = list(values)
    mean = math.fsum(items) / len(items)
    if len(items) == 1:
        return mean, 0.0
    variance = math.fsum((v - mean) ** 2 for v in items) / (len(items) - 1)
    return mean, math.sqrt(variance / len(items))


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean of `ours[i] - theirs[i]` and its standard error: the noise that both share does not count."""
    return mean_and_error(a - b for a, b in zip(ours, theirs, strict=True))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain text table: first column left, the others right; floats with four significant digits."""
    cells = [[f"{c:.4g}" if isinstance(c, float) else str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def print_result(values: dict[str, Any]) -> None:
    """The last line of a script: one JSON object."""
    print(json.dumps(values), flush=True)
