"""The native pattern matcher against the `regex` package: same rules, same text, same words."""

from __future__ import annotations

import time
import unicodedata
from functools import cache

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localinfer.kernels.host.encoder import split_text
from localinfer.text.pretokenizers import PRETOKENIZERS

RULES = sorted({row.rules for row in PRETOKENIZERS.values()})

POOLS = (
    *(
        "abcxyzABCXYZ",
        "sStTrReEvVmMlLdD'",
        "0123456789",
        " \t\r\n\u00a0\u3000\u2028\u0085",
        "'\"!?.,;:/\\()[]{}<>|@#$%&_",
    ),
    *("^`~+=*", "éüßÀÉøǅſK", "日本語中文々〇", "ひカｶ", "한국ᄀㄱ", "абДЕ", "ابج٠١", "नमस्ते", "ไทย", "🦙👍🏽‍♂️", "²½Ⅷ"),
    *("ʰᵃ", "̀⃝", "€©→∞", "\u200b\u0000\u0019", "‘—：；！（），。、"),
)


def is_settled(char: str) -> bool:
    """Whether all versions of Unicode in play agree about a character."""
    return unicodedata.category(char) not in ("Cn", "Cs") and char not in "\u0295\U0001171e"


@cache
def settled_characters() -> str:
    return "".join(char for char in map(chr, range(0x110000)) if is_settled(char))


TEXTS = st.lists(
    st.one_of(
        *(st.text(pool, min_size=1, max_size=5) for pool in POOLS),
        st.sampled_from(
            ["  ", "\n\n", " the", "I'm", "we'LL", "1234567", "12345 678abc", "<sentinel:12>", "IMGIMGABZ"]
        ),
        st.characters(exclude_categories=("Cs", "Cn")).filter(is_settled),
    ),
    max_size=14,
).map("".join)


def reference(rules: tuple[str, ...], text: str) -> list[str]:
    pieces = [text] if text else []
    for rule in rules:
        pieces = [part for piece in pieces for part in cut(rule, piece)]
    return pieces


def cut(rule: str, text: str) -> list[str]:
    # The matcher's own rule for groups of three digits, as the pattern that tokenizer files have for it.
    if rule.startswith("thousands"):
        digit = rule.partition(":")[2]
        end = r"\b" if rule.startswith("thousands,word") else rf"(?!{digit})"
        rule = rf"{digit}{{1,3}}(?=(?:{digit}{{3}})*{end})"
    parts, done = [], 0
    for match in regex.finditer(rule, text, regex.VERSION1):
        parts += [text[done : match.start()], match[0]]
        done = match.end()
    return [part for part in [*parts, text[done:]] if part]


@pytest.mark.parametrize(
    "rules", RULES, ids=lambda rules: next(n for n, r in PRETOKENIZERS.items() if r.rules == rules)
)
@given(text=TEXTS)
@example(text="٠²")
@settings(max_examples=30, deadline=None)
def test_words_are_those_of_the_regex_package(rules: tuple[str, ...], text: str) -> None:
    assert [word.decode() for word in split_text(rules, text.encode())] == reference(rules, text)


@pytest.mark.parametrize("category", ["L", "M", "N", "P", "S", "Lu", "Ll", "Lt", "Lm", "Lo"])
def test_classes_of_characters(category: str) -> None:
    settled = settled_characters()
    ours = [word.decode() for word in split_text((rf"\p{{{category}}}+",), settled.encode())]
    assert ours == cut(rf"\p{{{category}}}+", settled)


def test_whitespace_and_han() -> None:
    settled = settled_characters()
    for rule in (r"\s+", r"\S+", r"\d+", r"\p{Han}+"):
        assert [word.decode() for word in split_text((rule,), settled.encode())] == cut(rule, settled), rule


@pytest.mark.parametrize(
    ("rule", "text", "words"),
    [
        ("a|ab", "ab", ["a", "b"]),
        ("(?:ab|a)(?:bc)?", "abc", ["ab", "c"]),
        ("(?:a(?:b c*)*)+", "ab ccab a", ["ab ccab a"]),
        ("a{2}", "aaaaa", ["aa", "aa", "a"]),
        ("a{1,2}b", "aaab", ["a", "aab"]),
        ("[^a-c]+", "abxyc", ["ab", "xy", "c"]),
        ("[a-z&&[^m]]+", "amb", ["a", "m", "b"]),
        (r"[\]\-\\]+", "a]-\\b", ["a", "]-\\", "b"]),
        ("a(?=b)", "abaa", ["a", "baa"]),
        ("a(?!b)", "abaa", ["ab", "a", "a"]),
        ("x*y", "xxyx", ["xxy", "x"]),
        (r"\s+$", "a  b  ", ["a  b", "  "]),
        ("thousands:[0-9]", "a1234567", ["a", "1", "234", "567"]),
        (r"thousands,word:\d", "1234a 1234", ["1234a ", "1", "234"]),
    ],
)
def test_the_pattern_language(rule: str, text: str, words: list[str]) -> None:
    assert [word.decode() for word in split_text((rule,), text.encode())] == words
    assert cut(rule, text) == words


@pytest.mark.parametrize("rule", ["(a", "a)", "[a", "[]", r"\p{Greek}", "a{2", "(?=a", "\\"])
def test_rules_outside_the_language_are_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        split_text((rule,), b"a")


@pytest.mark.parametrize("text", [b"\xff\xfe", b"a\xc3", b"\xe6\x97", b"\xf0\x9f\x92", b"\x80\x80 \x80", b"\0\0"])
def test_no_byte_is_lost_whatever_it_is(text: bytes) -> None:
    for rules in RULES:
        assert b"".join(split_text(rules, text)) == text


@pytest.mark.parametrize(
    "rules", RULES, ids=lambda rules: next(n for n, r in PRETOKENIZERS.items() if r.rules == rules)
)
def test_no_text_takes_quadratic_time(rules: tuple[str, ...]) -> None:
    start = time.thread_time()
    for run in (" ", "A", "1", "\r ", "a b ", "a\u0301", "/", "'"):
        for tail in (b"", b"5", "中".encode()):
            text = run.encode() * 40_000 + tail
            assert b"".join(split_text(rules, text)) == text
    assert time.thread_time() - start < 4  # 24 texts; one in quadratic time would take longer alone
