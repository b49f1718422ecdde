"""Several answers to one prompt: what they share, which are given, and that load changes no token of any of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_models import BLOCK, Alphabet, Letters, Rememberer, drain, fake_engine
from localinfer.engine.engine import Engine
from localinfer.engine.request import Request
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]  # two full blocks and a half
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=9)


def answers(request: Request) -> list[list[int]]:
    return [list(choice.generated) for choice in request.choices]


def ask(e: Engine, params: SamplingParams, prompt: list[int] = PROMPT) -> list[list[int]]:
    request = e.add_request(prompt, params)
    drain(e)
    return answers(request)


def test_the_first_choice_is_the_only_one_of_a_request_for_one() -> None:
    alone = ask(fake_engine(Rememberer()), SAMPLED)
    three = ask(fake_engine(Rememberer(), sequences=3), SAMPLED.changed(n=3))
    assert three[0] == alone[0]
    assert len({tuple(tokens) for tokens in three}) == 3
    assert ask(fake_engine(Rememberer(), sequences=2), SAMPLED.changed(n=2)) == three[:2]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("sequences", "blocks"), [(1, 0), (2, 0), (4, 0), (4, 10), (6, 12)])
def test_the_same_choices_whatever_the_load(sequences: int, blocks: int, share: bool) -> None:
    params = [SAMPLED.changed(n=4, seed=seed) for seed in range(3)]
    expected = [ask(fake_engine(Rememberer(), sequences=4, prefix_cache=False), each) for each in params]
    e = fake_engine(Rememberer(), sequences=sequences, blocks=blocks, chunk=3, prefix_cache=share)
    requests = []
    for each in params:
        requests.append(e.add_request(PROMPT, each))
        e.step()
    drain(e)
    assert [answers(request) for request in requests] == expected
    if blocks:
        assert sum(request.preemptions for request in requests) > 0


def test_choices_share_the_full_blocks_of_the_prompt_and_copy_the_last() -> None:
    model = Rememberer()
    e = fake_engine(model, sequences=4, max_tokens=16)
    request = e.add_request(PROMPT, SAMPLED.changed(n=4))
    e.step()
    assert e.statistics.kv_blocks_used == 2 + 4
    assert len(model.copied) == 3
    tables = [choice.sequence.blocks for choice in request.choices]
    assert len({tuple(blocks[:2]) for blocks in tables}) == 1
    assert len({blocks[2] for blocks in tables}) == 4
    e.step()
    assert sum(model.processed) == len(PROMPT) + 4, "the prompt was processed more than once"
    drain(e)


def test_a_prompt_of_full_blocks_is_shared_without_a_copy() -> None:
    model = Rememberer()
    e = fake_engine(model, sequences=3)
    ask(e, SAMPLED.changed(n=3), PROMPT[:8])
    assert model.copied == []


def test_outputs_tell_the_choices_apart() -> None:
    e = fake_engine(Rememberer(), sequences=3)
    request = e.add_request(PROMPT, SAMPLED.changed(n=3, logprobs=True), Letters)
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    reasons = {}
    while e.has_work:
        for output in e.step():
            assert output.token is not None
            assert output.logprob is not None
            assert output.logprob.token == output.token
            assert output.text == chr(ord("a") + output.token)
            tokens[output.index].append(output.token)
            if output.finish_reason:
                reasons[output.index] = output.finish_reason
    assert list(tokens.values()) == answers(request)
    assert reasons == dict.fromkeys(range(3), "length")
    assert request.finish_reason == "length"


def test_a_choice_ends_by_itself() -> None:
    """Each choice ends where its own tokens say so, and the others go on."""
    base = ask(fake_engine(Rememberer(), sequences=3), SAMPLED.changed(n=3))
    stop = base[1][2]
    expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in base]
    e = fake_engine(Rememberer(), sequences=3)
    request = e.add_request(PROMPT, SAMPLED.changed(n=3, stop_token_ids=(stop,)))
    drain(e)
    assert answers(request) == expected
    assert [choice.finish_reason for choice in request.choices] == [
        "stop" if tokens[-1] == stop else "length" for tokens in expected
    ]


def test_aborting_ends_every_choice() -> None:
    e = fake_engine(Rememberer(), sequences=2)
    request = e.add_request(PROMPT, SAMPLED.changed(n=3))
    for _ in range(4):
        e.step()
    e.abort(request.id)
    outputs = e.step()
    assert {(o.index, o.finish_reason) for o in outputs} == {(i, "cancelled") for i in range(3)}
    assert not e.has_work
    assert e.kv.free == e.kv.count
    early = e.add_request(PROMPT, SAMPLED.changed(n=3))
    e.abort(early.id)
    assert len(e.step()) == 3


def test_broken_logits_of_one_choice_end_its_request_and_no_other() -> None:
    model = Alphabet()
    model.broken = {2}
    e = fake_engine(model, sequences=6)
    bad = e.add_request([0], SamplingParams(n=3, max_tokens=5))
    good = e.add_request([5], SamplingParams(n=3, max_tokens=2))
    drain(e)
    assert {choice.finish_reason for choice in bad.choices} == {"error"}
    assert "NaN" in str(bad.error)
    assert answers(good) == [[6, 7]] * 3


@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_of_best_of_those_are_given_whose_mean_log_probability_is_largest(sequences: int) -> None:
    e = fake_engine(Rememberer(), sequences=5)
    every = e.add_request(PROMPT, SAMPLED.changed(n=5, logprobs=True))
    drain(e)
    means = [sum(each.logprob for each in choice.logprobs) / len(choice.logprobs) for choice in every.choices]
    order = sorted(range(5), key=lambda i: -means[i])[:2]
    assert order != [0, 1], "the test shows nothing"

    e = fake_engine(Rememberer(), sequences=sequences)
    best = e.add_request(PROMPT, SAMPLED.changed(n=2, best_of=5), Letters)
    outputs = []
    while e.has_work:
        outputs += e.step()
    assert answers(best) == [answers(every)[i] for i in order]
    assert [choice.index for choice in best.choices] == [0, 1]
    for index in range(2):
        assert [o.token for o in outputs if o.index == index] == answers(best)[index]
    assert all(output.logprob is None for output in outputs)
    assert [o.finish_reason for o in outputs if o.finish_reason] == ["length"] * 2
    assert e.statistics.generated_tokens == 5 * 9


def test_waste_is_less_than_a_block_for_each_sequence() -> None:
    e = fake_engine(Rememberer(), sequences=4, max_tokens=16)
    e.add_request(PROMPT, SAMPLED.changed(n=4))
    most = 0
    while e.has_work:
        e.step()
        statistics = e.statistics
        assert statistics.kv_waste_tokens <= statistics.running * (BLOCK - 1)
        most = max(most, statistics.kv_waste_tokens)
    assert most > 0
    assert e.statistics.kv_waste_tokens == 0


def test_a_copy_that_fails_ends_the_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Rememberer()
    e = fake_engine(model, sequences=4)

    def fail(pairs: Any) -> None:
        raise LocalInferError("no copy")

    monkeypatch.setattr(model, "copy_blocks", fail)
    bad = e.add_request(PROMPT, SAMPLED.changed(n=2))
    good = e.add_request(PROMPT, SAMPLED)
    drain(e)
    assert str(bad.error) == "no copy"
    assert answers(good) == ask(fake_engine(Rememberer()), SAMPLED)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 17), st.integers(1, 4), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5
    ),
    st.integers(1, 5),
    st.integers(7, 14),
    st.integers(0, 9),
    st.booleans(),
    st.sets(st.integers(0, 30), max_size=3),
)
def test_any_load_gives_every_choice_its_tokens(
    asked: list[tuple[int, int, int, int]],
    sequences: int,
    blocks: int,
    chunk: int,
    share: bool,
    aborted_after: set[int],
) -> None:
    """Requests `(prompt length, n, answer length, steps before it comes)`; some others are aborted on the way."""
    e = fake_engine(
        Rememberer(), context=7 * BLOCK, sequences=sequences, blocks=blocks, chunk=chunk, prefix_cache=share
    )
    alone = fake_engine(Rememberer(), context=7 * BLOCK, sequences=4, prefix_cache=False)
    requests, victims = [], []
    for number, (length, n, more, wait) in enumerate(asked):
        params = SamplingParams(temperature=1.0, seed=number, n=n, max_tokens=more)
        prompt = [i % 5 for i in range(length)]
        requests.append((e.add_request(prompt, params), ask(alone, params, prompt)))
        victims.append(e.add_request(prompt[::-1], params))
        for _ in range(wait):
            e.step()
    steps = 0
    while e.has_work:
        if steps in aborted_after and victims:
            e.abort(victims.pop().id)
        e.step()
        steps += 1
    assert e.kv.free == e.kv.count
    for request, expected in requests:
        assert request.error is None
        assert answers(request) == expected
