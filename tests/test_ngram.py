"""Prompt lookup against a search that looks everywhere."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from localinfer.engine.ngram import CANDIDATES, LONGEST, SHORTEST, NgramIndex


def index_of(text: str) -> NgramIndex:
    index = NgramIndex()
    index.extend(array("i", map(ord, text)))
    return index


def follow(text: str, most: int = 4) -> tuple[str, int]:
    tokens, length = index_of(text).follow(most)
    return "".join(map(chr, tokens)), length


def test_what_followed_last_time_is_expected_again() -> None:
    assert follow("the cat sat. the ca") == ("t sa", 6)
    assert follow("abXabYab", 3) == ("Yab", 2), "the latest of two"
    assert follow("abcdefg") == ("", 0)
    assert follow("") == ("", 0)
    assert follow("a") == ("", 0)


def test_the_longest_agreement_counts_before_the_latest() -> None:
    assert follow("xyabcd-1 .. zzcd-2 .. xyabcd-", 1) == ("1", 7)


def test_a_repetition_goes_on_repeating() -> None:
    assert follow("..abcabcab", 7) == ("cabcabc", 5)
    assert follow("ooo", 3) == ("ooo", 2)


def test_it_does_not_matter_how_the_tokens_came() -> None:
    text = array("i", map(ord, "the cat sat on the mat, the cat sat on th"))
    whole = NgramIndex()
    whole.extend(text)
    for size in (1, 3, 7):
        pieces = NgramIndex()
        for start in range(0, len(text), size):
            pieces.extend(text[start : start + size])
        assert len(pieces) == len(text)
        assert pieces.follow(5) == whole.follow(5)


@given(st.lists(st.integers(0, 3), max_size=CANDIDATES + 2), st.integers(1, 8))
def test_nothing_better_is_found_by_looking_everywhere(tokens: list[int], most: int) -> None:
    index = NgramIndex()
    index.extend(array("i", tokens))
    best = (0, -1)
    for place in range(1, len(tokens) - 1):
        agree = next((n for n in range(place + 1) if tokens[place - n] != tokens[len(tokens) - 1 - n]), place + 1)
        if SHORTEST <= min(agree, LONGEST) >= best[0]:
            best = (min(agree, LONGEST), place)
    found, length = index.follow(most)
    assert length == best[0]
    expected = list(tokens)
    if best[1] >= 0:
        for n in range(most):
            expected.append(expected[best[1] + 1 + n])
    assert list(found) == expected[len(tokens) :]


@given(st.lists(st.integers(0, 262143), min_size=2, max_size=300))
def test_a_text_that_was_repeated_goes_on(tokens: list[int]) -> None:
    """Whatever the tokens are, and whichever of them share a bucket."""
    index = NgramIndex()
    index.extend(array("i", 2 * tokens))
    found, length = index.follow(3)
    assert length >= min(LONGEST, len(tokens))
    places = range(length, 2 * len(tokens))
    there = [place for place in places if (2 * tokens)[place - length : place] == (2 * tokens)[-length:]]
    assert len(found) == 3
    assert found[0] in [(2 * tokens)[place] for place in there]
