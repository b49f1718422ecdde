"""Text that breaks between words at the edge of a terminal; what a terminal makes of it is played by a small one."""

from __future__ import annotations

import random

import pytest

from localinfer.cli.wrap import Wrapper
from screen import Screen

COLUMNS = 20


def shown(*pieces: str) -> list[str]:
    screen, wrapper = Screen(COLUMNS), Wrapper()
    for piece in pieces:
        screen.write(wrapper.feed(piece, COLUMNS))
    return screen.text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("The quick brown fox jumps over the lazy dog", ["The quick brown fox", "jumps over the lazy", "dog"]),
        ("exactly 19 columns.\nnext", ["exactly 19 columns.", "next"]),
        ("exactly 19 columns. next", ["exactly 19 columns.", "next"]),
        ("exactly 19 columns.    \n\nnext", ["exactly 19 columns.", "", "next"]),
        ("and 20 columns wide. next", ["and 20 columns", "wide. next"]),
        ("see https://example.org/a/long/address now", ["see", "https://example.org/", "a/long/address now"]),
        ("a" * 45 + " b", ["a" * 20, "a" * 20, "aaaaa b"]),
        ("世界" * 7 + " wide", ["世界" * 5, "世界世界 wide"]),
        ("wide: 世界世界世界世界", ["wide: 世界世界世界世", "界"]),
        ("x世界世界世界世界世界", ["x世界世界世界世界世", "界"]),
        ("a party 🎉🎉🎉🎉 with everybody", ["a party 🎉🎉🎉🎉", "with everybody"]),
        ("e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301",
         ["e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301 e\u0301te\u0301", "e\u0301te\u0301"]),
        ("sixteen columns: e\u0301\u0302\u0303te te", ["sixteen columns:", "e\u0301\u0302\u0303te te"]),
        ("seventeen columns\t a", ["seventeen columns", "a"]),
        ("one\ttwo\t\tthree four", ["one     two", "three four"]),
    ],
)  # fmt: skip
def test_lines_break_between_words(text: str, lines: list[str]) -> None:
    assert shown(text) == lines
    assert shown(*text) == lines, "piece by piece it looks the same"


def test_code_is_left_as_it_is() -> None:
    code = "```python\nif somebody.left_early and not asked:\n    return   nothing, at_all, to_nobody\n```\n"
    for block in (code, code.replace("`", "~"), code.replace("\n", "\n   ").replace("```", "   ```", 1)):
        assert Wrapper().feed(block, COLUMNS) == block
        pieces, wrapper = "", Wrapper()
        for character in block:
            pieces += wrapper.feed(character, COLUMNS)
        assert pieces == block
    behind = shown(*code, *"words behind the code break again")
    assert behind[-2:] == ["words behind the", "code break again"]
    assert shown("~~~\n```\nthis is still inside of it\n~~~\nand this is outside") == [
        "~~~", "```", "this is still inside", " of it", "~~~", "and this is outside",
    ]  # fmt: skip
    assert shown("```code``` within a line of text") == ["```code``` within a", "line of text"]


def test_the_pieces_do_not_matter_and_nothing_waits() -> None:
    rng = random.Random(5)
    words = ["a", "it's", "word", "considerable", "世界", "🌍", "e\u0301t\u00e9", "https://example.org/over/the/edge",
             "\n", "\n\n", "```\n", "naïve-looking"]  # fmt: skip
    for _ in range(200):
        text = " ".join(rng.choices(words, k=40))
        whole = shown(text)
        screen, wrapper = Screen(COLUMNS), Wrapper()
        rest, given = text, ""
        while rest:
            cut = rng.randint(1, 12)
            screen.write(wrapper.feed(rest[:cut], COLUMNS))
            given, rest = given + rest[:cut], rest[cut:]
            assert "".join("".join(screen.text).split()) == "".join(given.split()), "all of it is on the screen"
        assert screen.text == whole


def test_a_terminal_of_unknown_or_no_width_gets_the_text_as_it_is() -> None:
    text = "The quick brown fox jumps over the lazy dog " * 5
    assert Wrapper().feed(text, 0) == Wrapper().feed(text, 1) == text
