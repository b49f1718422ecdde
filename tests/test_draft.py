"""The draft model: what it computes, what it keeps, and which vocabularies go together."""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_models import VOCABULARY, Alphabet
from localinfer import LLM
from localinfer.cli.main import execute
from localinfer.engine.draft import CATCH_UP, DraftModel
from localinfer.engine.sampler import Sampler
from localinfer.engine.sequence import Sequence
from localinfer.engine.statistics import EngineStatistics
from localinfer.errors import LocalInferError
from localinfer.formats.metadata import Metadata
from localinfer.kernels.base import LoadConfig
from localinfer.kernels.host.encoder import NORMAL, UNUSED
from localinfer.kernels.host.strings import StringArray, scan_strings
from localinfer.text.vocabulary_difference import vocabulary_difference
from scripted_model import write_scripted_model
from tiny_models import by_name, write_gguf

BLOCK = 4


def greedy(sampler: Sampler, sequence: Sequence, shadow: Sequence, logits: int) -> int:
    row = (ctypes.c_float * VOCABULARY).from_address(logits)
    return max(range(VOCABULARY), key=lambda token: row[token])


def draft_model(model: Alphabet, *, max_tokens: int = 40, blocks: int = 40, sequences: int = 4) -> DraftModel:
    return DraftModel(model, LoadConfig(max_tokens, sequences, sequences, 64, blocks, block_size=BLOCK), VOCABULARY)


def sequence(text: str, id: int = 0) -> Sequence:
    return Sequence.of_prompt(id, [ord(letter) - ord("a") for letter in text])


def propose(draft: DraftModel, *wanted: tuple[Sequence, int], guess: Callable[..., int] = greedy) -> list[str]:
    drafts = draft.propose(wanted, guess)
    held = [shadow.sequence for shadow in draft._shadows.values()]
    used = {block for each in held for block in each.blocks}
    assert draft.kv.free == draft.kv.count - len(used)
    return ["".join(chr(ord("a") + token) for token in tokens) for tokens in drafts]


def accept(target: Sequence, text: str) -> None:
    target.tokens.extend(ord(letter) - ord("a") for letter in text)


def test_it_goes_on_from_the_target_s_tokens() -> None:
    model = Alphabet()
    draft = draft_model(model)
    assert propose(draft, (sequence("abc"), 3), (sequence("mn", 1), 1)) == ["def", "o"]
    assert model.processed == [5, 1, 1], "both in one step, then only what is still asked for"


def test_only_what_was_rejected_is_computed_again() -> None:
    model = Alphabet()
    draft, target = draft_model(model), sequence("abc")
    assert propose(draft, (target, 4)) == ["defg"]
    accept(target, "de")  # both accepted ...
    accept(target, "x")  # ... and then the target went on with another
    model.processed.clear()
    assert propose(draft, (target, 3)) == ["yza"]
    assert model.processed == [1, 1, 1]
    accept(target, "yzab")  # all accepted, and one more
    model.processed.clear()
    assert propose(draft, (target, 1)) == ["c"]
    assert model.processed == [2], "its own last draft was never computed"
    cache = {position: model.slots[block * BLOCK + position % BLOCK] for position, block in positions(draft, target)}
    assert [cache[position] for position in range(len(target.tokens))] == list(target.tokens)


def test_what_the_target_did_by_itself_meanwhile_is_computed_too() -> None:
    model = Alphabet()
    draft, target = draft_model(model), sequence("abc")
    assert propose(draft, (target, 4)) == ["defg"]
    accept(target, "xyz")
    model.processed.clear()
    assert propose(draft, (target, 1)) == ["a"]
    assert model.processed == [3]


