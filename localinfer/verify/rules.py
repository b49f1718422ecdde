"""What an honest quantizer leaves behind in every block: rules that a block obeys, or breaks by so much.

Most quantizers end in the same way. However they found the scales of a block, with whatever importance of weights, they
then put every weight on the level that is nearest to it. So a block tells by itself whether it was made from given
weights, and nothing need be known about the search for its scales:

    nearest    every weight lies nearest to its own level, under the scales as they are stored. So end llama.cpp's
               K types and four-bit floats
    coarse     the same, but weights may have been divided by their scale in bfloat16, as quantizers in torch do it:
               integers and FP8 in safetensors
    rounded    every weight lies nearest to its own level under a scale that rounds to the stored one: scales are
               computed in 32 bits and stored in 16 (IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, and all with one scale when made
               without importances)
    rescaled   every weight lies nearest to its own level under some scale (and minimum), not too far from the stored
               one: Q4_0, Q4_1, Q5_0, Q5_1, where the scale is replaced by a weighted mean when the levels are chosen
    book       every group of weights has an entry that its rounding leads to under some scale, and every weight its
               sign, but for one of eight where the format wants an even number of minus signs (IQ2, IQ3; books.py)
    split      every group has the entry that splitting the sorted weights at some two borders leads to (IQ1)

A weight beyond the outermost level belongs to it. Rules are exact, up to what float32 arithmetic loses: one weight on
the wrong side of a border, and the block was not made from these weights. So changes far smaller than a step are found,
because some of many weights lie close to a border. Rules say nothing about the scales themselves: budget.py does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localinfer.kernels.reference.dequantize import DEQUANTIZERS
from localinfer.verify.books import BOOKS, NO_WEIGHT, unexplained_runs, untouched_runs
from localinfer.verify.grids import GRIDS, INTERNAL, Levels, Placed, place

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# In steps: what float32 arithmetic with 64 levels loses, in whatever order a compiler puts it, several times over.
_TOLERANCE = np.float32(1e-4)
# The same for a scale, relative.
_SCALE_TOLERANCE = 2e-6
# A 16-bit float lies this close to the number that it stands for: relative, or absolute close to zero.
_HALF_ULP, _HALF_SPACING = 2.0**-11, 2.0**-25
_HALF_BF16_ULP = np.float32(2.0**-8)
# The scale that chose the levels over the one stored. A weighted mean of weights / levels can be off by 2; with a
# minimum beside it searches went to 3.3, with importances that differ ten-thousandfold.
_MOST_RESCALED = 4.0
_HALF_STEP = np.float32(0.5)  # what is told where it cannot be measured
_PAIRS_AT_ONCE = 4096  # blocks whose weights are compared two by two


@dataclass(frozen=True)
class Rule:
    """`excess(weights [n, size], data, values [n, size])` is float32 [n]: by how much each block breaks the rule.

    0 where it obeys. In steps of its grid; of signs, in units of the block's mean magnitude. `data` are the n blocks,
    `values` what they stand for.

    sharp       whether it asks for much also where many weights are equal, as they are after quantization
    free_scale  whether it leaves open by how much a row is scaled
    """

    name: str
    excess: Callable[[Floats, Any, Floats], Floats]
    sharp: bool = True
    free_scale: bool = False


def rules_for(type_name: str) -> tuple[Rule, ...]:
    """The rules that honest quantizations of a type obey, one of them in all blocks; the strictest first.

    None for types of single numbers, which known.py repeats exactly.
    """
    return RULES.get(type_name, ())


# ---- grids -----------------------------------------------------------------------------------------------------------


def _nearest(type_name: str) -> Rule:
    levels = GRIDS[type_name].levels

    def excess(weights: Floats, data: Any, values: Floats) -> Floats:
        placed = place(type_name, data)
        return _beyond(levels, placed.codes, _in_steps(weights, placed))

    return Rule("nearest", excess)


def _coarse(type_name: str) -> Rule:
    """As `_nearest`, if weights were divided by their scale in bfloat16, as quantizers written in torch do."""
    levels = GRIDS[type_name].levels

    def excess(weights: Floats, data: Any, values: Floats) -> Floats:
        placed = place(type_name, data)
        units = _in_steps(weights, placed)
        return _beyond(levels, placed.codes, units, np.abs(units) * _HALF_BF16_ULP)

    return Rule("coarse", excess)


def _rounded(type_name: str) -> Rule:
    """Blocks of one stored scale, perhaps with multiples of it for their runs."""
    levels = GRIDS[type_name].levels

    def excess(weights: Floats, data: Any, values: Floats) -> Floats:
        placed = place(type_name, data)
        units = _in_steps(weights, placed)
        beyond = _beyond(levels, placed.codes, units)
        broken = np.flatnonzero(beyond)
        if len(broken):
            smallest, largest = _rounding(np.abs(_stored_scales(type_name, data)[broken]))
            least = _under_one_scale(levels, placed, units, broken, smallest, largest)
            beyond[broken] = np.minimum(beyond[broken], least)  # the stored scale is one of those
        return beyond

    return Rule("rounded", excess)


def _rescaled(type_name: str, most: float = _MOST_RESCALED) -> Rule:
    """Blocks of one scale, which is at most `most` times as large or small as the one that chose the levels."""
    levels = GRIDS[type_name].levels

    def excess(weights: Floats, data: Any, values: Floats) -> Floats:
        placed = place(type_name, data)
        units = _in_steps(weights, placed)
        beyond = _beyond(levels, placed.codes, units)
        broken = np.flatnonzero(beyond)
        smallest, largest = _rounding(np.abs(placed.steps[broken, 0]))
        smallest, largest = smallest / most, largest * most
        if placed.minimums is None:
            least = _under_one_scale(levels, placed, units, broken, smallest, largest)
            beyond[broken] = np.minimum(beyond[broken], least)
            return beyond
        for start in range(0, len(broken), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            some = broken[part]
            codes, plain = placed.codes[some], weights[some] / placed.steps[some]
            least = _under_scale_and_minimum(levels, codes, plain, smallest[part], largest[part])
            beyond[some] = np.minimum(beyond[some], least)
        return beyond

    return Rule("rescaled", excess, free_scale=True) if most > 1 else Rule("rounded", excess)


def _stored_scales(type_name: str, data: Any) -> Floats:
    """The 16-bit scale of each block, float32 [n]."""
    scales: Floats = np.frombuffer(data, DEQUANTIZERS[type_name][0])["d"].astype(np.float32)
    return scales


def _in_steps(weights: Floats, placed: Placed) -> Floats:
    """(weights + minimums) / step, [n, size]; NaN where there is no step."""
    runs: Array = weights.reshape(*placed.steps.shape, -1)
    if placed.minimums is not None:
        runs = runs + placed.minimums[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        units: Array = runs / np.where(placed.steps == 0, np.float32(np.nan), placed.steps)[:, :, None]
    found: Floats = units.reshape(weights.shape)
    return found


def _beyond(levels: Levels, codes: Array, units: Floats, leeway: Floats | None = None) -> Floats:
    """By how many steps the worst weight of each block lies beyond the borders of its level; NaN counts as inside."""
    beyond = np.fmax(units - levels.upper[codes], levels.lower[codes] - units)
    if leeway is not None:
        beyond = beyond - leeway
    worst = np.fmax.reduce(beyond, axis=1)
    excess: Floats = np.where(worst > _TOLERANCE, worst / levels.spacing, np.float32(0))
    return excess


def _rounding(stored: Floats) -> tuple[Doubles, Doubles]:
    """What `scale that chose the levels / stored scale` can be, inverted, if one is the other rounded to 16 bits.

    Levels are chosen under weight / scale, so this is what units in stored steps must be multiplied by.
    """
    scale = stored.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.maximum(_HALF_ULP, _HALF_SPACING / scale) * (1 + 1e-6)
        return 1 / (1 + half), np.where(half < 1, 1 / (1 - half), np.inf)


def _under_one_scale(
    levels: Levels, placed: Placed, units: Floats, blocks: Array, smallest: Doubles, largest: Doubles
) -> Floats:
    """As `_beyond` for these blocks, if units may be multiplied by one factor per block, within its limits."""
    codes, units = placed.codes[blocks], units[blocks].astype(np.float64)
    lower, upper = levels.lower[codes], levels.upper[codes]
    with np.errstate(divide="ignore", invalid="ignore"):
        first, last = np.where(units > 0, lower, upper) / units, np.where(units > 0, upper, lower) / units
    zero = units == 0
    misplaced = (zero & ((lower > 0) | (upper < 0))).any(axis=1)
    first = np.fmax.reduce(np.where(zero, -np.inf, first), axis=1)
    last = np.fmin.reduce(np.where(zero, np.inf, last), axis=1)
    gap = np.maximum(first, smallest) - np.minimum(last, largest) * (1 + _SCALE_TOLERANCE)
    return _steps_of_gap(gap, misplaced, np.fmax.reduce(np.abs(units), axis=1) / levels.spacing)


def _under_scale_and_minimum(
    levels: Levels, codes: Array, units: Floats, smallest: Doubles, largest: Doubles
) -> Floats:
    """As `_under_one_scale`, if any number may be added to units afterwards.

    Weights two by two: the factor times their difference must be at least the distance between their borders.
    """
    units = units.astype(np.float64)
    distance = levels.lower[codes][:, :, None] - levels.upper[codes][:, None, :]
    difference = units[:, :, None] - units[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = distance / difference
    first = np.where(difference > 0, factor, -np.inf).max(axis=(1, 2))
    last = np.where(difference < 0, factor, np.inf).min(axis=(1, 2))
    misplaced = ((difference == 0) & (distance > 0)).any(axis=(1, 2))
    gap = np.maximum(first, smallest) - np.minimum(last, largest) * (1 + _SCALE_TOLERANCE)
    return _steps_of_gap(gap, misplaced, (units.max(axis=1) - units.min(axis=1)) / levels.spacing)


def _steps_of_gap(gap: Doubles, misplaced: Array, extent: Doubles) -> Floats:
    """What a gap between the factors that weights ask for means at the weight farthest out, in steps."""
    excess = np.where(gap > 0, np.maximum(gap * extent / 2, _TOLERANCE), 0.0)
    found: Floats = np.where(misplaced, np.maximum(excess, 0.5), excess).astype(np.float32)
    return found


# ---- code books ------------------------------------------------------------------------------------------------------


def _from_book(type_name: str, wrong_signs: Callable[[str, Floats, Floats], Floats]) -> Rule:
    def broken(weights: Floats, data: Any, values: Floats) -> Floats:
        unexplained = unexplained_runs(type_name, weights, data, values)
        signs = np.where(untouched_runs(type_name, values), np.float32(0), wrong_signs(type_name, weights, values))
        excess: Floats = np.maximum(signs, np.where(unexplained, _HALF_STEP, np.float32(0))).max(axis=1)
        return excess

    return Rule("book", broken)


def _split(type_name: str) -> Rule:
    def excess(weights: Floats, data: Any, values: Floats) -> Floats:
        unexplained = unexplained_runs(type_name, weights, data, values).any(axis=1)
        return np.where(unexplained, _HALF_STEP, np.float32(0))

    return Rule("split", excess, sharp=False)


def _every_sign(type_name: str, weights: Floats, values: Floats) -> Floats:
    """By how much the worst weight with a wrong sign lies beyond zero, [n, runs]."""
    beyond = _beyond_zero(weights, values, _wrong_signs(weights, values))
    worst: Floats = beyond.reshape(len(weights), -1, BOOKS[type_name].run).max(axis=2)
    return worst


def _even_signs(type_name: str, weights: Floats, values: Floats) -> Floats:
    """The same where a group of eight with an odd number of minus signs has one sign wrong, whichever."""
    wrong = _wrong_signs(weights, values)
    beyond = np.sort(_beyond_zero(weights, values, wrong).reshape(len(weights), -1, 8), axis=2)
    odd = (weights < 0).reshape(beyond.shape).sum(axis=2) % 2 == 1
    settled = values.reshape(beyond.shape).any(axis=2) & (
        np.abs(weights).reshape(beyond.shape).max(axis=2) >= NO_WEIGHT
    )
    missing = odd & settled & ~wrong.reshape(beyond.shape).any(axis=2)
    excess = np.where(missing, _HALF_STEP, np.where(odd, beyond[:, :, 6], beyond[:, :, 7]))
    worst: Floats = excess.reshape(len(weights), -1, BOOKS[type_name].run // 8).max(axis=2)
    return worst


def _wrong_signs(weights: Floats, values: Floats) -> Array:
    return np.asarray(np.signbit(values) != (weights < 0))


def _beyond_zero(weights: Floats, values: Floats, wrong: Array) -> Floats:
    """How far beyond zero weights with a wrong sign lie, over their block's mean magnitude; 0 for hardly any weight."""
    magnitude = np.abs(values).mean(axis=1, keepdims=True)
    counted = wrong & (magnitude > 0) & (np.abs(weights) >= NO_WEIGHT)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counted, np.abs(weights) / magnitude, np.float32(0))


# ---- no rule ---------------------------------------------------------------------------------------------------------


def _other_numbers(weights: Floats, data: Any, values: Floats) -> Floats:
    """By how much numbers differ, over the largest of their row."""
    largest = np.maximum(np.abs(weights).max(axis=1), np.float32(1e-30))
    differences: Floats = (np.abs(values - weights).max(axis=1) / largest).astype(np.float32)
    return differences


SAME = Rule("equality", _other_numbers)  # what is left where numbers are stored one by one

# ---- which type obeys which ------------------------------------------------------------------------------------------

RULES: dict[str, tuple[Rule, ...]] = {
    **{name: (_nearest(name), _coarse(name)) for name in INTERNAL},
    **{name: (_nearest(name),) for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4")},
    **{name: (_nearest(name), _rounded(name)) for name in ("Q8_0", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0")},
    **{name: (_nearest(name), _rescaled(name, 1), _rescaled(name)) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")},
    **{name: (_from_book(name, _every_sign),) for name in ("IQ2_S", "IQ3_S")},
    **{name: (_from_book(name, _even_signs),) for name in ("IQ2_XXS", "IQ2_XS", "IQ3_XXS")},
    **{name: (_split(name),) for name in ("IQ1_S", "IQ1_M")},
}
