"""Marks that are special tokens: they count by their ids, and the same characters as text are text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from answer_texts import TOOLS, Parts, joined
from localinfer.text.answer_marks import AnswerMarks
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import HARMONY, HARMONY_REASONING, ReasoningFormat, ToolFormat
from vocabularies import bpe

SPECIAL = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|end_of_text|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
]
THINK = ReasoningFormat("<think>", "</think>")
HERMES = ToolFormat("object", "<tool_call>\n", "\n</tool_call>", between="\n")
CALL = '{"name": "get-time", "arguments": {}}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "\u00c3", "\u00a9"]
    return bpe([*letters, *SPECIAL], [], [1] * len(letters) + [3] * len(SPECIAL))


def tokens(tokenizer: Tokenizer, *parts: str) -> list[int]:
    """Marks are given as parts of their own; everything else is text, whatever it looks like."""
    ids: list[int] = []
    for part in parts:
        special = tokenizer.token_id(part) if part in SPECIAL else None
        ids += (
            [special] if special is not None else list(tokenizer.encode(part, add_special=False, parse_special=False))
        )
    return ids


def told_apart(marks: AnswerMarks, answer: Sequence[int], skip_special: bool = True) -> Parts:
    decoder, reader = marks.decoder(skip_special)(), marks.reader()
    pieces = [piece for token in answer for piece in reader.push(decoder.push(token))]
    return joined([*pieces, *reader.push(decoder.finish()), *reader.finish()])


def test_marks_count_by_their_ids(tokenizer: Tokenizer) -> None:
    marks = AnswerMarks(tokenizer, THINK, HERMES, TOOLS)
    answer = ["<think>", "Say '</think>'!\n", "</think>", "So: ", "<|end_of_text|>", f"'<tool_call>\n{CALL}' ..."]
    answer += ["<tool_call>", f"\n{CALL}\n", "</tool_call>"]
    assert told_apart(marks, tokens(tokenizer, *answer)) == (
        "Say '</think>'!",
        f"So: '<tool_call>\n{CALL}' ...",
        [("get-time", {})],
    )


def test_special_tokens_are_shown_where_that_is_asked_for(tokenizer: Tokenizer) -> None:
    marks = AnswerMarks(tokenizer, THINK, HERMES, TOOLS)
    answer = tokens(tokenizer, "<think>", "Hm.", "</think>", "So", "<|end_of_text|>")
    assert told_apart(marks, answer) == ("Hm.", "So", [])
    assert told_apart(marks, answer, skip_special=False) == ("Hm.", "So<|end_of_text|>", [])


def test_a_call_ends_a_thought_that_is_not_closed(tokenizer: Tokenizer) -> None:
    marks = AnswerMarks(tokenizer, THINK, HERMES, TOOLS)
    answer = tokens(tokenizer, "<think>", "Hm. <tool_call>", "<tool_call>", CALL, "</tool_call>", "<think>", "More.")
    assert told_apart(marks, answer) == ("Hm. <tool_call>More.", "", [("get-time", {})])


def test_what_is_no_call_comes_out_without_seals(tokenizer: Tokenizer) -> None:
    marks = AnswerMarks(tokenizer, THINK, HERMES, TOOLS)
    answer = tokens(tokenizer, "<tool_call>", "none", "</tool_call>")
    assert told_apart(marks, answer) == ("", "<tool_call>none</tool_call>", [])


def test_the_prompt_tells_where_an_answer_begins(tokenizer: Tokenizer) -> None:
    answer = tokens(tokenizer, "Hm.", "</think>", "Yes.")
    for prompt, expected in (
        (["Hello", "<think>", "\n"], ("Hm.", "Yes.", [])),
        (["Hello", "<think>", "\n", "</think>", "\n"], ("", "Hm.</think>Yes.", [])),
        (["Hello <think>\n"], ("", "Hm.</think>Yes.", [])),
    ):
        marks = AnswerMarks(tokenizer, THINK, HERMES, TOOLS)
        marks.look_at(tokens(tokenizer, *prompt))
        assert told_apart(marks, answer) == expected


def test_channels_by_their_ids(tokenizer: Tokenizer) -> None:
    marks = AnswerMarks(tokenizer, HARMONY_REASONING, HARMONY, TOOLS)
    marks.look_at(tokens(tokenizer, "<|start|>", "user", "<|message|>", "Hi", "<|end|>", "<|start|>", "assistant"))
    answer = ["<|channel|>", "analysis", "<|message|>", "A '<|end|>' is text.", "<|end|>", "<|start|>", "assistant"]
    answer += ["<|channel|>", "commentary to=functions.get-time ", "<|constrain|>", "json", "<|message|>"]
    answer += ['{"zone": "<|call|>"}', "<|call|>"]
    assert told_apart(marks, tokens(tokenizer, *answer)) == (
        "A '<|end|>' is text.",
        "",
        [("get-time", {"zone": "<|call|>"})],
    )
    marks.look_at(tokens(tokenizer, "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"))
    assert told_apart(marks, tokens(tokenizer, "Yes.", "<|end|>")) == ("", "Yes.", [])