def positions(draft: DraftModel, target: Sequence) -> list[tuple[int, int]]:
    shadow = draft._shadows[target].sequence
    return [(position, shadow.blocks[position // BLOCK]) for position in range(shadow.computed)]


def test_a_rejected_token_is_never_found_in_the_cache() -> None:
    model = Alphabet()
    draft, target = draft_model(model), sequence("abcdef")
    propose(draft, (target, 8))  # g ... n
    accept(target, "gx")
    propose(draft, (target, 1))
    draft.keep([])
    assert not draft._shadows
    assert draft.kv.free == draft.kv.count
    again = sequence("abcdefghijkl")
    model.processed.clear()
    propose(draft, (again, 1))
    assert model.processed == [5], "of abcdefgx seven are kept, and not the rejected h"


def test_it_catches_up_in_pieces_beside_others_and_then_drafts() -> None:
    model = Alphabet()
    draft = draft_model(model, max_tokens=60, blocks=40)
    long, short = sequence("abcdefghij" * 5), sequence("a", 1)
    assert propose(draft, (short, 1), (long, 2)) == ["b", ""]
    assert model.processed == [CATCH_UP]
    assert draft.catching_up
    accept(short, "b")
    assert propose(draft, (short, 1), (long, 2)) == ["c", "kl"]
    assert propose(draft, (short, 1), (long, 2)) == ["c", "kl"]
    assert not draft.catching_up


def test_without_room_nothing_is_drafted_and_nothing_is_lost() -> None:
    draft = draft_model(Alphabet(), max_tokens=64, blocks=16)
    first, second = sequence("abcd" * 15), sequence("efgh" * 5, 1)
    assert propose(draft, (first, 2)) == ["ef"]
    assert propose(draft, (second, 2)) == [""]
    draft.keep([second])
    assert propose(draft, (second, 2)) == ["ij"]


def test_logits_that_nothing_can_be_drawn_from_draft_nothing() -> None:
    def broken(*given: Any) -> int:
        raise LocalInferError("the logits contain NaN")

    draft, target = draft_model(Alphabet()), sequence("abc")
    assert propose(draft, (target, 3), guess=broken) == [""]
    assert propose(draft, (target, 3)) == ["def"]


# ---- vocabularies --------------------------------------------------------------------------------------------------


def strings(*texts: str, gap: bytes = b"") -> StringArray:
    data = b"".join(len(text.encode()).to_bytes(8, "little") + text.encode() for text in texts)
    return scan_strings(memoryview(gap + data), len(gap), len(texts))[0]


def metadata(*texts: str, unused: int = 0) -> Metadata:
    kinds = [NORMAL] * (len(texts) - unused) + [UNUSED] * unused
    values = {"tokenizer.ggml.tokens": strings(*texts), "tokenizer.ggml.token_type": array("i", kinds)}
    return Metadata(values, "a file")  # type: ignore[arg-type]


def test_the_first_difference_of_two_arrays_of_strings() -> None:
    assert strings("a", "bc", "").first_difference(strings("a", "bc", "", gap=b"12345")) is None
    assert strings("a", "bc", "d").first_difference(strings("a", "bd", "x")) == 1
    assert strings("a", "b", "ccc").first_difference(strings("a", "bb", "cc")) == 1
    assert strings("a").first_difference(strings("a", "b")) == 1
    assert strings().first_difference(strings()) is None


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (metadata("a", "b"), metadata("a", "b"), ""),
        (metadata("a", "b"), metadata("a", "c"), "token 1 is 'b' in one and 'c' in the other"),
        (metadata("a", "b"), metadata("a", "b", "c"), "one has 2 tokens, the other 3"),
        (metadata("a", "b"), metadata("a", "b", "<pad0>", "<pad1>", unused=2), ""),
        (metadata("a", "b", "<pad0>", unused=1), metadata("a", "b"), ""),
        (metadata("a", "b"), metadata("a", "b", "c", "<pad0>", unused=1), "one has 2 tokens, the other 4"),
    ],
)
def test_vocabularies_may_differ_in_padding_only(one: Metadata, other: Metadata, words: str) -> None:
    assert vocabulary_difference(one, other) == words


# ---- as a user has it ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(by_name("llama"), tmp_path_factory.mktemp("draft") / "target.gguf")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(by_name("llama-tied"), tmp_path_factory.mktemp("draft") / "other.gguf")


def answer(path: Path, temperature: float = 0.0, **options: Any) -> tuple[tuple[int, ...], EngineStatistics]:
    with LLM(path, context=96, **options) as llm:
        completion = llm.generate("one two one two", max_tokens=40, temperature=temperature, seed=7)
        return completion.tokens, llm.engine.statistics


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_the_same_with_any_draft_model(target: Path, other: Path, temperature: float) -> None:
    expected, _ = answer(target, temperature, speculation="off")
    itself, perfect = answer(target, temperature, speculation="draft", draft=target)
    another, poor = answer(target, temperature, speculation="draft", draft=str(other))
    assert itself == another == expected
    assert perfect.accepted == perfect.drafted >= 20, "its draws are those of the target, sampled or not"
    assert poor.rejected > 0


def test_a_draft_model_of_another_vocabulary_is_refused(target: Path, tmp_path: Path) -> None:
    stranger = write_scripted_model(tmp_path / "stranger.gguf")
    with pytest.raises(LocalInferError, match=r"stranger.gguf cannot draft for .*: token 2 is '</s>' in one") as caught:
        LLM(target, draft=stranger)
    assert "same family" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speculation": "fast"}, "speculation is 'fast'"),
        ({"speculation": "draft"}, 'speculation is "draft", but there is no draft model'),
        ({"speculation": "off", "draft": "itself"}, 'speculation is "off", which does not use it'),
        ({"speculation": "ngram", "draft": "itself"}, 'speculation is "ngram", which does not use it'),
        ({"draft": 5}, "draft is 5"),
        ({"draft": "no-such-model"}, "no-such-model"),
    ],
)
def test_what_makes_no_sense_is_refused(target: Path, options: dict[str, Any], words: str) -> None:
    options = {name: target if value == "itself" else value for name, value in options.items()}
    with pytest.raises(LocalInferError, match=words):
        LLM(target, **options)


def test_the_files_of_both_models_are_closed(target: Path, other: Path) -> None:
    LLM(target, draft=other).close()  # once uncounted: libraries may open files of their own
    before = open_files()
    for _ in range(3):
        LLM(target, draft=other).close()
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_the_command_line_takes_a_draft_model(
    target: Path, other: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    texts = []
    for options in (
        ["--speculation", "off"],
        ["--draft", str(other)],
        ["--draft", str(target), "--speculation", "draft"],
    ):
        assert execute(["run", "--raw", str(target), "one two", "--max-tokens", "9", "--context", "64", *options]) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1
    assert execute(["run", "--raw", str(target), "one", "--speculation", "off", "--draft", str(other)]) == 1
    assert "does not use it" in capsys.readouterr().err
    assert execute(["bench", str(target), "--draft", str(other)]) == 2
