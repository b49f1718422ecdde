"""The native sampler against the definition in SamplingParams, written again in numpy."""

from __future__ import annotations

import ctypes
import math
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.kernels.host.sampler import Draw, NativeSampler, _library, sampler_bytes, uniform
from sampler_definition import Row, assert_close, definition, draw, random_row, run


def test_keeps_the_tokens_of_the_definition_in_a_large_vocabulary() -> None:
    logits = random_row(1, 262144)
    several: tuple[dict[str, Any], ...] = ({"top_k": 40, "top_p": 0.95}, {"top_p": 0.9}, {"typical_p": 0.5})
    for parameters in several:
        assert_close(run(logits, temperature=1.0, **parameters)[1], definition(logits, **parameters))


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000, 49152])
@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 2.0, "top_k": 40},
        {"temperature": 0.8, "top_k": 1},
        {"temperature": 1.0, "top_k": 1000},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.999},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.0, "typical_p": 0.5},
        {"temperature": 1.2, "top_k": 100, "typical_p": 0.9, "top_p": 0.95, "min_p": 0.02},
        {"temperature": 1.0, "top_n_sigma": 1.0},
        {"temperature": 3.0, "top_n_sigma": 0.5, "top_k": 20},
        {"temperature": 1.0, "dynatemp_range": 0.5},
        {"temperature": 0.5, "dynatemp_range": 2.0, "dynatemp_exponent": 2.5},
        {"temperature": 1.5, "dynatemp_range": 0.5, "dynatemp_exponent": 0.3, "top_k": 40, "min_p": 0.1},
        {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"temperature": 1.5, "xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 9},
        {"temperature": 2.0, "top_n_sigma": 2.0, "top_p": 0.9, "xtc_probability": 1.0, "xtc_threshold": 0.001},
        {"temperature": 1.0, "mirostat": 1, "mirostat_tau": 3.0},
        {"temperature": 0.7, "mirostat": 1, "mirostat_tau": 1.0},
        {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0},
        {"temperature": 2.0, "mirostat": 2, "mirostat_tau": 0.1},
    ],
    ids=lambda p: ",".join(f"{k}={v}" for k, v in p.items()),
)
def test_keeps_the_tokens_of_the_definition(size: int, parameters: dict[str, Any]) -> None:
    logits = random_row(size, size)
    token, found = run(logits, seed=1, **parameters)
    assert_close(found, definition(logits, **parameters))
    assert token in found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(-40, 20).map(lambda i: i / 4), min_size=1, max_size=300),
    st.floats(0.1, 3),
    st.integers(0, 40),
    st.sampled_from([1.0, 0.97, 0.6, 0.1]),
    st.sampled_from([1.0, 0.93, 0.5, 0.05]),
    st.sampled_from([0.0, 0.013, 0.31]),
)
def test_any_row_with_many_equal_logits(
    values: list[float], temperature: float, top_k: int, typical_p: float, top_p: float, min_p: float
) -> None:
    logits = np.array(values, np.float32)
    parameters: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    token, found = run(logits, **parameters)
    assert_close(found, definition(logits, **parameters))
    # Equal deviations fall either way by rounding, so with typical only what must hold is checked.
    parameters["typical_p"] = typical_p
    token, found = run(logits, **parameters)
    assert token in found
    assert sum(found.values()) == pytest.approx(1, abs=1e-5)


def test_equal_logits_are_ranked_by_id() -> None:
    logits = np.zeros(5000, np.float32)
    assert set(run(logits, temperature=1.0, top_k=7)[1]) == set(range(7))
    assert set(run(logits, temperature=1.0, top_p=0.2)[1]) == set(range(1000))
    assert draw(logits) == 0
    logits[[70, 4000]] = 1
    assert draw(logits) == 70
    assert set(run(logits, temperature=1.0, top_k=3)[1]) == {0, 70, 4000}


def test_greedy_takes_the_largest_wherever_it_stands() -> None:
    for size in (1, 15, 16, 17, 64, 100, 1000):
        for at in range(size):
            logits = random_row(0, size)
            logits[at] = 100
            assert draw(logits) == at


def test_very_peaked_and_very_wide_rows() -> None:
    logits = random_row(3, 100_000, 0.001)
    assert_close(run(logits, temperature=1.0, top_p=0.5)[1], definition(logits, 1.0, top_p=0.5))
    logits[::2] = -np.inf
    found = run(logits, temperature=1.0, top_p=0.5)[1]
    assert all(token % 2 == 1 for token in found)
    logits = np.array([3e38, -3e38, 0, 2.9e38], np.float32)
    assert run(logits, temperature=1e-30, top_p=0.9)[1] == {0: 1.0}
    assert run(logits, temperature=1e-30, typical_p=0.9)[1] == {0: 1.0}
    exponential = -np.exp2(np.arange(2000) / 20).astype(np.float32)
    assert_close(run(exponential, temperature=0.5, top_k=300)[1], definition(exponential, 0.5, top_k=300))


