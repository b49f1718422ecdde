"""Spending bytes where they matter: each tensor's type, so that the expected error is least within a size.

Errors of tensors add up: each moves the logits a little, independently of the others, and KL grows with the square. So
the task is a knapsack with one option per tensor, solved by slopes: start with every tensor at its smallest, and buy
what lowers the error most per byte until the money is gone. Options that are not on the lower hull of a tensor's
(bytes, error) points are passed over, and are looked at again for the bytes that remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Option(NamedTuple):
    """One type that a tensor may get: its bytes, and the error that is expected of it."""

    type: str
    nbytes: int
    error: float


def allocate(options: Mapping[str, Sequence[Option]], budget: int) -> dict[str, Option]:
    """One option per tensor, of `budget` bytes in all at most. ValueError if even the smallest ones are larger.

    The same for the same arguments: ties are broken by the order of tensors and options.
    """
    chosen = {name: min(some, key=lambda option: (option.nbytes, option.error)) for name, some in options.items()}
    left = budget - sum(option.nbytes for option in chosen.values())
    if left < 0:
        raise ValueError(f"the smallest types take {budget - left} bytes, more than {budget}")
    hulls = {name: lower_hull(some) for name, some in options.items()}
    left = _buy(chosen, hulls, left, whole_steps=True)
    _buy(chosen, {name: sorted(some, key=lambda o: o.nbytes) for name, some in options.items()}, left, False)
    return chosen


def _buy(chosen: dict[str, Option], offers: Mapping[str, Sequence[Option]], left: int, whole_steps: bool) -> int:
    """Takes the best step again and again; returns the bytes that remain.

    With `whole_steps`, a tensor moves to the next offer of its hull only; without, any offer that fits is looked at.
    """
    while True:
        best: tuple[float, str, Option] | None = None
        for name, some in offers.items():
            now = chosen[name]
            larger = [o for o in some if o.nbytes > now.nbytes and o.error < now.error]
            for option in larger[:1] if whole_steps else larger:
                if option.nbytes - now.nbytes > left:
                    continue
                gain = (now.error - option.error) / (option.nbytes - now.nbytes)
                if best is None or gain > best[0]:
                    best = (gain, name, option)
        if best is None:
            return left
        _, name, option = best
        left -= option.nbytes - chosen[name].nbytes
        chosen[name] = option


def lower_hull(options: Sequence[Option]) -> list[Option]:
    """The options that are best for some price of a byte, smallest first: their slopes become flatter."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda o: (o.nbytes, o.error)):
        if hull and option.error >= hull[-1].error:
            continue
        while len(hull) >= 2 and _slope(hull[-2], option) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(option)
    return hull


def _slope(a: Option, b: Option) -> float:
    return (b.error - a.error) / (b.nbytes - a.nbytes)
