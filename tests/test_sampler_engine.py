"""What the engine makes of samplers with a memory, and of logits processors: on models that are made up."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest

from fake_models import Letters, Rememberer, drain, fake_engine
from localinfer.engine.request import LogitsProcessor, Request
from localinfer.engine.sampler import Sampler, new_draw
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import Sequence
from localinfer.errors import LocalInferError
from localinfer.kernels.host.sampler import Breakers, Draw, NativeSampler
from sampler_definition import dry_penalties, random_row

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4]
VOCABULARY = 26


def answer(prompt: list[int] = PROMPT, **sampling: Any) -> list[int]:
    processors = sampling.pop("logits_processors", ())
    e = fake_engine(Rememberer())
    request = e.add_request(prompt, SamplingParams(max_tokens=15, **sampling), Letters, logits_processors=processors)
    drain(e)
    assert request.error is None
    return list(request.choices[0].generated)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5},
        {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
        {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"temperature": 1.0, "top_n_sigma": 1.0},
        {"temperature": 1.0, "dynatemp_range": 0.9, "dynatemp_exponent": 0.5},
        {"dry_multiplier": 9.0, "dry_base": 2.0, "dry_allowed_length": 0},
    ],
    ids=lambda sampling: next(name for name in sampling if name != "temperature"),
)
def test_every_parameter_reaches_the_sampler(sampling: dict[str, Any]) -> None:
    """The answer is what the native sampler draws, one token after the other; without the parameters it is another."""
    model, sampler, tokens = Rememberer(), NativeSampler(VOCABULARY, 40), array("i", PROMPT)
    how = Draw(seed=5, **sampling)
    for _ in range(15):
        logits = np.array(model.logits(tuple(tokens)), np.float32)
        how.position = len(tokens)
        if "dry_multiplier" in sampling:
            how.look_back(tokens[:])
        tokens.append(sampler.draw(logits.ctypes.data, how).token)
        how.accept()
    expected = list(tokens[len(PROMPT) :])
    assert answer(seed=5, dry_sequence_breakers=(), **sampling) == expected
    assert answer(seed=5, temperature=sampling.get("temperature", 0.0)) != expected


def test_mirostat_learns_of_each_answer_by_itself() -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=9, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.9, n=3)
    e = fake_engine(Rememberer(), sequences=3)
    request = e.add_request(PROMPT, params)
    drain(e)
    assert len({choice.draw.mirostat_mu for choice in request.choices}) == 3
    alone = fake_engine(Rememberer())
    first = alone.add_request(PROMPT, params.changed(n=1))
    drain(alone)
    assert first.choices[0].generated == request.choices[0].generated
    assert first.choices[0].draw.mirostat_mu == request.choices[0].draw.mirostat_mu


@pytest.mark.parametrize("last", [-1, 0, 3, 7, 100])
def test_dry_looks_at_the_tokens_that_it_is_told(last: int) -> None:
    logits = random_row(1, VOCABULARY)
    tokens = [1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3]
    params = SamplingParams(dry_multiplier=2.0, dry_allowed_length=1, dry_penalty_last_n=last, dry_sequence_breakers=())
    sampler = Sampler(VOCABULARY, 40)
    sequence = Sequence.of_prompt(0, tokens)
    found = sampler.candidates(logits.ctypes.data, sequence, params, new_draw(params, 0), None, VOCABULARY)
    expected = logits.astype(np.float64)
    window = {-1: tokens, 0: []}.get(last, tokens[-last:])
    for token, penalty in dry_penalties(window, 2.0, 1.75, 1).items():
        expected[token] -= penalty
    assert [each.token for each in found] == np.argsort(-expected, kind="stable").tolist()


def test_sequence_breakers_need_a_vocabulary() -> None:
    with pytest.raises(LocalInferError, match="cannot find dry_sequence_breakers"):
        fake_engine(Rememberer()).add_request(PROMPT, SamplingParams(dry_multiplier=1.0))
    asked = []

    def find(texts: tuple[str, ...]) -> Breakers:
        asked.append(texts)
        return Breakers(VOCABULARY, [(1, ())])

    e = fake_engine(Rememberer(), find_breakers=find)
    for params in ({"dry_multiplier": 0.0}, {"dry_multiplier": 1.0, "dry_penalty_last_n": 0}):
        e.add_request(PROMPT, SamplingParams(max_tokens=1, **params))  # type: ignore[arg-type]
    assert asked == []
    e.add_request(PROMPT, SamplingParams(max_tokens=1, dry_multiplier=1.0, dry_sequence_breakers=("b", "c"), n=2))
    assert asked == [("b", "c")]
    drain(e)


def only(token: int) -> LogitsProcessor:
    def processor(tokens: array[int], logits: memoryview[float]) -> None:
        for other in range(len(logits)):
            if other != token:
                logits[other] = -math.inf

    return processor


def test_a_processor_sees_the_tokens_and_changes_the_logits() -> None:
    seen: list[list[int]] = []
    rows: list[list[float]] = []

    def count_up(tokens: array[int], logits: memoryview[float]) -> None:
        seen.append(list(tokens))
        rows.append(list(logits))
        only(len(tokens) % VOCABULARY)(tokens, logits)
        tokens.append(25)  # they are its own

    found = answer(logits_processors=[count_up])
    assert found == [place % VOCABULARY for place in range(len(PROMPT), len(PROMPT) + 15)]
    assert seen == [PROMPT + found[:place] for place in range(15)]
    model = Rememberer()
    assert rows == [model.logits(tuple(tokens)) for tokens in seen]


def test_processors_come_one_after_the_other_and_before_everything_else() -> None:
    def add(number: float) -> LogitsProcessor:
        def processor(tokens: array[int], logits: memoryview[float]) -> None:
            logits[7] = (logits[7] + number) * 2

        return processor

    one = answer(logits_processors=[add(1e3), add(-3e3)], logit_bias={7: 0.5})
    assert 7 not in one
    assert answer(logits_processors=[add(-3e3), add(1e4)]) == [7] * 15
    assert answer(logits_processors=[add(1e3)], logit_bias={7: -1e4}, temperature=1.0, seed=1).count(7) == 0
    assert answer(logits_processors=(each for each in [only(3)]), min_tokens=3, stop_token_ids=(9,)) == [3] * 15


def test_a_row_may_be_taken_for_an_array_of_numpy() -> None:
    views = []

    def processor(tokens: array[int], logits: memoryview[float]) -> None:
        row = np.frombuffer(logits, np.float32)  # type: ignore[arg-type]
        row[:] = 0
        row[4] = 1
        views.append(row)

    assert answer(logits_processors=[processor]) == [4] * 15
    assert len(views) == 15, "views that are kept do no harm"


def test_log_probabilities_stay_those_of_the_model() -> None:
    plain = fake_engine(Rememberer()).add_request(PROMPT, SamplingParams())
    assert plain.logits_processors == ()
    e = fake_engine(Rememberer())
    params = SamplingParams(max_tokens=1, top_logprobs=2)
    request = e.add_request(PROMPT, params, logits_processors=[only(20)])
    drain(e)
    [told] = request.choices[0].logprobs
    row = np.array(Rememberer().logits(tuple(PROMPT)))
    logprobs = row - np.log(np.exp(row).sum())
    assert told.token == 20
    assert told.logprob == pytest.approx(logprobs[20], abs=1e-4)
    assert [token for token, _ in told.top] == np.argsort(-row)[:2].tolist()


def test_a_processor_that_fails_ends_its_request_and_no_other() -> None:
    def fails(tokens: array[int], logits: memoryview[float]) -> None:
        if len(tokens) == len(PROMPT) + 3:
            raise ValueError("three is enough")

    e = fake_engine(Rememberer(), sequences=2)
    failing = e.add_request(PROMPT, SamplingParams(max_tokens=9), logits_processors=[fails])
    other = e.add_request(PROMPT[::-1], SamplingParams(max_tokens=9))
    drain(e)
    assert failing.finish_reason == "error"
    assert isinstance(failing.error, LocalInferError)
    assert failing.error.message == "a logits processor failed: ValueError: three is enough"
    assert isinstance(failing.error.__cause__, ValueError)
    assert len(failing.choices[0].generated) == 3
    assert other.finish_reason == "length"
    assert other.choices[0].generated.tolist() == answer(PROMPT[::-1])[:9]


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (lambda tokens, logits: list(logits), "returned a list"),
        (lambda tokens, logits: 1 / 0, "a logits processor failed: ZeroDivisionError: division by zero"),
        (lambda tokens, logits: logits.__setitem__(30, 0.0), "a logits processor failed: IndexError"),
        (lambda tokens, logits: logits.__setitem__(3, math.nan), "NaN"),
        (lambda tokens, logits: [logits.__setitem__(i, -math.inf) for i in range(26)][:0] or None, "above -inf"),
        (lambda tokens: None, "a logits processor failed: TypeError"),
    ],
)
def test_what_is_wrong_with_a_processor_is_said(processor: Any, words: str) -> None:
    e = fake_engine(Rememberer())
    request = e.add_request(PROMPT, SamplingParams(max_tokens=9), logits_processors=[processor])
    drain(e)
    assert isinstance(request.error, LocalInferError)
    assert words in str(request.error)
    if "processor" not in request.error.message:
        assert "logits processor" in request.error.hint


@pytest.mark.parametrize("given", [3, [3], [only(1), None], "ab"])
def test_what_is_no_processor_is_refused(given: Any) -> None:
    with pytest.raises(LocalInferError, match="logits_processors"):
        fake_engine(Rememberer()).add_request(PROMPT, SamplingParams(), logits_processors=given)


@pytest.mark.parametrize("mode", ["off", "ngram"])
def test_each_token_of_an_answer_is_seen_once_with_drafts_and_without(mode: Any) -> None:
    def run(sequences: int, blocks: int = 0) -> tuple[list[list[int]], list[Request]]:
        seen: list[list[int]] = []

        def prefers_a_round(tokens: array[int], logits: memoryview[float]) -> None:
            seen.append(list(tokens))
            logits[(tokens[-1] + 1) % 5] += 6.0 + tokens[-2] / 10

        e = fake_engine(Rememberer(), context=64, sequences=sequences, blocks=blocks, speculation=mode, more_rows=6)
        params = SamplingParams(max_tokens=30, temperature=0.8, seed=3)
        requests = [e.add_request(PROMPT, params, logits_processors=[prefers_a_round])]
        for seed in range(sequences - 1):
            requests.append(e.add_request(PROMPT, params.changed(seed=seed)))
        drain(e)
        if mode == "ngram":
            assert e.statistics.rejected > 0
            assert e.statistics.accepted > 0
        return seen, requests

    alone, [request] = run(1)
    crowded, [same, *_] = run(4, blocks=20)
    assert request.choices[0].generated == same.choices[0].generated
    assert alone == crowded == [PROMPT + request.choices[0].generated.tolist()[:place] for place in range(30)]


def test_beams_are_given_to_processors() -> None:
    def forbid(token: int) -> LogitsProcessor:
        return lambda tokens, logits: logits.__setitem__(token, -math.inf)

    params = SamplingParams(max_tokens=5, beam_width=3, n=2, logprobs=True)
    e = fake_engine(Rememberer(), sequences=3)
    plain = e.add_request(PROMPT, params)
    drain(e)
    token = plain.choices[0].generated[0]
    changed = e.add_request(PROMPT, params, logits_processors=[forbid(token)])
    drain(e)
    assert all(token not in choice.generated for choice in changed.choices)
    assert changed.choices[0].logprobs[0].logprob < 0
