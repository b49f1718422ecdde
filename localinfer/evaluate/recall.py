"""Whether a model finds in a long text what it read there: numbers that are hidden in prose, and asked for at its end.

Facts of the form "The code of Oslo is 48215." stand in the text that ships with localinfer, at equal distances. Then
the text goes on with "The code of Oslo is", and the model, greedily, with what it makes of that: any model can be
asked so, whether it chats or not. All questions about one text share its computation.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from localinfer.engine.llm import LLM, TextStream
from localinfer.errors import LocalInferError
from localinfer.evaluate.figures import Figure
from localinfer.evaluate.texts import default_text

PLACES = ("Oslo", "Lima", "Cairo", "Quebec", "Kyoto", "Nairobi", "Sydney", "Lisbon", "Havana", "Warsaw")
SHORTEST = 512  # tokens of the shortest text that is asked about
ANSWER_TOKENS = 16  # kept free behind the question, more than any vocabulary needs for five digits
QUESTION_TOKENS = 32
SEED = 20240607


class Recall(NamedTuple):
    """Answers to questions about one text of `length` tokens.

    right     for each fact, in the order of the text, whether its number was told
    accuracy  the part that is right; its error takes the questions as independent: sqrt(p (1 - p) / n)
    """

    length: int
    right: tuple[bool, ...]
    accuracy: Figure

    def as_data(self) -> dict[str, Any]:
        """For JSON; a depth is the part of the text before the fact."""
        depths = {f"{(number + 1) / (len(self.right) + 1):.2f}": found for number, found in enumerate(self.right)}
        return {"length": self.length, "accuracy": self.accuracy._asdict(), "right_at_depth": depths}


def lengths_up_to(longest: int) -> list[int]:
    """Doubling from SHORTEST on, and `longest` itself. LocalInferError if that is too short."""
    if longest < SHORTEST:
        raise LocalInferError(
            f"a text of {longest} tokens is too short to lose anything in", f"ask for {SHORTEST} tokens at least"
        )
    lengths = [SHORTEST]
    while 2 * lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return lengths if lengths[-1] == longest else [*lengths, longest]


def load_for_recall(model: str, longest: int, **options: Any) -> LLM:
    """The model with room for texts of so many tokens, and for all questions about one at the same time."""
    room = QUESTION_TOKENS + ANSWER_TOKENS
    return LLM(
        model,
        context=longest + room,
        max_sequences=len(PLACES),
        kv_tokens=longest + len(PLACES) * (room + 16),  # the text is shared
        **options,
    )


def recall(llm: LLM, lengths: Sequence[int], *, report: Callable[[str, int, int], None] | None = None) -> list[Recall]:
    """Asks about one text of each length. ContextLengthError if a text is longer than the model was loaded for."""
    found = []
    for done, length in enumerate(lengths):
        if report is not None:
            report("recall", done, len(lengths))
        found.append(_ask(llm, length))
    return found


def _ask(llm: LLM, length: int) -> Recall:
    random = Random(SEED + length)
    numbers = [str(random.randrange(10000, 100000)) for _ in PLACES]
    text = haystack(llm, numbers, length)
    questions = [text + _ids(llm, f"\n\nThe code of {place} is") for place in PLACES]
    streams = []
    for question in questions:
        streams.append(llm.stream(question, max_tokens=ANSWER_TOKENS, stop=("\n", ".")))
        if len(streams) == 1:
            _text_of(streams[0])  # computes the text, which the others then find in the cache
    answers = [_text_of(stream) for stream in streams]
    right = tuple(answer.strip().startswith(number) for answer, number in zip(answers, numbers, strict=True))
    part = sum(right) / len(right)
    return Recall(length, right, Figure(part, math.sqrt(part * (1 - part) / len(right))))


def _text_of(stream: TextStream) -> str:
    for _ in stream:
        pass
    return stream.completion.text


def haystack(llm: LLM, numbers: Sequence[str], length: int) -> array[int]:
    """About `length` tokens of prose, no more, with a fact for each of PLACES behind runs of equal size."""
    facts = [
        _ids(llm, f"\n\nThe code of {place} is {number}.\n\n") for place, number in zip(PLACES, numbers, strict=True)
    ]
    ids = llm.tokenize("")  # what texts begin with
    each = (length - len(ids) - sum(map(len, facts))) // (len(facts) + 1)
    prose = _sentences(llm)
    number = 0
    for place in range(len(facts) + 1):
        run = array("i")
        while len(run) < each:
            run += prose[number % len(prose)]
            number += 1
        ids += run[:each]
        if place < len(facts):
            ids += facts[place]
    return ids


def _sentences(llm: LLM) -> list[array[int]]:
    sentences = re.split(r"(?<=[.!?;])\s+", default_text("evaluation") + default_text("calibration"))
    return [_ids(llm, f" {sentence}") for sentence in sentences]


def _ids(llm: LLM, text: str) -> array[int]:
    return llm.tokenize(text, add_special=False)
