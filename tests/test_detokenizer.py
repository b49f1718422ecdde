"""Text from tokens as they come: what the pieces add up to, and what each of them may hold."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.text.detokenizer import Detokenizer
from localinfer.text.tokenizer import Tokenizer
from vocabularies import NORMAL, SPM_TOKENS, bpe, published, spm


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = tokenizer.detokenizer(**options)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@given(tokens=st.lists(st.binary(max_size=4), max_size=12))
@settings(max_examples=300, deadline=None)
def test_pieces_are_what_the_whole_bytes_decode_to(tokens: list[bytes]) -> None:
    detokenizer = Detokenizer(tokens.__getitem__)
    pieces = [detokenizer.push(index) for index in range(len(tokens))]
    assert "".join([*pieces, detokenizer.finish()]) == b"".join(tokens).decode("utf-8", "replace")


@cache
def byte_pieces() -> Tokenizer:
    return spm(SPM_TOKENS)


@given(
    ids=st.lists(
        st.one_of(st.integers(0, len(SPM_TOKENS) - 1), st.sampled_from([265, 259, 3 + 0xE2, 3 + 0x82, 3 + 0xAC]))
    ),
    skip_special=st.booleans(),
    strip_prefix=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_stream_is_the_whole(ids: list[int], skip_special: bool, strip_prefix: bool) -> None:
    options = {"skip_special": skip_special, "strip_prefix": strip_prefix}
    assert "".join(stream(byte_pieces(), ids, **options)) == byte_pieces().decode(ids, **options)


def test_a_character_appears_with_its_last_byte() -> None:
    ids = [3 + byte for byte in "€".encode()]
    assert stream(byte_pieces(), ids) == ["", "", "€", ""]
    assert stream(byte_pieces(), ids[:2]) == ["", "", "�"]
    assert stream(byte_pieces(), [ids[0], 3 + ord("a")]) == ["", "�a", ""]


def test_only_the_first_space_of_a_text_belongs_to_the_encoding() -> None:
    space_a = byte_pieces().token_id("▁a")
    assert space_a is not None
    assert stream(byte_pieces(), [space_a, space_a]) == ["a", " a", ""]
    assert stream(byte_pieces(), [1, space_a], skip_special=True) == ["", "a", ""]
    assert stream(byte_pieces(), [1, space_a]) == ["<s>", " a", ""]
    assert stream(byte_pieces(), [space_a], strip_prefix=False) == [" a", ""]


def test_byte_level_tokens_stand_for_their_bytes() -> None:
    tokenizer = bpe(["Ġ", "Ċ", "Ã", "©", "a", "日"], [], [NORMAL] * 6)
    assert tokenizer.decode([0, 1, 2, 3, 4]) == " \né" + "a"
    assert stream(tokenizer, [2, 3]) == ["", "é", ""]
    assert tokenizer.decode([5]) == "日"  # no character for a byte: it means itself


def test_real_text_streams_back() -> None:
    tokenizer = published("llama-bpe")
    text = "Grüße 🦙👍🏽 日本語\n\tx  y"
    ids = list(tokenizer.encode(text, add_special=False, parse_special=False))
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    assert pieces[-1] == ""
