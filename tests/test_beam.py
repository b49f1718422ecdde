"""Beam search against a plain one, alone and under load; and answers that repeat themselves."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_models import VOCABULARY, Alphabet, Letters, Rememberer, drain, fake_engine
from localinfer.engine.engine import Engine
from localinfer.engine.kv import BlockManager
from localinfer.engine.loop import LONGEST, REPEATS, SHORTEST, loop_period
from localinfer.engine.request import Output, Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.scheduler import Scheduler
from localinfer.engine.sequence import Sequence
from localinfer.errors import LocalInferError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
END = 7


def log_softmax(tokens: list[int]) -> np.ndarray[Any, Any]:
    x = np.array(Rememberer().logits(tuple(tokens)))
    return np.asarray(x - x.max() - np.log(np.exp(x - x.max()).sum()))


def plain_search(prompt: list[int], width: int, limit: int, penalty: float = 1.0) -> list[list[int]]:
    """The definition, without blocks, batches or candidates."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    while beams:
        ranked = sorted(
            (-(total + score), place, -score, token)
            for place, (total, answer) in enumerate(beams)
            for token, score in enumerate(log_softmax(prompt + answer))
        )
        following: list[tuple[float, list[int]]] = []
        taken = 0
        for total, place, _, token in ranked:
            if taken == width:
                break
            answer = [*beams[place][1], token]
            taken += token != END
            if token == END or len(answer) == limit:
                finished.append((-total / len(answer) ** penalty, answer))
            else:
                following.append((-total, answer))
        finished = sorted(finished, key=lambda each: -each[0])[:width]
        beams = following
        best = max((total / len(answer) ** penalty for total, answer in beams), default=-np.inf)
        if len(finished) == width and best <= finished[-1][0]:
            break
    return [answer for _, answer in finished]


def answers(request: Request) -> list[list[int]]:
    return [list(choice.generated) for choice in request.choices]


def search(e: Engine, prompt: list[int] = PROMPT, **parameters: Any) -> Request:
    request = e.add_request(prompt, SamplingParams(**parameters), Letters)
    drain(e)
    assert e.scheduler.parked == []
    return request


def engine(**options: Any) -> Engine:
    return fake_engine(Rememberer(), end_ids=[END], **options)


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize(("width", "limit"), [(1, 5), (2, 6), (4, 9), (6, 3), (30, 2)])
def test_the_likeliest_answers_are_found(width: int, limit: int, penalty: float) -> None:
    request = search(engine(sequences=4), beam_width=width, n=width, max_tokens=limit, length_penalty=penalty)
    assert answers(request) == plain_search(PROMPT, width, limit, penalty)
    assert {c.finish_reason for c in request.choices} <= {"stop", "length"}


def test_one_beam_is_greedy_and_more_find_a_likelier_answer() -> None:
    greedy = search(engine(), max_tokens=6)
    assert answers(search(engine(), beam_width=1, max_tokens=6)) == answers(greedy)
    means = []
    for width in (1, 5):
        parameters: dict[str, Any] = {"beam_width": width, "max_tokens": 6, "ignore_eos": True, "logprobs": True}
        found = [search(engine(sequences=5), PROMPT[:length], **parameters) for length in range(1, 6)]
        means.append([request.choices[0].mean_logprob for request in found])
    assert sum(means[1]) > sum(means[0])


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("sequences", [1, 2, 3, 8])
@pytest.mark.parametrize("blocks", [10, 0])
def test_the_same_beams_whatever_the_load(sequences: int, blocks: int, share: bool) -> None:
    expected = plain_search(PROMPT, 4, 9)
    e = engine(sequences=sequences, blocks=blocks, chunk=3, prefix_cache=share)
    others = [e.add_request([i, 2, 3], SamplingParams(max_tokens=20)) for i in range(2)]
    requests = []
    for _ in range(3):
        requests.append(e.add_request(PROMPT, SamplingParams(beam_width=4, n=4, max_tokens=9)))
        e.step()
    drain(e)
    for request in requests:
        assert request.error is None
        assert answers(request) == expected
    for i, other in enumerate(others):
        assert answers(other) == answers(search(engine(), [i, 2, 3], max_tokens=20))
    if sequences == 8 and blocks:
        assert sum(request.preemptions for request in requests) > 0