@pytest.mark.parametrize("top_k", [0, 20])
def test_frequencies_follow_the_probabilities(top_k: int) -> None:
    logits = random_row(5, 200, 1.5)
    parameters: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "top_k": top_k}
    expected = definition(logits, **parameters)
    sampler, n = NativeSampler(len(logits)), 20_000
    counts: dict[int, int] = dict.fromkeys(expected, 0)
    for position in range(n):
        token = sampler.draw(logits.ctypes.data, Draw(seed=7, position=position, **parameters)).token
        counts[token] += 1
    chi_square = sum((counts[t] - n * p) ** 2 / (n * p) for t, p in expected.items())
    degrees = len(expected) - 1
    assert abs(chi_square - degrees) < 4 * math.sqrt(2 * degrees)


def test_a_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    logits = random_row(6, 10_000)
    sampler = NativeSampler(len(logits))
    for position in range(50):
        token = sampler.draw(logits.ctypes.data, Draw(temperature=2.0, seed=11, position=position)).token
        cumulative = np.cumsum(list(definition(logits, 2.0).values()))
        assert abs(token - int(np.searchsorted(cumulative, uniform(11, position), side="right"))) <= 1


def test_randomness_depends_on_seed_and_position_alone() -> None:
    logits, others = random_row(8, 1000), random_row(9, 1000)
    used, fresh = NativeSampler(1000), NativeSampler(1000)
    used.draw(others.ctypes.data, Draw(temperature=1.0, seed=1))
    seen = {}
    for seed in range(20):
        for position in range(20):
            at = Draw(temperature=5.0, seed=seed, position=position)
            seen[seed, position] = used.draw(logits.ctypes.data, at)
            assert seen[seed, position] == fresh.draw(logits.ctypes.data, at)
    assert len(set(seen.values())) > 200


def test_philox_gives_the_published_words() -> None:
    """From the known-answer file of Random123 (philox4x32, 10 rounds)."""
    for counter, key, words in (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ):
        state = (ctypes.c_uint32 * 4)(*counter)
        _library().li_philox(state, *key)
        assert tuple(state) == words
    assert 0 <= min(uniform(s, p) for s in range(30) for p in range(30)) < 0.01


def test_penalties() -> None:
    logits = random_row(10, 500)
    prompt, answer = [3, 4, 5, 5], [5, 6, 6, 6]
    seen = array("i", prompt + answer)
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    expected = logits.copy()
    for token in {*prompt, *answer}:
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token, count in ((5, 1), (6, 3)):
        expected[token] -= 0.4 + 0.2 * count
    sampler = NativeSampler(500)
    for _ in range(2):  # nothing is left over from the first call
        sampler.draw(logits.ctypes.data, Draw(temperature=1.0, seen=seen, from_prompt=len(prompt), **penalties))
        assert_close(dict(sampler.kept()), definition(expected))


def test_banned_tokens_are_never_drawn() -> None:
    logits = np.array([1, 5, 4, 3], np.float32)
    assert draw(logits, banned=array("i", [1])) == 2
    assert set(run(logits, temperature=1.0, banned=array("i", [1, 3]))[1]) == {0, 2}


def test_a_bias_comes_before_the_penalties() -> None:
    logits = random_row(10, 500)
    bias = array("i", [7, 3, 499]), array("f", [2.5, -1.0, 40.0])
    expected = logits.copy()
    expected[[7, 3, 499]] += np.array(bias[1], np.float32)
    expected[7] = expected[7] / 2 if expected[7] > 0 else expected[7] * 2
    given: dict[str, Any] = {"bias": bias, "repetition_penalty": 2.0, "seen": array("i", [7])}
    assert_close(run(logits, temperature=1.0, **given)[1], definition(expected))
    assert draw(logits, bias=bias) == 499
    assert draw(logits, bias=bias, banned=array("i", [499])) != 499


def log_softmax(logits: Row) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    return np.asarray(x - x.max() - np.log(np.exp(x - x.max()).sum()))


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    logits = random_row(12, 5000)
    sampler = NativeSampler(5000)
    bias = array("i", [9]), array("f", [100.0])
    drawn = sampler.draw(logits.ctypes.data, Draw(0.5, 5, seen=array("i", [1]), repetition_penalty=2, bias=bias), top=3)
    expected = log_softmax(logits)
    assert drawn.token == 9
    assert drawn.logprob == pytest.approx(expected[9], abs=1e-5)
    assert [token for token, _ in drawn.top] == list(np.argsort(-expected)[:3])
    assert [logprob for _, logprob in drawn.top] == pytest.approx(np.sort(expected)[:-4:-1], abs=1e-5)
    assert sampler.logprobs(logits.ctypes.data, 9, 3) == drawn[1:]


