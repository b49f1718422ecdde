"""Speculative decoding: which tokens come never depends on drafts; how many in a step does."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_models import BLOCK, VOCABULARY, Alphabet, FakeModel, Letters, Rememberer, drain, fake_engine
from localinfer.engine.draft import DraftModel
from localinfer.engine.engine import Engine
from localinfer.engine.kv import BlockManager
from localinfer.engine.request import Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.speculation import Speculation
from localinfer.engine.step_times import StepTimes
from localinfer.kernels.base import LoadConfig
from localinfer.kernels.host.sampler import Breakers

CONTEXT = 64


class Mostly(FakeModel):
    """Mostly the next letter; where the text so far says so, something else: drafts are right, and sometimes wrong."""

    def logits(self, history: tuple[int, ...]) -> list[float]:
        chance = crc32(bytes(history))
        row = [0.0] * VOCABULARY
        row[(history[-1] + 1 + (chance % 5 == 0) * (chance % 7)) % 8] = 3.0
        return row


class Failing(Alphabet):
    def step(self, batch: Any) -> Any:
        raise RuntimeError("the draft model is broken")


def draft_of(model: FakeModel, sequences: int = 4, blocks: int = 64) -> DraftModel:
    return DraftModel(model, LoadConfig(CONTEXT, sequences, sequences, CONTEXT, blocks, block_size=BLOCK), VOCABULARY)


def engine(model: FakeModel, mode: str = "off", draft: FakeModel | None = None, **options: Any) -> Engine:
    given: dict[str, Any] = {
        "context": CONTEXT,
        "max_tokens": 24,
        "more_rows": 8,
        "sequences": 4,
        "find_breakers": letters,
    } | options
    return fake_engine(model, speculation=mode, draft=draft_of(draft) if draft else None, **given)


def letters(texts: tuple[str, ...]) -> Breakers:
    return Breakers(VOCABULARY, ((ids(text)[0], tuple(ids(text)[1:])) for text in texts))


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def outcome(request: Request) -> list[Any]:
    return [(list(c.generated), c.logprobs, c.finish_reason, c.finish_detail) for c in request.choices]


PARAMS = (
    {"max_tokens": 20},
    {"max_tokens": 9, "temperature": 1.5, "seed": 3},
    {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"max_tokens": 30, "temperature": 0.8, "seed": 5, "stop": ("gh", "cab")},
    {"max_tokens": 12, "stop_token_ids": (3,), "min_tokens": 7, "logprobs": True},
    {"max_tokens": 10, "temperature": 1.0, "seed": 6, "n": 3, "top_logprobs": 2},
    {"max_tokens": 8, "temperature": 1.0, "seed": 7, "n": 2, "best_of": 3},
    {"max_tokens": 6, "beam_width": 2, "n": 2},
    {"max_tokens": 20, "dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": ("e",)},
    {"max_tokens": 20, "temperature": 1.0, "seed": 8, "xtc_probability": 0.5, "xtc_threshold": 0.02},
    {"max_tokens": 20, "temperature": 1.0, "seed": 9, "mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.8},
    {"max_tokens": 9, "temperature": 1.0, "seed": 10, "mirostat": 1, "mirostat_tau": 1.5, "n": 2, "best_of": 3},
    {"max_tokens": 9, "temperature": 0.9, "seed": 11, "dynatemp_range": 0.8, "top_n_sigma": 2.0},
)
PROMPTS = ("abcabc", "gfedcba", "abcdefabcdefabcdefabcdef", "a", "hhhh")
MODES = {
    "ngram": ("ngram", None),
    "auto": ("auto", None),
    "good draft": ("draft", Alphabet),
    "same draft": ("draft", Mostly),
    "bad draft": ("draft", Rememberer),
    "auto with a draft": ("auto", Alphabet),
    "broken draft": ("draft", Failing),
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("blocks", [64, CONTEXT // BLOCK + 2])
def test_the_same_tokens_with_and_without(name: str, blocks: int) -> None:
    mode, draft = MODES[name]
    plain, drafting = engine(Mostly(), sequences=1), engine(Mostly(), mode, draft() if draft else None, blocks=blocks)
    asked = [(ids(prompt), SamplingParams(**params)) for params in PARAMS for prompt in PROMPTS]
    expected = []
    for prompt, params in asked:
        expected.append(plain.add_request(prompt, params, Letters))
        drain(plain)
    for _ in range(2):  # with a cold and a warm cache
        found = []
        for prompt, params in asked:
            found.append(drafting.add_request(prompt, params, Letters))
            drafting.step()
        drain(drafting)
        assert [outcome(request) for request in found] == [outcome(request) for request in expected]
    counts = drafting.statistics
    assert counts.accepted + counts.rejected == counts.drafted
    assert counts.generated_tokens == 2 * plain.statistics.generated_tokens
    if name == "broken draft":
        assert counts.drafted == 0
    elif mode != "auto":  # which does what measures faster, here and now
        assert counts.steps_speculated > 0
        assert counts.rejected > 0 or name == "same draft"
        assert counts.accepted > 0 or name == "bad draft"
    if name == "same draft":
        assert counts.accepted > 0.9 * counts.drafted
    drafting.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 7), min_size=1, max_size=30), st.integers(1, 30)), max_size=6),
    st.sampled_from(sorted(MODES)),
    st.integers(1, 4),
    st.booleans(),
)
def test_nothing_leaks_and_nothing_changes(
    asked: list[tuple[list[int], int]], name: str, sequences: int, cache: bool
) -> None:
    mode, draft = MODES[name]
    plain = engine(Mostly(), sequences=1, prefix_cache=False)
    few = engine(
        Mostly(), mode, draft() if draft else None, sequences=sequences, blocks=CONTEXT // BLOCK, prefix_cache=cache
    )
    requests = []
    for prompt, count in asked:
        params = SamplingParams(max_tokens=count, temperature=1.0, seed=count)
        pair = plain.add_request(prompt, params), few.add_request(prompt, params)
        requests.append(pair)
        few.step()
    drain(plain)
    drain(few)
    assert all(outcome(one) == outcome(other) for one, other in requests)


def test_an_answer_of_letters_takes_fewer_steps() -> None:
    steps = {}
    for name, mode, draft in (("off", "off", None), ("ngram", "ngram", None), ("draft", "draft", Alphabet())):
        model = Alphabet()
        e = engine(model, mode, draft)
        e.add_request(ids("abcdefghijklmnopqrstuvwxyzabc"), SamplingParams(max_tokens=25), Letters)
        assert drain(e) == {0: "defghijklmnopqrstuvwxyzab"}
        steps[name] = e.statistics.steps
    assert steps["off"] == 2 + 24
    assert steps["ngram"] == steps["draft"] == 2 + 5, "four drafted tokens and one more in each step"


def test_the_cache_knows_no_rejected_token() -> None:
    model = Rememberer()
    e = engine(model, "draft", Alphabet())
    first = e.add_request(ids("abcdefgh"), SamplingParams(max_tokens=20), Letters)
    drain(e)
    assert e.statistics.rejected > 0
    plain = engine(Rememberer(), prefix_cache=False)
    for length in range(28, 8, -1):
        prompt = [*first.prompt, *first.choices[0].generated][:length]
        asked = [each.add_request(prompt, SamplingParams(max_tokens=3), Letters) for each in (e, plain)]
        drain(e)
        drain(plain)
        assert outcome(asked[0]) == outcome(asked[1])
        assert length < 28 or asked[0].cached == 27, "accepted tokens are found again, up to the last"


def test_no_more_is_drafted_than_the_answer_and_the_context_have_room_for() -> None:
    model = Alphabet()
    e = engine(model, "draft", Alphabet(), context=16)
    e.add_request(ids("abc"), SamplingParams(max_tokens=3), Letters)
    drain(e)
    assert model.processed == [3, 2], "the third token needs no draft behind it"
    model.processed.clear()
    request = e.add_request(ids("abcdefghijk"), SamplingParams(), Letters)
    drain(e)
    assert len(request.choices[0].sequence.tokens) == 16
    assert max(model.slots) < e.kv.count * BLOCK
    assert e.statistics.rejected == 0


def test_an_end_inside_of_a_draft_ends_the_answer() -> None:
    e = engine(Alphabet(), "draft", Alphabet(), end_ids=[6])
    request = e.add_request(ids("abc"), SamplingParams(max_tokens=20), Letters)
    assert drain(e) == {0: "def"}
    assert list(request.choices[0].generated) == ids("defg")
    assert request.finish_reason == "stop"


def decoding(text: str, id: int = 0) -> Sequence:
    """A sequence that has drawn its last token, the only one that is not computed."""
    sequence = Sequence.of_prompt(id, ids(text))
    sequence.prompt_length -= 1
    sequence.computed = len(text) - 1
    return sequence


def test_by_default_drafts_come_when_it_is_known_what_a_step_takes_and_not_beside_prompts() -> None:
    times = StepTimes()
    kv = BlockManager(20, BLOCK)
    speculation = Speculation("auto", kv, times, max_tokens=20, max_rows=8)
    answer, prompt = Chunk(decoding("abcabcab"), 1), Chunk(Sequence.of_prompt(1, ids("abcd")), 4)

    def extend(*chunks: Chunk) -> list[list[int]]:
        found = speculation.extend(list(chunks), [], lambda sequence: 9, lambda *given: 0)
        return [list(chunk.drafts) for chunk in found]

    assert kv.grow(answer.sequence, 8)
    assert extend(answer) == [[]]
    times.record(1, 0, 0.010)
    (drafted,) = extend(answer)
    assert drafted
    assert drafted == ids("cabcabca")[: len(drafted)]
    assert extend(answer, prompt) == [[], []]


def test_blocks_of_rejected_tokens_are_given_back() -> None:
    kv = BlockManager(20, BLOCK)
    speculation = Speculation("ngram", kv, StepTimes(), max_tokens=20, max_rows=8)
    answer = decoding("abcabcab")
    assert kv.grow(answer, 8)
    (chunk,) = speculation.extend([Chunk(answer, 1)], [], lambda sequence: 9, lambda *given: 0)
    assert list(chunk.drafts) == ids("cabc")
    assert len(answer.blocks) == 3
    kv.commit(answer, 8)
    assert speculation.settle(1, 0, 0.01) == (4, 0)
    assert len(answer.blocks) == 2


def test_a_draft_model_that_fails_is_left_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    e = engine(Alphabet(), "draft", Failing())
    e.add_request(ids("abc"), SamplingParams(max_tokens=5), Letters)
    assert drain(e) == {0: "defgh"}
    assert capsys.readouterr().err == "note: the draft model is not used any more: the draft model is broken\n"


def test_a_cancelled_step_with_drafts_leaves_everything_as_it_was() -> None:
    model = Alphabet()
    e = engine(model, "draft", Alphabet())
    staying = e.add_request(ids("abc"), SamplingParams(max_tokens=12), Letters)
    leaving = e.add_request(ids("mn"), SamplingParams(max_tokens=12), Letters)
    e.step()
    e.step()

    def abort() -> None:
        model.before_step = lambda: None
        e.abort(leaving.id)

    model.before_step = abort
    e.step()
    assert leaving.finish_reason == "cancelled"
    drain(e)
    assert "".join(chr(97 + token) for token in staying.choices[0].generated) == "defghijklmno"