def test_beams_share_blocks() -> None:
    model = Rememberer()
    e = fake_engine(model, sequences=6, context=80, max_tokens=32)
    e.add_request([*range(20)], SamplingParams(beam_width=6, max_tokens=8))
    most = 0
    while e.has_work:
        e.step()
        most = max(most, e.statistics.kv_blocks_used)
    assert most <= 5 + 6 * 2
    assert model.copied, "nothing was copied"
    assert model.processed == [20, *[6] * 7], "beams do not run side by side"


def test_outputs_of_a_search_come_at_its_end() -> None:
    e = engine(sequences=3)
    request = e.add_request(PROMPT, SamplingParams(beam_width=3, n=2, max_tokens=5, top_logprobs=2), Letters)
    outputs: list[Output] = []
    while e.has_work:
        assert not outputs
        outputs = e.step()
    for index in range(2):
        tokens = [o.token for o in outputs if o.index == index]
        assert tokens == answers(request)[index]
        told = [o.logprob for o in outputs if o.index == index]
        for place, (token, entry) in enumerate(zip(tokens, told, strict=True)):
            assert entry is not None
            expected = log_softmax(PROMPT + answers(request)[index][:place])
            assert entry.token == token
            assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
            assert [t for t, _ in entry.top] == list(np.argsort(-expected)[:2])
    assert [o.finish_reason is not None for o in outputs if o.index == 1] == [False] * 4 + [True]
    assert request.choices[0].logprobs == [o.logprob for o in outputs if o.index == 0]


def test_stop_texts_and_min_tokens_hold_for_beams() -> None:
    free = search(engine(sequences=3), beam_width=3, n=3, max_tokens=6, ignore_eos=True)
    third = chr(ord("a") + answers(free)[0][2])
    e = engine(sequences=3)
    stopped = search(e, beam_width=3, n=3, max_tokens=6, ignore_eos=True, stop=(third,), length_penalty=0)
    for choice in stopped.choices:
        text = "".join(chr(ord("a") + token) for token in choice.generated)
        assert third not in text[:-1]
        assert (choice.finish_reason == "stop") == text.endswith(third)
    assert "stop" in {choice.finish_reason for choice in stopped.choices}
    late = search(engine(sequences=3), beam_width=3, n=3, max_tokens=8, min_tokens=6)
    assert all(END not in tokens[:6] for tokens in answers(late))
    biased = search(engine(sequences=3), beam_width=3, max_tokens=4, logit_bias={9: 100.0})
    assert answers(biased) == [[9, 9, 9, 9]]


def test_an_aborted_search_leaves_nothing_behind() -> None:
    for steps in range(5):
        e = engine(sequences=2)
        request = e.add_request(PROMPT, SamplingParams(beam_width=4, n=2, max_tokens=20, ignore_eos=True))
        for _ in range(steps):
            e.step()
        e.abort(request.id)
        assert [(o.index, o.finish_reason) for o in e.step()] == [(0, "cancelled"), (1, "cancelled")]
        assert not e.has_work
        assert e.kv.free == e.kv.count
        assert [*e.scheduler.running, *e.scheduler.waiting, *e.scheduler.parked] == []


def test_a_search_that_fails_ends_its_request_only() -> None:
    model = Alphabet()
    model.broken = {5}
    e = fake_engine(model, sequences=3)
    bad = e.add_request([2], SamplingParams(beam_width=2, max_tokens=9))
    good = e.add_request([9], SamplingParams(max_tokens=3))
    drain(e)
    assert bad.finish_reason == "error"
    assert "NaN" in str(bad.error)
    assert answers(good) == [[10, 11, 12]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2)), max_size=3),
    st.integers(1, 5),
    st.integers(5, 14),
    st.booleans(),
    st.integers(0, 12),
)
def test_any_load_finds_the_same(
    asked: list[tuple[int, int, int, int]], sequences: int, blocks: int, share: bool, aborted_after: int
) -> None:
    """Searches `(prompt length, width, answer length, steps before it comes)` beside one that is aborted."""
    e = engine(context=20, sequences=sequences, blocks=blocks, chunk=3, prefix_cache=share)
    victim = e.add_request(PROMPT, SamplingParams(beam_width=3, max_tokens=9))
    requests = []
    for length, width, limit, wait in asked:
        params = SamplingParams(beam_width=width, n=width, max_tokens=limit)
        requests.append((e.add_request(PROMPT[:length], params), plain_search(PROMPT[:length], width, limit)))
        for _ in range(wait):
            e.step()
    for step in range(1000):
        if step == aborted_after:
            e.abort(victim.id)
        e.step()
        if not e.has_work:
            break
    assert e.kv.free == e.kv.count
    for request, expected in requests:
        assert answers(request) == expected


