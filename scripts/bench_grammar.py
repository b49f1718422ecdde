#!/usr/bin/env python3
"""What a grammar costs: the speed of bound answers beside free ones.

    scripts/bench_grammar.py MODEL [--rounds 9] [--tokens 128] [--threads N]

In every round the model writes the same number of tokens freely, bound by a JSON schema of long answers, by a regular
expression that allows nearly everything, and with tools that it may call. The order changes from round to round.
Prints medians of the rounds and of their ratios to the free answer, how long the vocabulary took to prepare, and last
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

from localinfer import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.text.constraint import CallBounds
from localinfer.text.grammar import Grammar, json_schema

PROMPT = "A list of people, each with a name, an age, an address and a short story about the place where they live:\n"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "story": {"type": "string", "minLength": 40},
    },
    "required": ["name", "age", "address", "story"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "free": {},
    "schema": {"grammar": json_schema({"type": "array", "items": PERSON, "minItems": 1000})},
    "regex": {"grammar": Grammar("regex", "(.|\n){10000,}")},
    "tools": {"calls": CallBounds("<tool_call>", Grammar("lark", 'start: "<tool_call>" "x"'))},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    with LLM(asked.model, context=1024, threads=asked.threads, speculation="off") as llm:
        started = time.perf_counter()
        llm.engine.prepare(SamplingParams(grammar=Grammar("regex", "a")))
        prepared = time.perf_counter() - started
        compiled = {}
        for kind, more in KINDS.items():
            started = time.perf_counter()
            llm.engine.prepare(SamplingParams(**more))
            compiled[kind] = time.perf_counter() - started
            _speed(llm, asked.tokens, more)
        rounds = []
        for number in range(asked.rounds):
            order = list(KINDS)[number % len(KINDS) :] + list(KINDS)[: number % len(KINDS)]
            speeds = {kind: _speed(llm, asked.tokens, KINDS[kind]) for kind in order}
            rounds.append(speeds)
        size = llm.tokenizer.vocab_size
    found = {
        kind: {
            "tokens_per_second": round(median(each[kind] for each in rounds), 2),
            "of_free": round(median(each[kind] / each["free"] for each in rounds), 4),
            "compile_ms": round(1000 * compiled[kind], 1),
        }
        for kind in KINDS
    }
    print(f"{size} tokens in the vocabulary, prepared in {prepared:.2f} s")
    print(f"{'':8}{'tokens/s':>10}{'of free':>10}{'compile ms':>12}")
    for kind, row in found.items():
        print(f"{kind:8}{row['tokens_per_second']:>10}{row['of_free']:>10.1%}{row['compile_ms']:>12}")
    print(json.dumps({"vocabulary": size, "prepare_seconds": round(prepared, 3), **found}))


def _speed(llm: LLM, tokens: int, bounds: dict[str, Any]) -> float:
    params = SamplingParams(temperature=0.7, top_p=0.95, seed=3, ignore_eos=True, max_tokens=tokens, **bounds)
    answer = llm.generate(PROMPT, params)
    if len(answer.tokens) != tokens:
        raise SystemExit(f"only {len(answer.tokens)} tokens were written: {answer.finish_detail}")
    return answer.decode_tokens_per_second


if __name__ == "__main__":
    main()
