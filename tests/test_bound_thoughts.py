"""Whole answers of models that think, drawn at random from what may come: what is said fits, and the thought ends."""

from __future__ import annotations

import json
import random
from typing import Literal

import jsonschema
import pytest

from drawn_answers import JSON_PIECES, byte_tokenizer
from localinfer.text.answer_marks import AnswerMarks
from localinfer.text.answer_reader import Said
from localinfer.text.constraint import Bounds, Constraints, Thought
from localinfer.text.grammar import json_schema
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import HARMONY_REASONING, MARK, ReasoningFormat

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "channels": HARMONY_REASONING,
    "answer between marks": ReasoningFormat("<|think|>", "<|/think|>", answer_open="<|say|>", answer_close="<|/say|>"),
}
CASES = [
    pytest.param(form, state, id=f"{name}-{state}")
    for name, form in FORMATS.items()
    for state in ("begun", "possible", "over", "answering")
    if state != "answering" or form.answer_open
]
PLAIN = range(33, 127)  # bytes of a thought
MOST = 200


def tokenizer_of(form: ReasoningFormat) -> Tokenizer:
    """A vocabulary in which marks are special tokens."""
    texts = (*form.marks, form.after)
    words = dict.fromkeys(word for text in texts for word in MARK.split(text) if word)
    return byte_tokenizer(
        [*JSON_PIECES, *words], list(dict.fromkeys(mark for text in texts for mark in MARK.findall(text)))
    )


def drawn(constraints: Constraints, tokenizer: Tokenizer, bounds: Bounds, chance: random.Random) -> list[int] | None:
    """The tokens of an answer; None if it does not end in time."""
    constraint = constraints.constraint(bounds)
    answer: list[int] = []
    while len(answer) < MOST:
        if constraint.complete:
            return answer
        allowed = constraint.allowed()
        assert allowed is not None, "a bound answer is bound everywhere"
        bits = int.from_bytes(allowed.tobytes(), "little")
        ending = [token for token in tokenizer.stop_ids if bits >> token & 1]
        if ending and chance.random() < 0.5:
            return answer
        may = [t for t in range(tokenizer.vocab_size) if bits >> t & 1 and t not in tokenizer.stop_ids]
        special = [token for token in may if tokenizer.is_special(token)]
        plain = [
            token
            for token in may
            if len(tokenizer.token_bytes(token)) == 1 and tokenizer.token_bytes(token)[0] in PLAIN
        ]
        if special and chance.random() < 0.3:
            may = special
        elif plain and chance.random() < 0.8:
            may = plain
        if not may:
            assert ending, "nothing can come"
            return answer
        token = chance.choice(may)
        constraint.accept(token)
        answer.append(token)
    return None


@pytest.mark.parametrize("budget", [None, 5])
@pytest.mark.parametrize(("form", "state"), CASES)
def test_what_is_said_behind_a_thought_fits(
    form: ReasoningFormat, state: Literal["begun", "possible", "over", "answering"], budget: int | None
) -> None:
    tokenizer = tokenizer_of(form)
    constraints = Constraints(tokenizer, tokenizer.vocab_size)
    bounds = Bounds(json_schema(SCHEMA), None, Thought(form, state), budget)
    prompt = {"begun": form.open, "answering": form.answer_open}.get(state, "")
    if form.channels:
        prompt = f"<|start|>assistant{prompt}"
    chance, found = random.Random(3), 0
    for _ in range(12):
        answer = drawn(constraints, tokenizer, bounds, chance)
        if answer is None:
            continue
        marks = AnswerMarks(tokenizer, form, None, {})
        marks.look_at(tokenizer.encode(prompt, add_special=False, parse_special=True))
        decoder = marks.decoder()()
        text = "".join(map(decoder.push, answer)) + decoder.finish()
        pieces = marks.reader().whole(text)
        said = "".join(piece.text for piece in pieces if isinstance(piece, Said) and piece.kind == "content")
        jsonschema.validate(json.loads(said), SCHEMA)
        found += 1
    assert found
