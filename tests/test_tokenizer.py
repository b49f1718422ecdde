"""Tokenizers against published vocabularies, and their rules on small vocabularies that can be read."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.text.chat_template import encode_chat
from localinfer.text.tokenizer import Tokenizer, load_tokenizer, pack_strings
from vocabularies import (
    BYTE,
    CONTROL,
    NAMES,
    NORMAL,
    SPM_TOKENS,
    UNKNOWN,
    USER_DEFINED,
    bpe,
    published,
    spm,
    vocabulary_file,
    words,
)


@pytest.mark.parametrize("name", NAMES)
def test_published_vectors_are_exact(name: str) -> None:
    path = vocabulary_file(name)
    tokenizer = published(name)
    inputs = path.with_name(path.name + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [
        [int(word) for word in line.split()] for line in path.with_name(path.name + ".out").read_text().splitlines()
    ]
    assert len(expected) >= 46
    for text, ids in zip(inputs, expected, strict=False):
        assert list(tokenizer.encode(text, add_special=False, parse_special=False)) == ids, repr(text)


# BERT drops much on purpose; Falcon's vocabulary lacks some bytes.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("bert-bge", "falcon")])
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_encoding_loses_nothing(name: str, text: str) -> None:
    tokenizer = published(name)
    # Texts that spell out a token with a type of its own come back as that token is written: the same.
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


def test_the_earliest_merge_goes_first_and_the_leftmost_among_equals() -> None:
    tokenizer = bpe([*"abc", "ab", "bc", "abc", "aa"], ["b c", "a b", "a bc", "a a"])
    assert words(tokenizer, "abc") == ["abc"]
    assert words(tokenizer, "ab") == ["ab"]
    assert words(tokenizer, "aaa") == ["aa", "a"]


def test_a_word_that_is_a_token_stays_whole_only_where_the_vocabulary_says_so() -> None:
    tokens, merges = [*"abc", "abc", "ab"], ["a b"]
    assert words(bpe(tokens, merges), "abc") == ["ab", "c"]
    assert words(bpe(tokens, merges, pre="llama-bpe", bos_token_id=0), "abc") == ["abc"]


def test_sentence_pieces_merge_by_score_and_fall_back_to_bytes() -> None:
    tokenizer = spm(SPM_TOKENS)
    assert words(tokenizer, "abb") == [" a", "bb"]
    ids = tokenizer.encode("aé", add_special=True, parse_special=False)
    assert ids.tolist() == [1, tokenizer.token_id("▁a"), 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(ids, skip_special=True) == "aé"


def test_the_space_in_front_comes_and_goes() -> None:
    assert spm(SPM_TOKENS).decode(spm(SPM_TOKENS).encode(" a", add_special=False, parse_special=False)) == " a"
    without = spm(SPM_TOKENS, add_space_prefix=False)
    assert words(without, "a") == ["a"]
    assert without.decode(without.encode(" a", add_special=False, parse_special=False)) == " a"
    tokenizer = spm(SPM_TOKENS)
    token = tokenizer.token_id("▁a")
    assert token is not None
    assert tokenizer.decode([token]) == "a"
    assert tokenizer.decode([token], strip_prefix=False) == " a"


def test_control_tokens_are_parsed_only_where_asked() -> None:
    tokenizer = spm(SPM_TOKENS)
    assert words(tokenizer, "a<s>", parse_special=True) == [" a", "<s>"]
    assert words(tokenizer, "a<s>") == [" a", "<s", ">"]
    assert tokenizer.encode("<s>", add_special=False, parse_special=False).count(1) == 0
    parts = [("<s>a", True), ("<s>", False), ("b<s>", True)]
    joined = [tokenizer.token_bytes(i) for i in tokenizer.encode_parts(parts, add_special=False)]
    assert joined == [b"<s>", b" a", b"<s", b">", b"b", b"<s>"]


def test_user_defined_tokens_are_always_found_and_the_longest_wins() -> None:
    tokens = [*"ab<>", "<a>", "<a>b", "<b>"]
    types = [*[NORMAL] * 4, USER_DEFINED, USER_DEFINED, CONTROL]
    tokenizer = bpe(tokens, ["a b"], types)
    assert words(tokenizer, "a<a>b<a><b>") == ["a", "<a>b", "<a>", "<", "b", ">"]
    assert words(tokenizer, "<b>", parse_special=True) == ["<b>"]


def test_no_part_of_a_special_token_may_come_from_content() -> None:
    tokenizer = bpe([*"<|x>", "<|x|>"], [], [*[NORMAL] * 4, CONTROL])
    for parts in ([("<|", True), ("x|>", False)], [("<|x", False), ("|>", True)], [("<|x|>", False)]):
        assert len(tokenizer.encode_parts(parts, add_special=False)) == 5
    assert len(tokenizer.encode_parts([("<|", True), ("x|>", True)], add_special=False)) == 1
    assert len(tokenizer.encode_parts([("<|", True), ("", False), ("x|>", True)], add_special=False)) == 5


def test_bos_is_never_doubled_in_a_chat() -> None:
    tokenizer = spm(SPM_TOKENS)
    for parts in ([("<s>", True), ("a", False)], [("a", False)]):
        assert encode_chat(tokenizer, parts).tolist() == [1, tokenizer.token_id("▁a")]


def test_bos_and_eos_follow_the_flags() -> None:
    tokenizer = spm(SPM_TOKENS, add_eos_token=True, add_bos_token=False)
    assert tokenizer.encode("", add_special=True, parse_special=False).tolist() == [2]
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, True)
    assert spm(SPM_TOKENS).encode("", add_special=True, parse_special=False).tolist() == [1]


def test_what_ends_an_answer() -> None:
    tokens = ["a", "<|im_end|>", "<|endoftext|>", "</s>", "<|end|>", "[x]"]
    types = [NORMAL, CONTROL, USER_DEFINED, NORMAL, CONTROL, NORMAL]
    tokenizer = bpe(tokens, [], types, eos_token_id=5)
    # "</s>" is plain text here: the file types its tokens, and this one as normal.
    assert tokenizer.stop_ids == {1, 2, 4, 5}
    assert tokenizer.is_special(1)
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(3)
    harmony = ["<|end|>", "<|return|>", "<|call|>"]
    assert bpe(harmony, [], [CONTROL] * 3, eos_token_id=1).stop_ids == {1, 2}
    assert published("qwen2").stop_ids == {151643, 151645}
    assert published("llama-bpe").stop_ids == {128001, 128009}


def test_whitespace_around_special_tokens_goes_where_a_family_wants_it() -> None:
    tokens = [*SPM_TOKENS, ("<|end|>", 0.0, CONTROL)]
    metadata = {"tokenizer.ggml.model": "llama", "general.name": "Phi-3 mini"}
    texts, scores, types = zip(*tokens, strict=True)
    metadata |= {"tokenizer.ggml.tokens": list(texts), "tokenizer.ggml.scores": list(scores)}
    metadata |= {"tokenizer.ggml.token_type": list(types)}
    assert words(load_tokenizer(metadata), "<|end|>\n \ta<s> a", parse_special=True) == [
        *("<|end|>", " a", "<s>", " ", " a")
    ]


def test_word_pieces() -> None:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁über", "▁uber", "▁!", "▁中", "▁ᄀ", "ᅡ"]
    types = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 9]
    ids = {"unknown_token_id": 0, "bos_token_id": 1, "seperator_token_id": 2}

    def load(**more: Any) -> Tokenizer:
        keys = {"model": "bert", "tokens": tokens, "token_type": types, **ids, **more}
        return load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in keys.items()})

    tokenizer = load()
    assert tokenizer.encode("UNaffable  Über!中가x", add_special=True, parse_special=False).tolist() == [
        *(1, 3, 4, 5, 7, 8, 9, 0, 2)
    ]
    assert words(tokenizer, "가") == [" ᄀ", "ᅡ"]
    cased = {"normalizer.lowercase": False, "normalizer.strip_accents": False}
    assert load(**cased).encode("über Un", add_special=False, parse_special=False).tolist() == [6, 0]
    assert load().encode("aff" * 34, add_special=False, parse_special=False).tolist() == [0]


def test_rwkv_takes_the_longest_token() -> None:
    tokens = ["<s>", "a", "ab", "abc", "c", "\\n", "\\x00", "\\\\"]
    keys = {"model": "rwkv", "tokens": tokens, "token_type": [CONTROL, *[NORMAL] * 7]}
    tokenizer = load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    ids = tokenizer.encode("abcab\n\0c\\", add_special=True, parse_special=False)
    assert ids.tolist() == [3, 2, 5, 6, 4, 7]
    assert tokenizer.decode(ids) == "abcab\n\0c\\"


def test_plamo2_takes_the_cheapest_cut() -> None:
    tokens = [*((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)), ("a", -3.0, NORMAL), ("b", -3.0, NORMAL)]
    tokens += [("ab", -5.0, NORMAL), ("ba", -2.0, NORMAL), ("abab", -9.0, NORMAL)]
    texts, scores, types = zip(*tokens, strict=True)
    keys = {"model": "plamo2", "tokens": list(texts), "scores": list(scores), "token_type": list(types)}
    tokenizer = load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    assert words(tokenizer, "abab") == ["a", "ba", "b"]  # 8 beats 9 and 10
    assert tokenizer.decode(tokenizer.encode("aü🦙", add_special=False, parse_special=False)) == "aü🦙"


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "llama-spm", "deepseek-llm", "bert-bge"])
@pytest.mark.parametrize("run", ["a", " ", "\n", "1", "<", "é", "a b"])
def test_long_runs_take_linear_time(name: str, run: str) -> None:
    tokenizer = published(name)

    def seconds(count: int) -> float:
        start = time.thread_time()
        tokenizer.encode(run * count, add_special=False, parse_special=True)
        return time.thread_time() - start

    seconds(1000)
    assert seconds(80_000) < 0.5 + 40 * seconds(8_000)  # quadratic would be 100 times


def test_a_megabyte() -> None:
    tokenizer = published("llama-spm")
    for run in ("a", " "):
        text = run * 1_000_000
        assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


def test_text_that_is_no_unicode_becomes_replacement_characters() -> None:
    tokenizer = published("gpt-2")
    for raw in (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x92"):
        ids = tokenizer.encode(raw, add_special=False, parse_special=False)
        assert tokenizer.decode(ids) == raw.decode("utf-8", "replace")
    assert tokenizer.decode(tokenizer.encode("\ud83e\udd99\ud800", add_special=False, parse_special=False)) == "🦙�"


def test_text_without_tokens_is_an_error_that_names_it() -> None:
    with pytest.raises(LocalInferError, match="no token for 'z'"):
        bpe(["a"], [], pre="gemma4", bos_token_id=0).encode("az", add_special=False, parse_special=False)
    with pytest.raises(LocalInferError, match=r"no token for '\\x19'"):
        published("falcon").encode("a\x19", add_special=False, parse_special=False)
    with pytest.raises(LocalInferError, match="outside the vocabulary of 1 tokens"):
        bpe(["a"], []).decode([1])


def bad_metadata() -> Iterator[tuple[dict[str, Any], type[LocalInferError], str]]:
    good: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "merges": ["a b"]}
    yield {}, FormatError, "tokenizer.ggml.model"
    yield {**good, "model": "new"}, UnsupportedError, "'new'"
    yield {**good, "pre": "brand-new"}, UnsupportedError, "'brand-new'"
    yield {**good, "tokens": 3}, FormatError, "tokenizer.ggml.tokens"
    yield {**good, "merges": [1, 2]}, FormatError, "tokenizer.ggml.merges"
    yield {**good, "token_type": [1]}, FormatError, "array of 2 numbers"
    yield {**good, "token_type": [1.0, 1.0]}, FormatError, "array of 2 numbers"
    yield {**good, "token_type": [1, 2**40]}, FormatError, "out of range"
    yield {**good, "add_bos_token": True}, FormatError, "bos_token_id"
    yield {**good, "bos_token_id": "one"}, FormatError, "bos_token_id"
    yield {**good, "model": "plamo2"}, FormatError, "bytes"
    yield {**good, "model": "t5", "eos_token_id": 0, "precompiled_charsmap": [1.0]}, FormatError, "charsmap"


@pytest.mark.parametrize(("keys", "error", "expected"), list(bad_metadata()), ids=lambda value: str(value)[:40])
def test_bad_metadata_is_named(keys: dict[str, Any], error: type[LocalInferError], expected: str) -> None:
    with pytest.raises(error, match=expected):
        load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in keys.items()})


@pytest.mark.parametrize(
    "blob", [b"\0", b"\xff\0\0\0", b"\4\0\0\0\0\1", b"\x08\0\0\0" + b"\x61\x05\x80\x80" * 2 + b"x"]
)
def test_damaged_normalization_rules(blob: bytes) -> None:
    keys = {"model": "t5", "tokens": ["</s>", "a"], "scores": [0.0, -1.0], "eos_token_id": 0, "unknown_token_id": 0}
    metadata: dict[str, Any] = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    metadata["tokenizer.ggml.precompiled_charsmap"] = array("B", blob)
    try:
        load_tokenizer(metadata).encode("abc a", add_special=True, parse_special=False)
    except FormatError as error:
        assert "normaliz" in str(error)  # noqa: PT017 (harmless damage is no error)


def test_a_missing_splitting_rule_is_announced() -> None:
    tokenizer = bpe(["a"], [], pre="")
    assert "tokenizer.ggml.pre" in tokenizer.notes[0]
    assert bpe(["a"], [], eos_token_id=7).eos_id is None
    assert "7" in bpe(["a"], [], eos_token_id=7).notes[0]


def test_strings_in_one_buffer() -> None:
    strings = pack_strings(["a", b"\xff", "", "é"])
    assert [strings.raw(i) for i in range(4)] == [b"a", b"\xff", b"", "é".encode()]


def test_vocabularies_that_make_no_sense_do_no_harm() -> None:
    random = Random(5)

    def noise(size: int) -> bytes:
        return bytes(random.choice(b"\0 ab<>\\x\xc3\xa9\xe2\x96\x81\xf0\xff") for _ in range(random.randrange(size)))

    for _ in range(300):
        model = random.choice(["gpt2", "gemma4", "llama", "bert", "t5", "rwkv", "plamo2", "whitespace"])
        tokens = [noise(9) for _ in range(random.randrange(40))]
        tokens += [b"<0x%02X>" % byte for byte in range(256)] if model == "plamo2" else []
        keys: dict[str, Any] = {
            "model": model,
            "pre": random.choice(["gpt-2", "llama-bpe", "deepseek-llm", "exaone-moe", "tiny_aya", "kimi-k2"]),
            "tokens": pack_strings(tokens),
            "merges": pack_strings([noise(9) for _ in range(40)]),
            "token_type": array("i", [random.choice([-1, 0, 1, 1, 2, 3, 4, 5, 6, 99]) for _ in tokens]),
            "scores": array("f", [random.choice([0, -1, -2, float("nan"), float("inf"), 1e38]) for _ in tokens]),
            "unknown_token_id": 0,
            "eos_token_id": random.randrange(60),
            "precompiled_charsmap": array("B", b"\x40\0\0\0" + random.randbytes(100)),
        }
        with suppress(LocalInferError):
            tokenizer = load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
            for _ in range(3):
                text = b"".join([*random.choices([b"a", *tokens], k=6), noise(12)])
                ids = tokenizer.encode(text, add_special=False, parse_special=True)
                assert all(0 <= token < tokenizer.vocab_size for token in ids)
                tokenizer.decode(ids)
                tokenizer.decode(range(tokenizer.vocab_size))
