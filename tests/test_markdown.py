"""Markdown drawn on a terminal while it comes; what the terminal makes of it is played by a small one."""

from __future__ import annotations

import random
import re

import pytest

from localinfer.cli.code_blocks import code_blocks
from localinfer.cli.inline import inline
from localinfer.cli.markdown_stream import MarkdownStream
from localinfer.cli.output import harmless
from screen import Screen


def drawn(*pieces: str, columns: int = 40, rows: int = 24) -> Screen:
    screen, stream = Screen(columns, rows), MarkdownStream()
    for piece in pieces:
        screen.write(stream.feed(piece, columns, rows))
    screen.write(stream.finish())
    return screen


def styled(text: str) -> str:
    """A line with what has a style as {style:text}."""
    screen = Screen(200)
    screen.write(MarkdownStream().feed(text + "\n", 200, 24))
    return screen.styled[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("a **bold** and *italic* word", "a {1:bold} and {3:italic} word"),
        ("__bold__ and _italic_", "__bold__ and {3:italic}"),  # the first is how Python names things
        ("__in bold__", "{1:in bold}"),
        ("***both*** **bold *and italic* too**", "{1;3:both} {1:bold }{1;3:and italic}{1: too}"),
        ("*it **both***", "{3:it }{3;1:both}"),
        ("~~gone~~ ~one~", "{9:gone} ~one~"),
        ("`code *as* it is` ``a`b``", "{36:code *as* it is} {36:a`b}"),
        ("snake_case_name, 2 * 3 * 4, 2*3*4, a ** b ** c", "snake_case_name, 2 * 3 * 4, 2*3*4, a ** b ** c"),
        ("这是**重点**内容", "这是{1:重点}内容"),
        ("**never closed and `nor this", "**never closed and `nor this"),
        (
            "[words](https://e.org/a_(b)) and <https://e.org>",
            "{4:words} ({2:https://e.org/a_(b)}) and {4:https://e.org}",
        ),
        ("[https://e.org](https://e.org) [not] (a link)", "{4:https://e.org} [not] (a link)"),
        (r"\*no\* \_mark\_ \( a_1 \)", r"*no* _mark_ \( a_1 \)"),
        ("<b>HTML</b> &amp; more", "<b>HTML</b> &amp; more"),
        ("# A *title*", "{1;4:A }{1;4;3:title}"),
        ("### third", "{1:third}"),
        ("#hashtag", "#hashtag"),
        ("- item", "• item"),
        ("-5 degrees", "-5 degrees"),
        ("12. twelfth", "12. twelfth"),
        ("2024 was", "2024 was"),
        ("> quoted", "{2:│ }quoted"),
        ("> - in it", "{2:│ }• in it"),
        ("---", "{2:" + "─" * 40 + "}"),
        ("--flag", "--flag"),
    ],
)
def test_a_line(text: str, shown: str) -> None:
    assert styled(text) == shown


def test_lines_hang_below_their_text() -> None:
    text = "- one two three four five\n> six seven eight nine ten\n1. eleven twelve thirteen"
    assert drawn(text, columns=16).text == [
        "• one two three", "  four five", "│ six seven", "│ eight nine", "│ ten",
        "1. eleven", "   twelve", "   thirteen",
    ]  # fmt: skip


def test_code_is_written_as_it_is() -> None:
    code = 'def f(x):\n    return "**not bold**"   # a line that is longer than the terminal is wide\n\n\tx = [1](2)\n'
    for fence in ("```", "~~~", "`````"):
        screen = drawn(f"Look:\n{fence}python\n{code}{fence}\nDone", columns=200)
        assert screen.styled[0:2] == ["Look:", "{2:─── python}"]
        assert screen.text[2:-2] == code.expandtabs(8).splitlines()
        assert screen.styled[-2:] == ["{2:───}", "Done"]
    text = drawn(f"1. step\n   ```\n   {code[:9]}\n     deeper\n   ```\n2. next").text
    assert text == ["1. step", "───", "def f(x):", "  deeper", "───", "2. next"], "without the list's indentation"
    raw = MarkdownStream().feed("```\n" + "x" * 100 + " \n", 40, 24)
    assert "x" * 100 + " \n" in raw, "long lines are broken by the terminal, so that they copy as one"
    assert drawn("```\nnever closed").text == ["───", "never closed"]
    assert drawn("````\n```\ninner\n```\n````").text == ["───", "```", "inner", "```", "───"]


TABLE = "| name | n |\n|:--|--:|\n| a **b** | 1 |\n| `c` \\| d | 22 |\n"


def test_tables() -> None:
    _, _, first, second, *_ = drawn(TABLE + "\nafter").styled
    assert [line.rstrip() for line in drawn(TABLE + "\nafter").text] == [
        "name  │  n", "──────┼───", "a b   │  1", "c | d │ 22", "", "after",
    ]  # fmt: skip
    assert first.startswith("a {1:b}")
    assert second.startswith("{36:c} | d")
    assert drawn(TABLE.rstrip("\n")).text[-1] == "c | d │ 22", "the last row is drawn without a newline too"
    assert drawn("| no table\n| at all |\nx").text == ["| no table", "| at all |", "x"]
    broken = drawn("| a | b |\n|--|--|\n| one two three four | five<br>six |\n", columns=16).text
    assert broken[2:-1] == ["one two  │ five", "three    │ six", "four     │"]
    wide = "| " + " | ".join("abcdef") * 3 + " |"
    lines = [wide, re.sub(r"[^|]+", "--", wide.strip("|")).join("||"), wide]
    assert "".join(drawn("\n".join(lines), columns=20).text).replace(" ", "") == "".join(lines).replace(" ", "")


