"""Whether the memory that loading announces is the memory that running takes.

    python scripts/check_plan.py MODEL [MODEL ...] [--context 1024]

Each model runs in a process of its own: it is loaded as a chat loads it, the whole context is filled, the last tokens
one by one, drawn with every sampling parameter that needs memory. The plan's total and the largest resident set that
the kernel saw must be within 2 % of each other. Prints a table and last one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
from pathlib import Path

from measure import print_result, table

from localinfer import SamplingParams

LIMIT = 0.02
DECODED = 32  # tokens generated one by one, the rest of the context is prompt
# Uses all that the sampler reserves; a greedy request would leave some of it untouched.
EVERYTHING = SamplingParams(
    temperature=1.0, typical_p=0.9, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=True,
    max_tokens=DECODED, ignore_eos=True,
)  # fmt: skip


def run(model: Path, context: int, threads: int) -> dict[str, dict[str, int] | int]:
    """Loads the model in this process, fills its context, and compares."""
    from localinfer import LLM

    with LLM(model, context=context, threads=threads) as llm:
        size = llm.plan.program.vocab_size
        prompt = random.Random(1).choices(range(size), k=context - DECODED)
        llm.generate(prompt, EVERYTHING)
        rows = llm.plan.config.max_rows
        llm.generate(prompt[:rows], max_tokens=1, prompt_logprobs=0)  # as many rows of logits as a step may have
        parts = dict(llm.plan.parts)
    unit = 1 if sys.platform == "darwin" else 1024
    return {"parts": parts, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--in-this-process", action="store_true", help="run the one model here, print bytes as JSON")
    options = parser.parse_args()
    if options.in_this_process:
        print(json.dumps(run(options.models[0], options.context, options.threads)))
        return
    rows, deviations = [], {}
    for model in options.models:
        arguments = ["--in-this-process", "--context", str(options.context), "--threads", str(options.threads)]
        command = [sys.executable, __file__, str(model), *arguments]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        plan, peak = sum(result["parts"].values()), result["peak"]
        deviations[model.name] = peak / plan - 1
        parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in result["parts"].items())
        rows.append((model.name, plan / 1e6, peak / 1e6, f"{peak / plan - 1:+.1%}", parts))
        print(f"{model.name} done", flush=True)
    print(f"\nMB at a context of {options.context} tokens\n")
    print(table(("", "plan", "peak", "deviation", "parts of the plan"), rows))
    print_result({"deviation": deviations, "within_limit": all(abs(d) <= LIMIT for d in deviations.values())})


if __name__ == "__main__":
    main()
