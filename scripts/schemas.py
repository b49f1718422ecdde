#!/usr/bin/env python3
"""Whether answers fit the JSON schemas that bind them.

    scripts/schemas.py [--schemas 10000] [--engine 300] [--suite FOLDER] [--seed 1]

Draws random schemas, and two answers of each at random, token by token from what is allowed: every answer that ends has
to validate (package jsonschema). Some are drawn by the engine, with a tiny model at a temperature at which it says
anything. Then come the instances of the public JSON-Schema-Test-Suite (downloaded to FOLDER unless it is there): none
that its schema does not fit may be let through. Prints tables, what is wrong, and last one line of JSON; the exit code
is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import jsonschema

from localinfer import LLM
from localinfer.errors import LocalInferError
from localinfer.text.grammar import json_schema
from random_schemas import RandomSchemas
from schema_checks import SUITE, Counts, SchemaChecks, download_suite, random_checks
from scripted_model import write_scripted_model


def by_engine(count: int, seed: int) -> Counts:
    """Draws answers of so many schemas by the engine."""
    counts, schemas = Counts(), RandomSchemas(seed)
    validator = jsonschema.Draft202012Validator
    with tempfile.TemporaryDirectory() as folder:
        path = write_scripted_model(Path(folder) / "tiny.gguf")
        with LLM(path, context=1024, threads=1, max_sequences=4) as llm:
            for number in range(count):
                schema = schemas.draw()
                counts.schemas += 1
                try:
                    answer = llm.generate(
                        "x", grammar=json_schema(schema), temperature=50.0, seed=number, max_tokens=500, n=2
                    )
                except LocalInferError as error:
                    if "cannot go on" in error.message:
                        counts.wrong.append({"schema": schema, "error": error.message})
                    counts.refused["at all"] += 1
                    continue
                for each in (answer, *answer.others):
                    if each.finish_reason != "stop":
                        counts.unfinished += 1
                        continue
                    counts.answers += 1
                    errors = validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(
                        json.loads(each.text)
                    )
                    counts.wrong += [{"schema": schema, "answer": each.text, "error": str(e)[:200]} for e in errors]
    return counts


def suite(folder: Path) -> Counts:
    counts = Counts()
    SchemaChecks().suite(download_suite(folder), counts)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=10_000)
    parser.add_argument("--engine", type=int, default=300)
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    random.seed(asked.seed)
    found = {"random": random_checks(asked.schemas, asked.seed), "engine": by_engine(asked.engine, asked.seed + 1)}
    try:
        found["suite"] = suite(asked.suite)
    except RuntimeError as error:
        print(f"the public suite is left out: {error}", file=sys.stderr)
    columns = ("schemas", "refused", "answers", "unfinished", "accepted", "rejected", "narrower", "wrong")
    numbers = {name: {column: _size(getattr(counts, column)) for column in columns} for name, counts in found.items()}
    print(f"{'':8}" + "".join(f"{column:>12}" for column in columns))
    for name, row in numbers.items():
        print(f"{name:8}" + "".join(f"{row[column]:>12}" for column in columns))
    for name, c in found.items():
        print(f"\nrefused ({name})")
        for reason, count in c.refused.most_common(30):
            print(f"{count:6} {reason}")
    for name, c in found.items():
        for wrong in c.wrong:
            print(f"\nwrong ({name}): {json.dumps(wrong, ensure_ascii=False)}")
        for told in c.narrower:
            print(f"narrower: {told['where']} {json.dumps(told['schema'])[:120]} {json.dumps(told['instance'])[:60]}")
    print(json.dumps(numbers))
    return 1 if any(c.wrong for c in found.values()) else 0


def _size(found: Any) -> int:
    """A count, or that of what was counted."""
    return found if isinstance(found, int) else sum(found.values()) if isinstance(found, dict) else len(found)


if __name__ == "__main__":
    sys.exit(main())
