"""Types that choose from a code book: which entries can have been chosen for given weights.

A group of weights, divided by some scale, is rounded to the levels of the book's entries. If the book has that point,
it is taken; else one of those that lie nearest to the point, in as many distances as the type looks at: which of them
depends on how much each weight matters, which nobody else knows. All groups of a run share the scale. So there must
be one scale under which every group has an entry that can have been chosen; only finitely many scales differ in what
the weights are rounded to, and all of them are tried.

IQ1 has levels -1, 0 and 1 only, and instead of by a scale the sorted weights of a run are split at two borders.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localinfer.kernels.reference.dequantize import DEQUANTIZERS

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

_AT_ONCE = 1024  # runs that are tried together
NO_WEIGHT = np.float32(1e-7)  # a run of smaller ones is left as it was by some quantizers


@dataclass(frozen=True)
class Book:
    """run       weights that share a scale
    group        weights of an entry
    shells       distances at which the neighbours of a point that is not in the book are looked at
    again        whether groups that are not in the book are rounded once more, under another scale
    entries      function from blocks to the index of every group's entry, [n, groups]
    """

    run: int
    group: int
    shells: int
    again: bool
    entries: Callable[[Array], Array]


def unexplained_runs(type_name: str, weights: Floats, data: Any, values: Floats) -> Array:
    """Which runs of n blocks have an entry that no scale explains: bool [n, runs].

    weights and values float32 [n, size]; a weight whose sign differs from its value's was taken for negative.
    """
    book = BOOKS[type_name]
    blocks = np.frombuffer(data, DEQUANTIZERS[type_name][0])
    chosen = book.entries(blocks).astype(np.int64).reshape(-1, book.run // book.group)
    runs, made = weights.reshape(-1, book.run), values.reshape(-1, book.run)
    split = type_name.startswith("IQ1")
    units = runs if split else np.where(np.signbit(made) == (runs < 0), np.abs(runs), -np.abs(runs))
    idle = (np.abs(runs).max(axis=1) < NO_WEIGHT) | untouched_runs(type_name, values).ravel()
    explain = _split_explains if split else _scale_explains
    unexplained = np.zeros(len(runs), bool)
    for start in range(0, len(runs), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        unexplained[part] = ~explain(type_name, units[part], chosen[part])
    found: Array = (unexplained & ~idle).reshape(len(weights), -1)
    return found


def untouched_runs(type_name: str, values: Floats) -> Array:
    """Which runs hold what quantizers leave there if all weights, or their importances, are zero: bool [n, runs].

    The first entry (without minus signs where they stand beside), whose weights are all alike.
    """
    runs = values.reshape(len(values), -1, BOOKS[type_name].run)
    alike: Array = (runs == runs[:, :, :1]).all(axis=2)
    return alike if type_name.startswith("IQ1") else alike & (runs[:, :, 0] >= 0)


@functools.cache
def _levels(type_name: str) -> Array:
    """The entries of a book as indices of levels, uint8 [entries, group] (the gguf package keeps the books)."""
    import gguf.quants

    kept: Any = getattr(gguf.quants, type_name)
    kept.init_grid()
    entries = kept.grid.reshape(kept.grid_shape)
    levels: Array = np.searchsorted(np.unique(entries), entries).astype(np.uint8)
    return levels


@functools.cache
def _choices(type_name: str) -> tuple[Array, Array]:
    """Which entries can be chosen for a point, bool [points, entries], and which points are in the book.

    A point is a number whose digits, lowest first, are the levels of its weights.
    """
    book, entries = BOOKS[type_name], _levels(type_name).astype(np.float32)
    base = int(entries.max()) + 1
    points = np.arange(base**book.group)
    digits = (points[:, None] // base ** np.arange(book.group) % base).astype(np.float32)
    distance = (digits**2).sum(1)[:, None] + (entries**2).sum(1) - 2 * digits @ entries.T
    nearest = distance.min(axis=1, keepdims=True)
    reach = nearest
    for _ in range(book.shells - 1):
        reach = np.where(distance > reach, distance, np.inf).min(axis=1, keepdims=True)
    inside = nearest[:, 0] == 0
    reach = np.where(inside[:, None], 0, reach)
    return distance <= reach, inside


def _powers(type_name: str) -> Integers:
    """What each weight of a run adds to its group's point per level, int32 [run]."""
    book = BOOKS[type_name]
    base = int(_levels(type_name).max()) + 1
    return np.tile(base ** np.arange(book.group), book.run // book.group).astype(np.int32)


def _scale_explains(type_name: str, units: Floats, chosen: Array) -> Array:
    """Whether some scale leads to the chosen entries [n, groups]: units [n, run] are magnitudes, or are negative.

    Level l turns into l + 1 where weight * scale = 2 (l + 1). With these scales in ascending order, the points under
    all scales are running sums.
    """
    book = BOOKS[type_name]
    borders = 2.0 * np.arange(1, int(_levels(type_name).max()) + 1)
    positive = units > 0
    with np.errstate(divide="ignore"):
        scales = np.where(positive, 1.0 / np.where(positive, units, 1), np.inf)[:, :, None] * borders
    scales = scales.reshape(len(units), -1)
    order = np.argsort(scales, axis=1)
    weight = order // len(borders)
    gain = np.where(np.isfinite(np.take_along_axis(scales, order, axis=1)), _powers(type_name)[weight], 0)
    points = _running_points(gain, weight // book.group, book.run // book.group)
    possible, inside = _choices(type_name)
    explained: Array = possible[points, chosen[:, :, None]]
    if book.again:
        explained |= ~inside[points] & np.any(explained, axis=2, keepdims=True)
    return _for_all_groups(explained)


def _running_points(gain: Integers, group: Array, groups: int) -> Integers:
    """The points of all groups after each step, int32 [n, groups, steps + 1]: `gain` is what a step adds to a group."""
    points = np.zeros((len(gain), groups, gain.shape[1] + 1), np.int32)
    for index in range(groups):
        np.cumsum(np.where(group == index, gain, 0), axis=1, out=points[:, index, 1:])
    return points


def _split_explains(type_name: str, units: Floats, chosen: Array) -> Array:
    """Whether two borders between the sorted weights [n, run] lead to the chosen entries [n, groups].

    Weights that are equal may stand in any order, so groups with one at a border are not asked.
    """
    book = BOOKS[type_name]
    order = np.argsort(units, axis=1, kind="stable")
    ordered = np.take_along_axis(units, order, axis=1)
    powers, groups = _powers(type_name)[order], book.run // book.group
    below = _running_points(powers, order // book.group, groups)
    above = below[:, :, -1:] - below  # the points if all weights from a border on are one level higher
    equal = np.zeros((len(units), book.run + 1), bool)
    equal[:, 1:-1] = ordered[:, 1:] == ordered[:, :-1]
    tied = np.zeros(above.shape, bool)
    if equal.any():
        same = np.where(equal, np.pad(ordered, ((0, 0), (0, 1))), np.float32(np.nan))
        members = units.reshape(len(units), groups, 1, book.group) == same[:, None, :, None]
        tied = members.any(axis=3)
    first, second = np.triu_indices(book.run + 1)
    points = above[:, :, first] + above[:, :, second]
    free = tied[:, :, first] | tied[:, :, second]
    possible, _ = _choices(type_name)
    return _for_all_groups(possible[points, chosen[:, :, None]] | free)


def _for_all_groups(explained: Array) -> Array:
    """Whether one try explains all groups: bool [n, groups, tries] to [n]."""
    found: Array = np.any(np.all(explained, axis=1), axis=1)
    return found


def _high_bits(bytes_: Array, bits: int) -> Array:
    """Fields that follow one another, lowest first: uint8 [n, k] to uint16 [n, 8 k / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (bytes_[:, :, None] >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(bytes_), -1).astype(np.uint16)


def _iq1_s(block: Array) -> Array:
    upper = (block["high"][:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    entries: Array = block["low"].astype(np.uint16) | (upper.reshape(len(block), -1) << np.uint16(8))
    return entries


def _iq1_m(block: Array) -> Array:
    upper = _high_bits(block["high"], 4) & np.uint16(7)
    entries: Array = block["low"].astype(np.uint16) | (upper << np.uint16(8))
    return entries


def _with_high(block: Array, bits: int) -> Array:
    entries: Array = block["low"].astype(np.uint16) | (_high_bits(block["high"], bits) << np.uint16(8))
    return entries


BOOKS: dict[str, Book] = {
    "IQ2_XXS": Book(32, 8, 2, False, lambda block: block["group"]["index"].reshape(len(block), -1)),
    "IQ2_XS": Book(16, 8, 2, True, lambda block: block["q"] & np.uint16(511)),
    "IQ2_S": Book(16, 8, 1, True, lambda block: _with_high(block, 2)),
    "IQ3_XXS": Book(32, 4, 2, True, lambda block: block["index"]),
    "IQ3_S": Book(32, 4, 3, False, lambda block: _with_high(block, 1)),
    "IQ1_S": Book(32, 8, 3, False, _iq1_s),
    "IQ1_M": Book(16, 8, 3, False, _iq1_m),
}
