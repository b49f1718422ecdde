"""The definition in SamplingParams, written again in numpy: full sorts, float64, quadratic where that is plainest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localinfer.kernels.host.sampler import Draw, NativeSampler

Row = npt.NDArray[np.float32]


def draw(logits: Row, **parameters: Any) -> int:
    return run(logits, **parameters)[0]


def run(logits: Row, **parameters: Any) -> tuple[int, dict[int, float]]:
    """The drawn token, and the tokens it was drawn from with their probabilities."""
    sampler = NativeSampler(len(logits))
    before = logits.copy()
    token = sampler.draw(logits.ctypes.data, Draw(**parameters)).token
    assert np.array_equal(before, logits, equal_nan=True), "the caller's logits were changed"
    return token, dict(sampler.kept())


def definition(
    logits: Row,
    temperature: float = 1.0,
    top_k: int = 0,
    typical_p: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    top_n_sigma: float = 0.0,
    dynatemp_range: float = 0.0,
    dynatemp_exponent: float = 1.0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    mirostat: int = 0,
    mirostat_tau: float = 5.0,
    mu: float | None = None,
) -> dict[int, float]:
    """The distribution that SamplingParams describes. XTC always excludes if its probability is 1, else never.

    `mu` is Mirostat's; None: as it begins.
    """
    ids = np.arange(len(logits))
    x = logits.astype(np.float64)

    def probabilities() -> npt.NDArray[np.float64]:
        e = np.exp((x[ids] - x[ids].max()) / temperature)
        return np.asarray(e / e.sum())

    def fewest(rank_key: npt.NDArray[np.float64], p: npt.NDArray[np.float64], mass: float) -> npt.NDArray[np.int64]:
        order = np.lexsort((ids, rank_key))
        count = int(np.searchsorted(np.cumsum(p[order]), mass)) + 1
        return np.sort(order[:count])

    if mirostat:
        mu = 2 * mirostat_tau if mu is None else mu
        if mirostat == 1:
            ids = np.sort(np.lexsort((ids, -x))[: mirostat_top_k(x / temperature, mu)])
        else:
            p = probabilities()
            kept = p >= 2.0**-mu
            ids = ids[kept] if kept.any() else ids[p == p.max()][:1]
        top_n_sigma = dynatemp_range = min_p = xtc_probability = top_k = 0
        typical_p = top_p = 1
    if top_n_sigma:
        ids = ids[x >= x.max() - top_n_sigma * x[x > -np.inf].std()]
    if top_k:
        ids = np.sort(ids[np.lexsort((ids, -x[ids]))[:top_k]])
    if dynatemp_range:
        fixed, temperature = temperature, 1.0
        p = probabilities()
        possible = int((x[ids] > -np.inf).sum())
        share = -np.sum(p * np.log(np.maximum(p, 1e-300))) / np.log(possible) if possible > 1 else 0
        low, high = max(0.0, fixed - dynatemp_range), fixed + dynatemp_range
        temperature = max(1e-9, low + (high - low) * max(0.0, share) ** dynatemp_exponent)
    if typical_p < 1:
        p = probabilities()
        entropy = -np.sum(p * np.log(np.maximum(p, 1e-300)))
        ids = ids[fewest(np.abs(entropy + np.log(np.maximum(p, 1e-300))), p, typical_p)]
    if top_p < 1:
        p = probabilities()
        ids = ids[fewest(-x[ids], p, top_p)]
    if min_p > 0:
        p = probabilities()
        ids = ids[p >= min_p * p.max()]
    if xtc_probability == 1:
        p = probabilities()
        top = ids[p >= xtc_threshold]
        if len(top) > 1:
            last = top[np.lexsort((top, -x[top]))][-1]
            ids = ids[(p < xtc_threshold) | (ids == last)]
    # What is less than e^-87 times as likely as the likeliest counts as impossible.
    return {int(i): float(p) for i, p in zip(ids, probabilities(), strict=True) if x[i] - x.max() > -87 * temperature}


def mirostat_top_k(x: npt.NDArray[np.float64], mu: float) -> int:
    """How many tokens Mirostat 1 draws from."""
    first = np.sort(x[x > -np.inf])[::-1][:100]
    if len(first) < 2:
        return 1
    ranks = np.arange(1, len(first), dtype=np.float64)
    t, b = np.log((ranks + 1) / ranks), first[:-1] - first[1:]
    s = float(np.sum(t * b) / np.sum(t * t))
    e = s - 1
    with np.errstate(all="ignore"):
        k = np.float64(e * 2**mu / (1 - len(x) ** -e)) ** (1 / s)
    return int(min(len(x), max(1.0, k)))


def dry_penalties(
    tokens: Sequence[int],
    multiplier: float,
    base: float,
    allowed_length: int,
    breakers: Sequence[tuple[int, ...]] = (),
) -> dict[int, float]:
    """What DRY takes from the logit of each token that it lowers. `breakers` are sequences of tokens."""
    text = list(tokens)
    most = len(text)  # tokens behind the last breaker: of those that begin last, the longest
    for begin in range(len(text) - 1, -1, -1):
        ends = [begin + len(b) for b in breakers if tuple(text[begin : begin + len(b)]) == b]
        if ends:
            most = len(text) - max(ends)
            break
    longest: dict[int, int] = {}
    for place in range(1, len(text)):  # of a token that may come again
        length = 0
        while length < min(most, place) and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length >= allowed_length:
            longest[text[place]] = max(length, longest.get(text[place], -1))
    alone = {b[0] for b in breakers if len(b) == 1}
    return {t: multiplier * base ** (n - allowed_length) for t, n in longest.items() if t not in alone}


def assert_close(found: dict[int, float], expected: dict[int, float]) -> None:
    """Equal up to rounding: a token whose cumulative mass lies on the cut may fall either way."""
    assert sum(found.values()) == pytest.approx(1, abs=1e-5)
    differing = set(found) ^ set(expected)
    assert len(differing) <= 1, f"kept {sorted(found)[:20]}, expected {sorted(expected)[:20]}"
    if not differing:
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-4, atol=1e-9)


def random_row(seed: int, size: int, spread: float = 3.0) -> Row:
    return np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
