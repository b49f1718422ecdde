"""Whether localinfer's greedy text is that of exact arithmetic, and the same bits however the work is cut.

    python scripts/compare_greedy.py MODEL

Ten prompts of 4 to 600 tokens, 64 tokens each. Exact is float32 in transformers (exact_model.py). Where the texts
part, exact's two best logits must be closer than the measured error: the largest error of such a gap at all the
positions where they agree. And the logits of every step must be the same bits on one thread and on all, with
prompts in chunks of 1, 16, 64 and 512 tokens, and for every size of KV blocks. Prints a table and last one JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from measure import print_result, table
from ours import OpenModel
from peer import LlamaCpp, add_peer_argument
from prose import collect

if TYPE_CHECKING:
    from exact_model import Choice

LENGTHS = (4, 8, 15, 16, 17, 33, 64, 150, 300, 600)
COUNT = 64


@dataclass(frozen=True)
class Setting:
    """How the work is cut. None of it may change a bit."""

    threads: int
    chunk: int
    block: int


@dataclass
class Text:
    """A greedy answer of ours: tokens, a digest of each step's logits, the gap of two given logits where asked for."""

    tokens: list[int]
    digests: list[bytes]
    gaps: list[float]


def generate(model: OpenModel, prompt: Sequence[int], exact: Sequence[Choice]) -> Text:
    """Greedy tokens after the prompt; `gaps[i]` is our logit of exact's choice minus that of its second."""
    text = Text([], [], [])
    step, first = list(prompt), 0
    for choice in exact:
        logits = model.process(step, first)
        if logits is None:
            raise ValueError("an empty prompt has no next token")
        row = logits.numpy()[-1]
        text.tokens.append(int(np.argmax(row)))
        text.digests.append(hashlib.sha256(row.tobytes()).digest())
        text.gaps.append(float(row[choice.token]) - float(row[choice.second]))
        first += len(step)
        step = text.tokens[-1:]
    return text


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Index of the first entries that differ; None if there is none."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="cpu", help="localinfer's backend (default cpu)")
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64], help="sizes of KV blocks")
    parser.add_argument("--prompts", type=int, default=len(LENGTHS), help="how many of the prompts (default all)")
    add_peer_argument(parser)
    arguments = parser.parse_args()

    import exact_model  # torch and transformers take seconds to import
    import torch

    torch.set_num_threads(arguments.threads)

    exact = exact_model.load(arguments.model)
    with LlamaCpp(arguments.llama_cpp, arguments.model, 1, True, [64]) as tokenizer:
        ids = tokenizer.tokenize(collect(arguments.llama_cpp))
    prompts, start = [], 0
    for length in LENGTHS[: arguments.prompts]:
        prompts.append(exact.begin + ids[start : start + length])
        start += length
    expected = [exact.greedy(prompt, COUNT) for prompt in prompts]

    base = Setting(arguments.threads, 512, arguments.blocks[0])
    settings = dict.fromkeys(
        [
            base,
            Setting(1, base.chunk, base.block),
            *(Setting(base.threads, chunk, base.block) for chunk in (1, 16, 64)),
            *(Setting(base.threads, base.chunk, block) for block in arguments.blocks),
            Setting(1, 16, arguments.blocks[-1]),
        ]
    )
    texts: dict[Setting, list[Text]] = {}
    for setting in settings:
        model = OpenModel(
            arguments.model,
            setting.threads,
            [max(map(len, prompts)) + COUNT],
            arguments.backend,
            chunk=setting.chunk,
            block=setting.block,
        )
        texts[setting] = [generate(model, prompt, choices) for prompt, choices in zip(prompts, expected, strict=True)]
        model.close()
        print(f"{setting} done", flush=True)

    parted = [
        first_difference(text.tokens, [choice.token for choice in choices])
        for text, choices in zip(texts[base], expected, strict=True)
    ]
    errors = [
        abs(gap - choice.margin)
        for text, choices, end in zip(texts[base], expected, parted, strict=True)
        for gap, choice in list(zip(text.gaps, choices, strict=True))[:end]
    ]
    error = max(errors)
    unexplained = 0
    rows = []
    for prompt, choices, end in zip(prompts, expected, parted, strict=True):
        margin = "" if end is None else choices[end].margin
        unexplained += end is not None and choices[end].margin > error
        rows.append((f"{len(prompt)} tokens", "never" if end is None else end, margin))
    print(f"\n{arguments.model.name}: measured error of a gap of two logits {error:.4f} at {len(errors)} positions\n")
    print(table(("prompt", "parts from exact at", "exact's gap there"), rows))
    rows = []
    for setting, found in texts.items():
        same = all(text.digests == first.digests for text, first in zip(found, texts[base], strict=True))
        rows.append((str(setting), "same bits" if same else "DIFFERENT"))
    print("\n" + table(("setting", "compared with the first"), rows))
    print_result(
        {
            "prompts": len(prompts),
            "equal": parted.count(None),
            "parted_closer_than_error": len(prompts) - parted.count(None) - unexplained,
            "parted_unexplained": unexplained,
            "measured_error": error,
            "bit_identical": all(row[1] == "same bits" for row in rows),
        }
    )


if __name__ == "__main__":
    main()
