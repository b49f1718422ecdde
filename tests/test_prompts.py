"""What is told of a prompt itself: log probabilities of its tokens, embeddings, and where it missed the cache."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from fake_models import Alphabet, Rememberer, drain, fake_engine
from localinfer.engine.engine import Engine
from localinfer.engine.request import Request
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import ContextLengthError, LocalInferError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]


def ask(e: Engine, prompt: list[int] = PROMPT, **parameters: Any) -> Request:
    request = e.add_request(prompt, SamplingParams(**{"max_tokens": 3, **parameters}))
    drain(e)
    return request


def log_softmax(prompt: list[int]) -> np.ndarray[Any, Any]:
    x = np.array(Rememberer().logits(tuple(prompt)))
    return np.asarray(x - x.max() - np.log(np.exp(x - x.max()).sum()))


@pytest.mark.parametrize("top", [0, 2])
def test_prompt_logprobs_are_those_of_the_logits_before_each_token(top: int) -> None:
    request = ask(fake_engine(Rememberer(), more_rows=3), prompt_logprobs=top)
    assert request.prompt_logprobs is not None
    assert request.prompt_logprobs[0] is None
    assert len(request.prompt_logprobs) == len(PROMPT)
    for position, entry in enumerate(request.prompt_logprobs[1:], 1):
        expected = log_softmax(PROMPT[:position])
        assert entry is not None
        assert entry.token == PROMPT[position]
        assert entry.logprob == pytest.approx(expected[entry.token], abs=1e-5)
        assert [token for token, _ in entry.top] == list(np.argsort(-expected)[:top])
    plain = ask(fake_engine(Rememberer()))
    assert request.choices[0].generated == plain.choices[0].generated
    assert plain.prompt_logprobs is None
    assert ask(fake_engine(Rememberer()), PROMPT[:1], prompt_logprobs=1).prompt_logprobs == [None]


@pytest.mark.parametrize("more_rows", [0, 1, 20])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prompt_logprobs_come_whatever_the_load(chunk: int, more_rows: int) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 1, "n": 2, "temperature": 1, "seed": 1, "max_tokens": 9}
    expected = ask(fake_engine(Rememberer(), more_rows=20), **asked)
    model = Rememberer()
    e = fake_engine(model, sequences=3, blocks=10, chunk=chunk, more_rows=more_rows)
    ask(e)  # fills the cache
    requests = []
    for _ in range(3):
        requests.append(e.add_request(PROMPT, SamplingParams(**asked)))
        e.step()
    drain(e)
    for request in requests:
        assert request.prompt_logprobs == expected.prompt_logprobs
        assert [choice.generated for choice in request.choices] == [choice.generated for choice in expected.choices]
        assert request.cached == 0, "rows of cached tokens are not computed"
    assert sum(request.preemptions for request in requests) > 0
    assert max(model.rows) <= 3 + more_rows


def test_after_a_preemption_no_prompt_logprob_is_computed_twice() -> None:
    model = Rememberer()
    e = fake_engine(model, more_rows=1, prefix_cache=False)
    request = e.add_request(PROMPT, SamplingParams(max_tokens=3, prompt_logprobs=0))
    while e.has_work:
        e.step()
        if len(model.rows) in (1, 4, 6):
            e.scheduler._preempt_last()
    assert request.preemptions == 3
    assert request.prompt_logprobs == ask(fake_engine(Rememberer()), prompt_logprobs=0).prompt_logprobs
    assert sum(model.rows) == len(PROMPT) + 2


def states(prompt: list[int]) -> list[list[float]]:
    return [Rememberer().hidden(_batch(prompt[: i + 1])).numpy()[0].tolist() for i in range(len(prompt))]


def _batch(tokens: list[int]) -> Any:
    from localinfer.kernels.base import batch_of

    return batch_of([(tokens, 0, list(range(-(-len(tokens) // 4))))])


def embed(e: Engine, pooling: Any, prompt: list[int] = PROMPT) -> array[float]:
    request = e.add_embedding(prompt, pooling=pooling)
    outputs = []
    while e.has_work:
        outputs += e.step()
    assert [(o.request, o.index, o.token, o.text, o.finish_reason) for o in outputs] == [(request, 0, None, "", "stop")]
    assert request.embedding is not None
    assert request.embedding.typecode == "f"
    return request.embedding


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_an_embedding_is_the_pooled_hidden_states(pooling: str) -> None:
    rows = np.array(states(PROMPT))
    expected = {"mean": rows.mean(axis=0), "last": rows[-1], "cls": rows[0]}[pooling]
    found = embed(fake_engine(Rememberer(), max_tokens=40), pooling)
    assert found == array("f", expected)
    assert embed(fake_engine(Rememberer(), max_tokens=40), pooling, PROMPT[:1]) == array("f", rows[0])
    for chunk in (1, 3, 16):
        assert embed(fake_engine(Rememberer(), max_tokens=16, chunk=chunk), pooling) == found, f"pieces of {chunk}"


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings_beside_answers_and_after_preemption(pooling: Any) -> None:
    e = fake_engine(Rememberer(), sequences=4, blocks=20, chunk=3)
    expected = embed(fake_engine(Rememberer()), pooling), ask(fake_engine(Rememberer()))
    pairs = []
    for _ in range(3):
        answer = e.add_request(PROMPT, SamplingParams(max_tokens=3))
        pairs.append((e.add_embedding(PROMPT, pooling=pooling), answer))
        e.step()
        e.step()
        e.scheduler._preempt_last()
    drain(e)
    for embedding, answer in pairs:
        assert embedding.embedding == expected[0]
        assert answer.choices[0].generated == expected[1].choices[0].generated
    assert sum(embedding.preemptions for embedding, _ in pairs) > 0 or pooling == "cls", "that is done in one step"


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings_neither_use_the_prefix_cache_nor_fill_it(pooling: Any) -> None:
    e = fake_engine(Rememberer())
    request = e.add_embedding(PROMPT, pooling=pooling)
    drain(e)
    assert ask(e).cached == 0
    assert ask(e).cached == 16
    again = e.add_embedding(PROMPT, pooling=pooling)
    drain(e)
    assert (request.cached, again.cached) == (0, 0)
    assert request.embedding == again.embedding


def test_what_is_not_to_be_embedded_is_refused() -> None:
    e = fake_engine(Rememberer())
    assert len(embed(e, "mean", [1] * 40)) > 0
    with pytest.raises(ContextLengthError, match=r"has 41 tokens, but the context holds 40"):
        e.add_embedding([1] * 41)
    with pytest.raises(LocalInferError, match="pooling is 'max'"):
        e.add_embedding([1], pooling="max")  # type: ignore[arg-type]
    with pytest.raises(LocalInferError, match="empty"):
        e.add_embedding([])
    assert not e.has_work


def test_an_aborted_embedding_leaves() -> None:
    e = fake_engine(Rememberer())
    request = e.add_embedding(PROMPT)
    e.step()
    e.abort(request.id)
    assert [(o.request, o.finish_reason) for o in e.step()] == [(request, "cancelled")]
    assert request.embedding is None
    assert e.kv.free == e.kv.count


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 20, 9], (8, 8, 20)),  # behind two full blocks, in a full block
        ([0, 1, 2, 3, 4, 5, 20, 7, 8, 9], (6, 6, 20)),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 20, 14], (13, 13, 20)),  # in the partly filled last block
        ([0, 21, 22], (1, 1, 21)),
        ([20, 1, 2, 3, 4], None),  # nothing agrees
        ([0, 1, 2, 3, 4, 5], None),  # the cache holds more
        ([*range(14), 20], None),  # goes on where the cache ends
    ],
)
def test_a_near_miss_tells_the_first_token_that_differs(
    prompt: list[int], expected: tuple[int, int, int] | None
) -> None:
    e = fake_engine(Alphabet())
    request = ask(e, [*range(12)], max_tokens=3)  # the cache then holds tokens 0 to 13
    assert request.near_miss is None
    assert ask(e, prompt).near_miss == expected


def test_the_longest_agreement_is_told() -> None:
    e = fake_engine(Alphabet())
    for prompt in ([1, 2, 3, 4, 5], [1, 2, 9, 9, 9], [1, 2, 3, 9, 9]):
        ask(e, prompt, max_tokens=1)
    assert ask(e, [1, 2, 3, 7, 7]).near_miss == (3, 9, 7)


def test_statistics_count_what_was_done() -> None:
    e = fake_engine(Rememberer(), sequences=2)
    ask(e)
    e.add_request(PROMPT, SamplingParams(max_tokens=9))
    e.step()
    e.add_request(PROMPT[::-1], SamplingParams(max_tokens=3))
    e.step()
    now = e.statistics
    assert (now.running, now.waiting) == (2, 0)
    assert 0 < now.kv_blocks_used <= now.kv_blocks_total == 20
    drain(e)
    end = e.statistics
    assert (end.prompt_tokens, end.cached_tokens, end.generated_tokens) == (3 * 17, 16, 3 + 9 + 3)
    assert end.steps_mixed > 0
    assert end.steps_cached > 0
    assert end.steps > end.steps_mixed
    assert (end.running, end.kv_blocks_used, end.kv_waste_tokens) == (0, 0, 0)
    assert now.generated_tokens < end.generated_tokens, "the statistics are no copy"