def test_a_table_longer_than_the_screen_keeps_its_columns() -> None:
    rows = [f"| {n} | row |" for n in range(40)]
    text = "\n".join(["| n | what |", "|---|---|", *rows, "", "after"])
    for pieces in ([text], list(text)):
        screen = drawn(*pieces, rows=10)
        assert [line.split() for line in screen.text[2:42]] == [[str(n), "│", "row"] for n in range(40)]
        assert screen.text[-1] == "after"


PARTS = [
    "# Title\n", "## A `code` title\n", "\n", "Some text that is long enough to be broken. ", "**bold words** ",
    "*it* ", "**open ", "`code` ", "`open ", "[link](https://example.org/somewhere) ", "[open ",
    "\n- item ", "\n  - nested ",
    "\n1. first ", "\n> quote ", "\n---\n", "\n```py\ncode = 1\n\n  more\n```\n", "\n```\nopen code\n", "世界世界世界 ",
    "emoji 🌍 ", "e\u0301 ", "❤\ufe0f ", "snake_case ", "\n" + TABLE, "\n| a |\n", "\\* ", "***",
    "_x_ ", "\t", "~~s~~ ",
]  # fmt: skip


def bare(lines: list[str]) -> str:
    """Only what no drawing adds or takes away."""
    return "".join(re.findall(r"[\w🌍❤]", "".join(lines)))


@pytest.mark.parametrize("columns", [7, 20, 60])
def test_the_pieces_do_not_matter_and_nothing_is_lost(columns: int) -> None:
    rng = random.Random(columns)
    for _ in range(60):
        text = "".join(rng.choices(PARTS, k=14))
        whole = drawn(text, columns=columns, rows=400)
        pieces, rest = [], text
        while rest:
            cut = rng.randint(1, 9)
            pieces.append(rest[:cut])
            rest = rest[cut:]
        assert drawn(*pieces, columns=columns, rows=400).styled == whole.styled, repr(text)
        given = re.sub(r"\n\|:--\|--:\|", "", text).replace("_", "")
        assert bare(whole.text).replace("_", "") == bare([given]), repr(text)


def test_what_is_said_is_shown_at_once() -> None:
    stream, screen = MarkdownStream(), Screen(40)
    for piece in ("The answer", " is **very", " bold", "** and `co", "de` | here\n", "- an it", "em\n| a |"):
        screen.write(stream.feed(piece, 40, 24))
        assert piece.split()[-1].strip("*`") in " ".join(screen.text).replace("*", "").replace("`", "")


def test_a_low_or_resized_terminal_shows_all_of_it() -> None:
    words = " ".join(f"word{n}" for n in range(80))
    assert bare(drawn(*f"**{words}**", columns=20, rows=4).text) == bare([words])
    stream, written = MarkdownStream(), ""
    for number, character in enumerate(f"**{words}** and {words}\n{TABLE}"):
        written += stream.feed(character, 20 + number // 50, 10)
    written += stream.finish()
    plain = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", written)
    for n in range(80):
        assert f"word{n}"[:4] in plain
    assert MarkdownStream().feed("**x**", 0, 0) == "**x**", "a terminal of unknown width"


def test_long_lines_do_not_take_longer_and_longer() -> None:
    stream = MarkdownStream()
    for _ in range(300):
        stream.feed("*a _b `c [d ", 80, 24)
        stream.feed("x" * 40, 80, 24)
    assert len(stream._text) < 1000
    assert inline("*a " * 200).cells


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://evil\x07x\x1b]8;;\x07", "\x9b31m\x9d52;c;x\x9c", "a\rb",
     "a\b\b", "\u202eevil\u202c \u2066x\u2069", "\x00\x7f\x0e\x0f\x05", "\x1bc\x1b[2J\x1b(0"],
)  # fmt: skip
@pytest.mark.parametrize("around", ["{}", "**{}**", "`{}`", "```\n{}\n```", "```{}\nx\n```",
                                    "| {} | x |\n|--|--|\n| {} | y |",
                                    "[{}](http://{})", "# {}", "- {}", "> {}"])  # fmt: skip
def test_hostile_text_does_nothing(text: str, around: str) -> None:
    written = MarkdownStream().feed(harmless(around.replace("{}", text)) + "\n", 40, 24)
    ours = re.sub(r"\x1b\[[\d;]*[mKJACD]|[\n\t]", "", written)
    controls = [
        c
        for c in ours
        if c < " " or "\x7f" <= c <= "\x9f" or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    ]
    # A carriage return is ours only in front of a cursor movement.
    assert [c for c in controls if c != "\r"] == []
    assert re.search(r"\r(?!\x1b\[\d+C|\x1b\[[JK])", written) is None


def test_blocks_of_code_are_found() -> None:
    text = "a\n```py\none\n```\n1. x\n   ~~~\n   two\n     deep\n   ~~~\n````\n```\nthree\n````\n```\nopen\n"
    assert code_blocks(text) == ["one\n", "two\n  deep\n", "```\nthree\n", "open\n"]
    assert code_blocks("none `x`") == []