@pytest.mark.parametrize("size", [1, 2, 64, 65, 200, 30_000])
@pytest.mark.parametrize("top", [0, 1, 5, 64, 1000])
def test_alternatives_are_the_tokens_that_rank_first(size: int, top: int) -> None:
    rows = random_row(size, size), np.round(random_row(size + 1, size)), np.zeros(size, np.float32)
    for logits in rows:
        sampler = NativeSampler(size)
        before = sampler.draw(logits.ctypes.data, Draw(1.0, 9, seed=1)), sampler.kept()
        expected = np.lexsort((np.arange(size), -logits))[:top]
        logprob, found = sampler.logprobs(logits.ctypes.data, size - 1, top)
        assert [token for token, _ in found] == expected.tolist()
        assert [p for _, p in found] == pytest.approx(log_softmax(logits)[expected].tolist(), abs=1e-5)
        assert logprob == pytest.approx(log_softmax(logits)[-1], abs=1e-5)
        assert sampler.kept() == before[1], "the candidates of the last draw were lost"
        assert sampler.draw(logits.ctypes.data, Draw(1.0, 9, seed=1), top).token == before[0].token


def test_candidates_rank_what_bias_penalties_and_bans_leave() -> None:
    logits = random_row(13, 3000)
    bias = array("i", [4, 5]), array("f", [50.0, 49.0])
    how = Draw(bias=bias, banned=array("i", [4]), seen=array("i", [5]), presence_penalty=3.0)
    expected = logits.copy()
    expected[5] += 49 - 3
    expected[4] = -np.inf
    found = NativeSampler(3000).candidates(logits.ctypes.data, how, 4)
    order = np.argsort(-expected)[:4]
    assert [token for token, _ in found] == order.tolist()
    with np.errstate(divide="ignore"):
        assert [p for _, p in found] == pytest.approx(log_softmax(expected)[order].tolist(), abs=1e-4)
    only = Draw(banned=array("i", range(2999)))
    assert NativeSampler(3000).candidates(logits.ctypes.data, only, 4) == ((2999, 0.0),)


def test_answers_draw_differently_and_the_first_as_if_it_were_alone() -> None:
    logits = random_row(8, 1000)
    sampler = NativeSampler(1000)
    draws = {
        choice: [sampler.draw(logits.ctypes.data, Draw(5.0, seed=3, position=p, choice=choice)).token for p in range(9)]
        for choice in range(4)
    }
    assert draws[0] == [sampler.draw(logits.ctypes.data, Draw(5.0, seed=3, position=p)).token for p in range(9)]
    assert len({tuple(tokens) for tokens in draws.values()}) == 4
    assert len({uniform(1, 2, choice) for choice in range(100)}) == 100