# Answers that repeat themselves.


def test_a_loop_ends_an_answer_only_if_asked() -> None:
    """The alphabet comes again after 26 letters: four times is a loop."""
    options: dict[str, Any] = {"context": 200, "max_tokens": 32}
    request = search(fake_engine(Alphabet(), **options), [5], loop_detection=True)
    assert request.finish_reason == "loop"
    assert len(answers(request)[0]) == REPEATS * VOCABULARY
    assert "26 tokens" in request.choices[0].finish_detail
    assert search(fake_engine(Alphabet(), **options), [5]).finish_reason == "length"
    with pytest.raises(LocalInferError, match="loop_detection is True"):
        SamplingParams(beam_width=2, loop_detection=True)


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), min_size=1, max_size=24),
    st.integers(1, 30),
)
def test_a_loop_is_what_its_definition_says(before: list[int], piece: list[int], times: int) -> None:
    tokens = array("i", before + piece * times)

    def repeats(period: int) -> bool:
        length = max(SHORTEST, REPEATS * period)
        tail = tokens[-length:]
        return len(tail) == length and all(tail[i] == tail[i - period] for i in range(period, length))

    expected = next((period for period in range(1, LONGEST + 1) if repeats(period)), None)
    assert loop_period(tokens) == expected
    if len(piece) * times >= max(SHORTEST, REPEATS * len(piece)):
        assert expected is not None


def test_pieces_that_are_too_long_are_no_loop() -> None:
    assert loop_period(array("i", [*range(LONGEST)] * REPEATS)) == LONGEST
    assert loop_period(array("i", [*range(LONGEST + 1)] * REPEATS)) is None
    assert loop_period(array("i", [1] * (SHORTEST - 1))) is None
    assert loop_period(array("i", [0] + [1] * SHORTEST)) == 1


# The scheduler's part.


def test_parked_sequences_give_their_blocks_first() -> None:
    s = Scheduler(BlockManager(4, 4, share=False), max_tokens=32, max_sequences=3)
    first, parked = Sequence.of_prompt(0, range(8)), Sequence.of_prompt(1, range(8))
    for each in (first, parked):
        s.add(each)
    s.commit(s.schedule())
    s.park(parked)
    assert parked.blocks
    first.tokens.append(1)
    s.commit(s.schedule())
    assert (first.preemptions, parked.preemptions) == (0, 1)
    assert parked.blocks == []
    s.resume(parked)
    assert s.waiting == [parked]
    s.finish(first)
    assert [chunk.count for chunk in s.schedule()] == [8]


def test_a_parked_sequence_that_kept_its_blocks_goes_on() -> None:
    s = Scheduler(BlockManager(4, 4), max_tokens=32, max_sequences=1)
    parked, other = Sequence.of_prompt(0, range(8)), Sequence.of_prompt(1, [9])
    s.add(parked)
    s.commit(s.schedule())
    s.park(parked)
    s.add(other)
    assert [chunk.sequence for chunk in s.schedule()] == [other], "who is parked leaves no room to others"
    s.finish(other)
    s.resume(parked)
    parked.tokens.append(1)
    assert [(chunk.sequence, chunk.count) for chunk in s.schedule()] == [(parked, 1)]
    s.park(parked)
    s.finish(parked)
    assert s.kv.free == 4


def test_who_divides_stands_next_to_its_parent() -> None:
    s = Scheduler(BlockManager(8, 4), max_tokens=32, max_sequences=1)
    parent, later, child = Sequence.of_prompt(0, [1]), Sequence.of_prompt(1, [2]), Sequence.of_prompt(0, [1], index=1)
    s.add(parent)
    s.add(later)
    s.commit(s.schedule())
    assert s.fork(parent, child) == []
    assert s.waiting == [child, later]
