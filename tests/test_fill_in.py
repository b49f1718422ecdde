"""Prompts for a gap between two texts: whose tokens they are made of, in which order, and what is cut off."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from localinfer.errors import UnsupportedError
from localinfer.text.fill_in import File, fill_in_prompt
from localinfer.text.tokenizer import Tokenizer, load_tokenizer
from vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, bpe, spm

LETTERS = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ"]


def vocabulary(marks: list[str], kind: int = CONTROL, **more: Any) -> Tokenizer:
    """One token per letter, and these marks."""
    return bpe([*LETTERS, *marks], [], [NORMAL] * len(LETTERS) + [kind] * len(marks), **more)


def written(tokenizer: Tokenizer, *arguments: Any, **options: Any) -> str:
    return tokenizer.decode(fill_in_prompt(tokenizer, *arguments, **options))


QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
REPOSITORY = [*QWEN, "<|repo_name|>", "<|file_sep|>"]
STARCODER = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (QWEN, "<|fim_prefix|>be<|fim_suffix|>af<|fim_middle|>"),
        (STARCODER, "<fim_prefix>be<fim_suffix>af<fim_middle>"),
        (["<fim-prefix>", "<fim-suffix>", "<fim-middle>"], "<fim-prefix>be<fim-suffix>af<fim-middle>"),
        (
            ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
            "<|code_prefix|>be<|code_suffix|>af<|code_middle|>",
        ),
        (["<PRE>", "<SUF>", "<MID>"], "<PRE>be<SUF>af<MID>"),
        (["[PREFIX]", "[SUFFIX]", "[MIDDLE]"], "[SUFFIX]af[PREFIX]be"),
        (["[PREFIX]", "[SUFFIX]"], "[SUFFIX]af[PREFIX]be"),
        (["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"], "<[fim-suffix]>af<[fim-prefix]>be<[fim-middle]>"),
    ],
)
def test_each_family_has_its_own_marks_and_order(marks: list[str], expected: str) -> None:
    assert written(vocabulary(marks), "be", "af") == expected


def test_deepseek_writes_its_marks_with_characters_of_its_own() -> None:
    marks = ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]
    tokenizer = vocabulary(marks)
    begin, hole, end = (tokenizer.token_id(mark) for mark in marks)
    ids = list(fill_in_prompt(tokenizer, "b", "a"))
    assert ids == [begin, tokenizer.token_id("b"), hole, tokenizer.token_id("a"), end]


def test_mellum_has_the_marks_of_starcoder_and_another_order() -> None:
    tokens = [*LETTERS, *STARCODER]
    metadata = {
        "general.name": "Mellum 4b Base",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [NORMAL] * len(LETTERS) + [CONTROL] * 3,
    }
    assert written(load_tokenizer(metadata), "be", "af") == "<fim_suffix>af<fim_prefix>be<fim_middle>"


@pytest.mark.parametrize("keys", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_the_file_says_which_tokens_they_are(keys: tuple[str, ...]) -> None:
    named = {f"{key}_token_id": len(LETTERS) + place for place, key in enumerate(keys)}
    assert written(vocabulary(["<1>", "<2>", "<3>", *QWEN], **named), "be", "af") == "<1>be<2>af<3>"


def test_what_a_person_writes_never_becomes_a_mark() -> None:
    """Though the file types these as text like any other, as some conversions of Qwen's models do."""
    tokenizer = vocabulary(QWEN, NORMAL)
    ids = list(fill_in_prompt(tokenizer, "<|fim_middle|>", "<|fim_prefix|>"))
    assert [ids.count(mark) for mark in tokenizer.fill_in.marks] == [1, 1, 1]  # type: ignore[union-attr]
    assert tokenizer.decode(ids) == "<|fim_prefix|><|fim_middle|><|fim_suffix|><|fim_prefix|><|fim_middle|>"


@pytest.mark.parametrize("marks", [[], QWEN[:2], QWEN[1:], ["[MIDDLE]"]])
def test_a_vocabulary_without_the_marks_is_an_error_in_words(marks: list[str]) -> None:
    with pytest.raises(UnsupportedError, match="cannot fill in a gap"):
        fill_in_prompt(vocabulary(marks), "be", "af")


def test_bos_stands_in_front_where_the_model_wants_it() -> None:
    tokenizer = vocabulary([*REPOSITORY, "<s>"], bos_token_id=len(LETTERS) + 5, add_bos_token=True)
    assert written(tokenizer, "b", "a").startswith("<s><|fim_prefix|>b")
    assert written(tokenizer, "b", "a", files=[File("x", "y")]).startswith(
        "<s><|repo_name|>myproject\n<|file_sep|>x\ny"
    )


def test_code_llama_sees_a_space_before_the_prefix_and_none_before_the_suffix() -> None:
    """As Meta's own code has it: the vocabulary's space in front is part of the prefix only."""
    marks = ["▁<PRE>", "▁<SUF>", "▁<MID>"]
    tokens = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    tokens += [*((char, -100.0, NORMAL) for char in "▁ab"), ("▁a", -1.0, NORMAL)]
    tokenizer = spm([*tokens, *((mark, 0.0, CONTROL) for mark in marks)], bos_token_id=1)
    wanted = ["<s>", marks[0], "▁a", "b", marks[1], "a", marks[2]]
    assert list(fill_in_prompt(tokenizer, "ab", "a")) == [tokenizer.token_id(text) for text in wanted]


FILES = [File("one.py", "1" * 40), File("two.py", "2" * 40)]


def test_other_files_of_the_project_come_first() -> None:
    expected = "<|repo_name|>myproject\n<|file_sep|>one.py\n{}<|file_sep|>two.py\n{}<|file_sep|>filename\n{}"
    gap = "<|fim_prefix|>be<|fim_suffix|>af<|fim_middle|>"
    assert written(vocabulary(REPOSITORY), "be", "af", files=FILES) == expected.format("1" * 40, "2" * 40, gap)
    assert written(vocabulary(REPOSITORY), "be", "af") == gap
    assert written(vocabulary(QWEN), "be", "af", files=FILES) == f"{'1' * 40}\n\n{'2' * 40}\n\n{gap}"


def test_what_is_furthest_from_the_gap_is_left_out() -> None:
    tokenizer = vocabulary(REPOSITORY)
    prefix, suffix = "0123456789", "abcdefghij"
    whole = fill_in_prompt(tokenizer, prefix, suffix, files=FILES)
    shown = [written(tokenizer, prefix, suffix, files=FILES, room=room) for room in range(len(whole) + 1)]
    for room, text in enumerate(shown):
        ids = fill_in_prompt(tokenizer, prefix, suffix, files=FILES, room=room)
        assert len(ids) <= max(3, room)
        assert text.endswith("<|fim_middle|>")
    for shorter, longer in pairwise(shown):
        assert shorter.count("2") <= longer.count("2")
        assert shorter.count("1") <= longer.count("1")
        assert "1111" not in shorter or "2" * 40 in shorter, "the first file is shown before the second is complete"
    assert shown[3] == "<|fim_prefix|><|fim_suffix|><|fim_middle|>"
    assert shown[11] == "<|fim_prefix|>456789<|fim_suffix|>ab<|fim_middle|>"  # three quarters before it
    assert written(tokenizer, prefix, "", room=11) == "<|fim_prefix|>23456789<|fim_suffix|><|fim_middle|>"
    assert written(tokenizer, "", suffix, room=11) == "<|fim_prefix|><|fim_suffix|>abcdefgh<|fim_middle|>"
    assert shown[-1] == tokenizer.decode(whole)
    assert "one.py" not in shown[-30]
    assert "two.py" in shown[-30]