@pytest.mark.parametrize(("value", "words"), [(np.nan, "NaN"), (np.inf, r"\+inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("at", [0, 77, 99])
def test_broken_logits_are_an_error(value: float, words: str, temperature: float, at: int) -> None:
    logits = random_row(1, 100)
    logits[at] = value
    with pytest.raises(LocalInferError, match=words):
        draw(logits, temperature=temperature)
    with pytest.raises(LocalInferError, match=words):
        NativeSampler(100).logprobs(logits.ctypes.data, 0)
    with pytest.raises(LocalInferError, match=words):
        NativeSampler(100).candidates(logits.ctypes.data, Draw(), 1)


def test_a_hint_blames_the_penalties_only_if_there_are_any() -> None:
    seen = array("i", range(100))
    with pytest.raises(LocalInferError) as caught:
        draw(np.full(100, 1e30, np.float32), repetition_penalty=1e-9, seen=seen)
    assert "penalties may be too large" in caught.value.hint
    with pytest.raises(LocalInferError) as caught:
        draw(np.full(100, np.nan, np.float32))
    assert "penalties" not in caught.value.hint
    assert "`localinfer pull NAME --verify`" in caught.value.hint


def test_a_row_without_any_token_is_an_error() -> None:
    with pytest.raises(LocalInferError, match="above -inf"):
        draw(np.full(100, -np.inf, np.float32))
    with pytest.raises(LocalInferError, match="above -inf"):
        draw(np.zeros(2, np.float32), banned=array("i", [0, 1]))


@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1, -(2**31)])
def test_token_ids_outside_the_vocabulary_are_an_error(bad: int) -> None:
    ids, logits = array("i", [bad]), random_row(1, 100)
    arguments: tuple[dict[str, Any], ...] = ({"seen": ids}, {"banned": ids}, {"bias": (ids, array("f", [1.0]))})
    for each in arguments:
        with pytest.raises(LocalInferError, match="out of range"):
            draw(logits, **each)
        with pytest.raises(LocalInferError, match="out of range"):
            NativeSampler(100).candidates(logits.ctypes.data, Draw(**each), 1)
    with pytest.raises(LocalInferError, match="out of range"):
        NativeSampler(100).logprobs(logits.ctypes.data, bad)


def test_the_reserved_memory_is_known() -> None:
    assert 262144 * 30 < sampler_bytes(262144, 0) < 262144 * 50
    assert sampler_bytes(262144, 8192) == sampler_bytes(262144, 0) + 4 * 8192


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.0}, "min_p"),
        ({"typical_p": 1.5}, "typical_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stop": ("a", "")}, "stop"),
        ({"temprature": 1.0}, "no sampling parameter 'temprature'"),
        ({"temperature": "a"}, r"temperature is 'a' \(str\), but must be a number"),
        ({"temperature": True}, "temperature is True, but must be a number"),
        ({"temperature": 1e300}, "temperature is 1e"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": 10**5000}, "temperature is a number of thousands of digits"),
        ({"temperature": None}, "temperature is None"),
        ({"temperature": np.zeros(2)}, "temperature is array"),
        ({"top_k": 2.5}, "top_k is 2.5, but must be a whole number"),
        ({"top_k": "5"}, r"top_k is '5' \(str\)"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"frequency_penalty": 1e38}, "frequency_penalty"),
        ({"max_tokens": "5"}, r"max_tokens is '5' \(str\), but must be None or a whole number >= 1"),
        ({"min_tokens": None}, "min_tokens is None"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, r"seed is 18446744073709551616, but must be None or a whole number from 0 to 2\*\*64 - 1"),
        ({"stop": [1]}, "an item of stop is 1, but must be a text"),
        ({"stop": b"ab"}, r"stop is b'ab' \(bytes\)"),
        ({"stop": 5}, "stop is 5"),
        ({"stop_token_ids": ["a"]}, "a token id of stop_token_ids is 'a'"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no'"),
        ({"logprobs": 5}, "logprobs is 5, but must be True or False"),
        ({"top_logprobs": -1}, "top_logprobs is -1"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"logit_bias": [1]}, "logit_bias is"),
        ({"logit_bias": {"1": 1.0}}, "a token id of logit_bias is '1'"),
        ({"logit_bias": {-1: 1.0}}, "a token id of logit_bias is -1"),
        ({"logit_bias": {1: "x"}}, r"logit_bias\[1\] is 'x'"),
        ({"logit_bias": {1: math.inf}}, r"logit_bias\[1\] is inf"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\] is nan"),
        ({"n": 0}, "n is 0"),
        ({"n": 129}, "n is 129, but must be a whole number from 1 to 128"),
        ({"n": 3, "best_of": 2}, "best_of is 2, but must be >= n, which is 3"),
        ({"beam_width": -1}, "beam_width is -1"),
        ({"beam_width": 2, "n": 3}, "beam_width is 2, but must be >= n"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature is 0.5, but must be 0 for a beam search"),
        ({"beam_width": 2, "best_of": 2}, "best_of is 2, but must be None for a beam search"),
        ({"length_penalty": 11}, "length_penalty is 11"),
        ({"loop_detection": 1}, "loop_detection is 1, but must be True or False"),
    ],
)
def test_parameters_are_checked(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalInferError, match=words):
        SamplingParams().changed(**changes)


def test_a_single_stop_text_may_be_given_alone() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]


def test_numbers_of_numpy_and_any_sequences_are_taken() -> None:
    given: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.int64(3),
        "max_tokens": np.uint8(9),
        "top_p": 1,
    }
    params = SamplingParams(**given, stop=["a", "b"], stop_token_ids=np.array([4, 5]))  # type: ignore[arg-type]
    assert params == SamplingParams(0.5, 3, 1.0, max_tokens=9, stop=("a", "b"), stop_token_ids=(4, 5))
    assert hash(params) == hash(params.changed()) == hash(params.changed(logit_bias={1: 2}))
    bias: dict[Any, Any] = {np.int64(3): np.float32(0.5)}
    assert SamplingParams(logit_bias=bias).logit_bias == {3: 0.5}
    assert SamplingParams(top_logprobs=2).logprobs
    assert SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
