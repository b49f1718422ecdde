"""The recorded workload of `bench --determinism`: which prompts, and how each is to be answered.

Everything here is fixed, so that two runs of the benchmark ask a model the same. Prompts share a beginning (for the
prefix cache) and repeat themselves (for prompt lookup); parameters take every way that a token can be drawn.
"""

from __future__ import annotations

from array import array
from itertools import cycle
from typing import NamedTuple

from localinfer.engine.sampling import SamplingParams
from localinfer.text.tokenizer import Tokenizer

REQUESTS = 32
ANSWER = 24  # tokens, if the context is large enough
PROMPT_SHARE = 0.6  # of the context, at most

SHARED = (
    "You answer questions about a small library. The library has five rooms: maps, letters, music, plants and clocks. "
    "Each room has a keeper. The keeper of maps is Ada, the keeper of letters is Ben, the keeper of music is Cleo. "
)
TEXTS = (
    "Question: who keeps the letters? Answer:",
    "Question: who keeps the maps? Answer: Ada. Question: who keeps the letters? Answer: Ben. Question: who keeps the",
    "one two three four five six seven one two three four five six seven one two three four",
    "for row in rows:\n    total = total + row.price\nfor row in rows:\n    count = count + row.number\nfor row in",
    '{"name": "Ada", "room": "maps"}\n{"name": "Ben", "room": "letters"}\n{"name": "Cleo", "room":',
    "The sea was calm that evening, and nobody on the pier thought of the storm that",
    "Bread needs flour, water, salt and time. First mix the flour and the water; then",
    "a b c d a b c d a b c d a b c",
)
# What differs from a greedy answer of ANSWER tokens. Each comes with a seed of its own.
PARAMETERS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 20, "n": 3},
    {"repetition_penalty": 1.2, "penalty_window": 16},
    {"temperature": 1.2, "top_p": 0.9},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.7, "min_p": 0.05, "logprobs": True},
    {"ignore_eos": True, "logprobs": True},
    {"temperature": 0.9, "typical_p": 0.9, "min_tokens": 3},
    {"logit_bias": {5: 1.5, 7: -100.0}, "temperature": 0.6},
    {"temperature": 1.0, "n": 2, "best_of": 3},
    {"beam_width": 3, "n": 2, "logprobs": True},
    {"prompt_logprobs": 1, "temperature": 0.8},
    {"dry_multiplier": 1.0, "temperature": 0.7, "top_n_sigma": 1.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "temperature": 1.0, "n": 2},
    {"mirostat": 2, "mirostat_tau": 4.0, "temperature": 1.0, "n": 2, "best_of": 3},
    {"mirostat": 1, "mirostat_tau": 3.0, "temperature": 0.9},
    {"dynatemp_range": 0.5, "temperature": 0.8, "dry_multiplier": 0.5, "dry_penalty_last_n": 32},
)


STOPPED: tuple[dict[str, object], ...] = ({}, {"temperature": 0.8})  # these end with a stop string


class Case(NamedTuple):
    """A request of the workload. If `stops`, a piece of its answer becomes its stop string."""

    prompt: array[int]
    params: SamplingParams
    stops: bool


def workload(tokenizer: Tokenizer, context: int) -> list[Case]:
    """The requests, for a model with a context of so many tokens; prompts that are too long lose their beginning."""
    longest = int(PROMPT_SHARE * context)
    answer = min(ANSWER, context - longest)
    texts = [text for each in TEXTS for text in (each, SHARED + each)]
    kinds = [(changes, False) for changes in PARAMETERS] + [(changes, True) for changes in STOPPED]
    cases = []
    for number, text, (changes, stops) in zip(range(REQUESTS), cycle(texts), cycle(kinds), strict=False):
        prompt = tokenizer.encode(text, add_special=True, parse_special=False)[-longest:]
        params = SamplingParams(max_tokens=answer, seed=1000 + number).changed(**changes)
        cases.append(Case(prompt, params, stops))
    return cases
