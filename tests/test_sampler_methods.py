"""DRY, XTC, top-n-sigma, Mirostat and dynamic temperature, one by one, in the native sampler."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.errors import LocalInferError
from localinfer.kernels.host.sampler import Breakers, Draw, NativeSampler, _library, sampler_bytes, uniform
from sampler_definition import Row, assert_close, definition, draw, dry_penalties, random_row, run

VOCABULARY = 12


def lowered(
    tokens: list[int], *, longest: int = 1000, breakers: list[tuple[int, ...]] | None = None, **dry: Any
) -> dict[int, float]:
    """What DRY takes from the logits of a small vocabulary."""
    logits = np.zeros(VOCABULARY, np.float32)
    sequences = None if breakers is None else Breakers(VOCABULARY, ((b[0], b[1:]) for b in breakers))
    how = Draw(dry_breakers=sequences, **dry)
    how.look_back(array("i", tokens))
    ranked = NativeSampler(VOCABULARY, longest).candidates(logits.ctypes.data, how, VOCABULARY)
    highest = ranked[0][1]
    return {token: highest - logprob for token, logprob in ranked if highest - logprob > 1e-9}


def without_the_least(expected: dict[int, float]) -> dict[int, float]:
    """As `lowered` sees it, for which the likeliest token stands at 0."""
    least = min(expected.values()) if len(expected) == VOCABULARY else 0.0
    return {token: value - least for token, value in expected.items() if value > least}


def test_dry_lowers_what_the_text_went_on_with_before() -> None:
    dry: dict[str, Any] = {"dry_multiplier": 2.0, "dry_base": 1.5, "dry_allowed_length": 2}
    assert lowered([1, 2, 3, 4, 9, 1, 2, 3], **dry) == pytest.approx({4: 2 * 1.5})
    assert lowered([1, 2, 3, 4, 9, 2, 3], **dry) == pytest.approx({4: 2.0})
    assert lowered([1, 2, 3, 4, 9, 3], **dry) == {}
    # The longest counts, once.
    assert lowered([1, 2, 4, 0, 1, 2, 4, 9, 0, 1, 2], **dry) == pytest.approx({4: 2 * 1.5})
    # A text that repeats one token overlaps with itself.
    assert lowered([7] * 6, **dry) == pytest.approx({7: 2 * 1.5**3})
    assert lowered([], **dry) == {}


def test_dry_looks_no_further_back_than_it_may() -> None:
    text = [1, 2, 3, 4, 9, 9, 1, 2, 3]
    dry: dict[str, Any] = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 1}
    assert lowered(text, **dry) == pytest.approx({4: 4.0})
    assert lowered(text, longest=len(text), **dry) == pytest.approx({4: 4.0})
    assert lowered(text, longest=len(text) - 1, **dry) == pytest.approx({4: 2.0})
    assert lowered(text, longest=len(text) - 3, **dry) == {}
    assert lowered(text, longest=0, **dry) == {}


def test_dry_stops_at_breakers_and_leaves_them_alone() -> None:
    dry: dict[str, Any] = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 1}
    text = [1, 2, 3, 4, 9, 1, 2, 3]
    assert lowered(text, breakers=[(2,)], **dry) == pytest.approx({4: 1.0})
    assert lowered(text, breakers=[(3,)], **dry) == {}
    assert lowered(text, breakers=[(4,)], **dry) == {}
    assert lowered(text, breakers=[(1, 2)], **dry) == pytest.approx({4: 1.0})
    assert lowered(text, breakers=[(1, 2), (1, 2, 3)], **dry) == {}
    assert lowered(text, breakers=[(4, 5)], **dry) == pytest.approx({4: 4.0})  # 4 alone breaks nothing
    assert lowered(text, breakers=[], **dry) == pytest.approx({4: 4.0})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3),
    st.integers(0, 4),
    st.integers(1, 45),
)
def test_dry_is_what_comparing_every_place_finds(
    tokens: list[int], breakers: list[tuple[int, ...]], allowed_length: int, longest: int
) -> None:
    dry: dict[str, Any] = {"dry_multiplier": 0.5, "dry_base": 1.1, "dry_allowed_length": allowed_length}
    expected = dry_penalties(tokens[-longest:], 0.5, 1.1, allowed_length, breakers)
    found = lowered(tokens, longest=longest, breakers=breakers, **dry)
    assert found == pytest.approx(without_the_least(expected), abs=1e-5)


def test_dry_takes_time_linear_in_what_it_looks_at() -> None:
    """A text of one token would take a square of its length to compare place by place: hours for this one."""
    assert lowered([7] * 1_000_000, longest=1_000_000, dry_multiplier=1.0) == pytest.approx({7: 1e30}, rel=1e-3)


def test_dry_leaves_nothing_behind() -> None:
    logits = random_row(1, 100)
    sampler = NativeSampler(100, 50)
    how = Draw(1.0, dry_multiplier=3.0, repetition_penalty=1.5, seen=array("i", [1, 2, 3]))
    sampler.draw(logits.ctypes.data, how)
    before = sampler.kept()
    how.look_back(array("i", [1, 2, 3, 1, 2]))
    sampler.draw(logits.ctypes.data, how)
    assert sampler.kept() != before
    how.look_back(None)
    sampler.draw(logits.ctypes.data, how)
    assert sampler.kept() == before


def test_dry_of_tokens_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(LocalInferError, match="out of range"):
        lowered([1, 2, VOCABULARY], dry_multiplier=1.0)


def test_breakers_that_do_not_fit_together_are_passed_over() -> None:
    """What stands in the arrays is data of a caller: nothing of it is read outside of them."""
    for begin in (-1, 1, 2, 2**31 - 1):
        broken = Breakers(VOCABULARY, [(3, (1,)), (3, ())])
        broken.pairs[1] = begin
        broken.tails[1] = 2**31 - 1
        how = Draw(dry_multiplier=1.0, dry_breakers=broken)
        how.look_back(array("i", [1, 2, 3, 1, 2, 3, 1, 2]))
        logits = random_row(1, VOCABULARY)
        NativeSampler(VOCABULARY, 100).draw(logits.ctypes.data, how)


def test_xtc_leaves_the_last_of_those_that_reach_the_threshold() -> None:
    logits = np.log(np.array([0.4, 0.05, 0.3, 0.2, 0.05], np.float32))
    always = {"temperature": 1.0, "xtc_probability": 1.0}
    assert_close(run(logits, **always, xtc_threshold=0.15)[1], {1: 1 / 6, 3: 4 / 6, 4: 1 / 6})
    assert_close(run(logits, **always, xtc_threshold=0.25)[1], {1: 1 / 12, 2: 6 / 12, 3: 4 / 12, 4: 1 / 12})
    assert len(run(logits, **always, xtc_threshold=0.35)[1]) == 5, "one token alone is kept"
    assert len(run(logits, **always, xtc_threshold=0.6)[1]) == 5
    assert run(logits, **always, xtc_threshold=0.0)[1] == {4: 1.0}
    assert draw(logits, temperature=0.0, xtc_probability=1.0, xtc_threshold=0.15) == 0
    tied = np.zeros(4, np.float32)
    assert run(tied, **always, xtc_threshold=0.2)[1] == {3: 1.0}, "of equally likely ones the highest id ranks last"
    far = np.array([0, -1000, 0], np.float32)
    assert run(far, **always, xtc_threshold=0.0)[1] == {2: 1.0}, "what is never drawn is not what is left"


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_xtc_comes_as_often_as_it_should_and_knows_nothing_of_the_draw(probability: float) -> None:
    logits = np.log(np.array([0.6, 0.4], np.float32))
    sampler, n = NativeSampler(2), 4000
    excluded, first = 0, 0
    for position in range(n):
        how = Draw(1.0, seed=3, position=position, xtc_probability=probability, xtc_threshold=0.2)
        token = sampler.draw(logits.ctypes.data, how).token
        if len(sampler.kept()) == 1:
            excluded += 1
            assert token == 1
        else:
            first += token == 0
        assert (len(sampler.kept()) == 1) == (uniform(3, position, purpose=1) < probability)
    assert abs(excluded - n * probability) <= 4 * math.sqrt(n * probability * (1 - probability))
    rest = n - excluded
    assert abs(first - 0.6 * rest) <= 4 * math.sqrt(rest * 0.24)
    assert uniform(1, 2, 3, 0) != uniform(1, 2, 3, 1)


def test_top_n_sigma_measures_all_logits_and_cuts_what_may_be_drawn() -> None:
    logits = random_row(4, 1000)
    deviation = logits.astype(np.float64).std()
    kept = run(logits, temperature=1.0, top_n_sigma=1.0)[1]
    assert set(kept) == set(np.flatnonzero(logits >= logits.max() - deviation).tolist())
    # A grammar that leaves two tokens does not make the spread of these the measure.
    two = [int(token) for token in np.argsort(-logits)[:2]]
    bits = array("I", bytes(4 * 32))
    for token in two:
        bits[token // 32] |= 1 << token % 32
    how = Draw(1.0, top_n_sigma=1.0)
    how.allow(bits)
    sampler = NativeSampler(1000)
    sampler.draw(logits.ctypes.data, how)
    assert {token for token, _ in sampler.kept()} == set(two)
    # Temperature changes neither the largest nor the others' places.
    assert set(run(logits, temperature=9.0, top_n_sigma=1.0)[1]) == set(kept)
    logits[::2] = -np.inf
    assert_close(run(logits, temperature=1.0, top_n_sigma=1.0)[1], definition(logits, top_n_sigma=1.0))
    assert run(np.ones(5, np.float32), temperature=1.0, top_n_sigma=0.01)[1] == pytest.approx(
        dict.fromkeys(range(5), 0.2)
    )


def test_the_temperature_follows_the_entropy() -> None:
    def temperature(logits: Row, **how: Any) -> float:
        """That the probabilities of the first two tokens speak of."""
        kept = run(logits, temperature=1.0, dynatemp_range=0.5, **how)[1]
        return float((logits[0] - logits[1]) / (math.log(kept[0]) - math.log(kept[1])))

    undecided = np.array([0.01, 0, 0, 0, 0, 0, 0, 0], np.float32)
    decided = np.array([20, 0, 0, 0, 0, 0, 0, 0], np.float32)
    assert temperature(undecided) == pytest.approx(1.5, abs=1e-3)
    assert temperature(decided) == pytest.approx(0.5, abs=1e-3)
    middle = np.array([2, 0, 0, 0, -np.inf, 0, 0, 0], np.float32)
    p = np.exp(middle) / np.exp(middle).sum()
    share = -sum(x * math.log(x) for x in p if x) / math.log(7)
    assert temperature(middle) == pytest.approx(0.5 + share, abs=1e-4)
    assert temperature(middle, dynatemp_exponent=3.0) == pytest.approx(0.5 + share**3, abs=1e-4)
    assert temperature(middle, dynatemp_exponent=0.0) == pytest.approx(1.5, abs=1e-4)
    assert temperature(middle, top_k=2) != temperature(middle)
    assert run(decided, temperature=0.3, dynatemp_range=0.5, top_k=1)[1] == {0: 1.0}
    assert draw(undecided, temperature=0.0, dynatemp_range=5.0) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_the_surprise_at_its_target(version: int) -> None:
    sampler = NativeSampler(2000)
    how = Draw(1.0, mirostat=version, mirostat_tau=3.0, mirostat_eta=0.1, seed=5)
    assert how.mirostat_mu == 6.0
    surprises = []
    for position in range(600):
        logits = random_row(position % 50, 2000, 2.5)
        how.position = position
        mu = how.mirostat_mu
        token = sampler.draw(logits.ctypes.data, how).token
        kept = dict(sampler.kept())
        if position < 40:
            assert_close(kept, definition(logits, mirostat=version, mu=mu))
        surprises.append(-math.log2(kept[token]))
        assert how.mirostat_mu == mu, "nothing is learned before the token is accepted"
        how.accept()
        assert how.mirostat_mu == pytest.approx(mu - 0.1 * (surprises[-1] - 3.0), abs=1e-5)
    assert np.mean(surprises[100:]) == pytest.approx(3.0, abs=0.15)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_at_its_ends(version: int) -> None:
    for logits in (random_row(1, 1), random_row(2, 2), np.zeros(300, np.float32), random_row(3, 300, 30.0)):
        for mu in (-1e6, -1.0, 0.0, 1.0, 40.0, 1e6):
            how = Draw(0.8, mirostat=version)
            how.mirostat_mu = mu
            sampler = NativeSampler(len(logits))
            token = sampler.draw(logits.ctypes.data, how).token
            assert token in dict(sampler.kept())
            how.accept()
            assert math.isfinite(how.mirostat_mu)
            if mu < 0:
                assert [token for token, _ in sampler.kept()] == [int(logits.argmax())]
    allowed = array("I", [0b100])
    only = Draw(0.8, mirostat=version)
    only.allow(allowed)
    logits = random_row(1, 20)
    assert NativeSampler(20).draw(logits.ctypes.data, only).token == 2


def test_mirostat_leaves_cuts_aside() -> None:
    logits = random_row(3, 500)
    cuts = {"top_k": 1, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.1, "top_n_sigma": 0.1, "dynatemp_range": 0.5}
    assert run(logits, temperature=1.0, mirostat=2, **cuts) == run(logits, temperature=1.0, mirostat=2)
    assert run(logits, temperature=0.0, mirostat=2) == (int(logits.argmax()), {int(logits.argmax()): 1.0})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=200),
    st.fixed_dictionaries(
        {"temperature": st.floats(0.05, 5)},
        optional={
            "top_k": st.integers(0, 50),
            "top_p": st.floats(0.01, 1),
            "min_p": st.floats(0, 0.9),
            "typical_p": st.floats(0.01, 1),
            "top_n_sigma": st.floats(0, 5),
            "dynatemp_range": st.floats(0, 6),
            "dynatemp_exponent": st.floats(0, 5),
            "xtc_probability": st.floats(0, 1),
            "xtc_threshold": st.floats(0, 1),
            "mirostat": st.integers(0, 2),
            "mirostat_tau": st.floats(0, 10),
            "seed": st.integers(0, 2**64 - 1),
        },
    ),
)
def test_whatever_is_combined_a_likely_token_is_drawn(values: list[float], how: dict[str, Any]) -> None:
    logits = np.array(values, np.float32)
    token, kept = run(logits, **how)
    assert token in kept
    assert sum(kept.values()) == pytest.approx(1, abs=1e-5)
    assert set(kept) <= set(definition(logits, how["temperature"] + how.get("dynatemp_range", 0)))
    # Among those that are left, what has the larger logit is not less likely.
    ranked = sorted(kept, key=lambda each: logits[each])
    assert all(kept[low] <= kept[high] * (1 + 1e-6) for low, high in pairwise(ranked))


def test_logarithm_and_exponential_are_close_to_those_of_the_library() -> None:
    library = _library()
    for x in np.exp(np.linspace(-600, 600, 999)).tolist():
        assert library.li_log(x) == pytest.approx(math.log(x), rel=3e-15, abs=3e-16)
    for x in np.linspace(-700, 700, 999).tolist():
        assert library.li_exp(x) == pytest.approx(math.exp(x), rel=1e-14)
    assert (library.li_exp(-1e9), library.li_exp(1e9)) == (0.0, math.inf)


def test_the_memory_for_repetitions_is_reserved() -> None:
    assert sampler_bytes(1000, 8192) == sampler_bytes(1000, 0) + 4 * 8192
