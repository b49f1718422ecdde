"""Figures with standard errors, from numbers that belong to windows of a text.

Predictions within one window depend on each other: a hard passage is hard for many tokens. Windows do not, or hardly.
So windows are what is counted: the error of a mean is that of the mean of window means, s / sqrt(windows), and the
error of a quantile is the standard deviation of that quantile over texts drawn anew from the windows, with replacement
(Efron's bootstrap), from a fixed seed. One window alone tells no error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

RESAMPLES = 400
SEED = 20240607


class Figure(NamedTuple):
    """A value and its standard error, which is None where it cannot be told."""

    value: float
    error: float | None

    def scaled(self, value: float, slope: float) -> Figure:
        """A function of this figure: its value, and the error by its slope there (the delta method)."""
        return Figure(value, None if self.error is None else self.error * abs(slope))


def mean(values: Sequence[float], windows: int) -> Figure:
    """The mean of values that stand window by window, equally many in each."""
    size = len(values) // windows
    means = [math.fsum(values[i * size : (i + 1) * size]) / size for i in range(windows)]
    overall = math.fsum(means) / windows
    if windows < 2:
        return Figure(overall, None)
    variance = math.fsum((m - overall) ** 2 for m in means) / (windows - 1)
    return Figure(overall, math.sqrt(variance / windows))


def quantiles(values: Sequence[float], windows: int, parts: Sequence[float]) -> list[Figure]:
    """For each part, the smallest value that so large a part of all values does not exceed."""
    import numpy as np

    numbers = np.asarray(values)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    window = order // (len(numbers) // windows)  # where each value, in ascending order, comes from
    places = [math.ceil(part * len(numbers)) for part in parts]
    found = [float(ordered[place - 1]) for place in places]
    if windows < 2:
        return [Figure(value, None) for value in found]
    random = np.random.RandomState(SEED)  # a generator whose numbers never change (NEP 19)
    drawn = np.empty((RESAMPLES, len(parts)))
    for i in range(RESAMPLES):
        times = np.bincount(random.randint(windows, size=windows), minlength=windows)
        drawn[i] = ordered[np.searchsorted(np.cumsum(times[window]), places)]
    errors = drawn.std(axis=0, ddof=1)
    return [Figure(value, float(error)) for value, error in zip(found, errors, strict=True)]
