"""DRY's sequence breakers: which tokens spell them."""

from __future__ import annotations

import pytest

from localinfer.kernels.host.sampler import Breakers
from localinfer.text.sequence_breakers import REMEMBERED, SequenceBreakers
from localinfer.text.tokenizer import Tokenizer
from vocabularies import BYTE, CONTROL, NAMES, NORMAL, UNKNOWN, bpe, published, spm

DEFAULTS = ("\n", ":", '"', "*")
TALK = "Anna: I know.\nBen: So do I.\nAnna: I know that you do"


def sequences(found: Breakers) -> list[tuple[int, ...]]:
    """Whole sequences of tokens."""
    numbers = iter(found.pairs)
    result = []
    for token, begin in zip(numbers, numbers, strict=True):
        assert found.first[token // 32] >> token % 32 & 1
        result.append((token, *found.tails[begin + 1 : begin + 1 + found.tails[begin]]))
    assert sum(word.bit_count() for word in found.first) == len({each[0] for each in result})
    return result


def spelled(tokenizer: Tokenizer, *texts: str, vocab_size: int = 0) -> set[tuple[str, ...]]:
    found = SequenceBreakers(tokenizer, vocab_size or tokenizer.vocab_size).find(texts)
    return {tuple(tokenizer.token_bytes(token).decode() for token in each) for each in sequences(found)}


def test_tokens_that_hold_a_text_or_end_with_its_beginning() -> None:
    tokenizer = bpe(["a", "b", "c", "ab", "bc", "xa", "xab", "abx", "abcx", "x"], ["a b", "b c"])
    assert spelled(tokenizer, "ab") == {("ab",), ("xab",), ("abx",), ("abcx",), ("a", "b"), ("xa", "b")}
    assert spelled(tokenizer, "abc") == {("abcx",), ("ab", "c"), ("xab", "c"), ("a", "bc"), ("xa", "bc")}
    assert spelled(tokenizer, "x", "c") == {(t,) for t in ("xa", "xab", "abx", "abcx", "x", "c", "bc")}
    assert spelled(tokenizer, "aa") == {("a", "a"), ("xa", "a")}
    assert spelled(tokenizer, "é") == set(), "the vocabulary has no tokens for it"
    assert spelled(tokenizer, "ab", vocab_size=6) == {("ab",), ("a", "b"), ("xa", "b")}


def test_names_of_control_tokens_and_characters_in_bytes() -> None:
    special = [("<unk>", 0.0, UNKNOWN), ("<|end|>", 0.0, CONTROL)]
    bytes_of_it = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    tokenizer = spm([*special, *bytes_of_it, ("▁", -1.0, NORMAL), ("o", -1.0, NORMAL), ("▁o", -0.5, NORMAL)])
    found = sequences(SequenceBreakers(tokenizer, tokenizer.vocab_size).find(("<|end|>",)))
    assert (1,) in found
    assert len(next(each for each in found if len(each) > 1)) == len("<|end|>")
    assert sequences(SequenceBreakers(tokenizer, tokenizer.vocab_size).find(("é",))) == [(2 + 0xC3, 2 + 0xA9)]
    # What follows a beginning in a text has no space in front, though the vocabulary puts one in front of texts.
    colon = 2 + ord(":")
    assert (colon, tokenizer.token_id("o")) in sequences(
        SequenceBreakers(tokenizer, tokenizer.vocab_size).find((":o",))
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bert-bge"])
def test_published_vocabularies(name: str) -> None:
    tokenizer = published(name)
    breakers = SequenceBreakers(tokenizer, tokenizer.vocab_size)
    alone = {each[0] for each in sequences(breakers.find(DEFAULTS))}
    for token in range(0, tokenizer.vocab_size, 7):
        holds = any(text.encode() in tokenizer.token_bytes(token) for text in DEFAULTS)
        assert (token in alone) == holds
    # The last turn begins with a breaker, wherever its tokens begin and end.
    tokens = tuple(tokenizer.encode(TALK, add_special=False, parse_special=False))
    found = sequences(breakers.find(("\nAnna:",)))
    places = [
        (begin, begin + len(each))
        for each in found
        for begin in range(len(tokens))
        if tokens[begin : begin + len(each)] == each
    ]
    assert places, f"it is not found in {[tokenizer.token_bytes(token) for token in tokens]}"
    texts = {b"".join(map(tokenizer.token_bytes, tokens[begin:end])).decode() for begin, end in places}
    assert any("\nAnna:" in text for text in texts)
    assert b"".join(map(tokenizer.token_bytes, tokens[max(places)[1] :])).decode() == " I know that you do"


def test_what_was_found_is_remembered() -> None:
    tokenizer = bpe(["a", "b"], [])
    breakers = SequenceBreakers(tokenizer, 2)
    first = breakers.find(("a",))
    assert breakers.find(("a",)) is first
    for number in range(REMEMBERED - 1):
        breakers.find(("b",) * (number + 1))
    assert breakers.find(("a",)) is first
    for number in range(REMEMBERED):
        breakers.find(("b",) * (number + 1))
    assert breakers.find(("a",)) is not first
    assert sequences(breakers.find(())) == []
