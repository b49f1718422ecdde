"""Whether constraints and JSON schemas agree: on answers drawn at random, and on the public test suite's instances.

The suite is JSON-Schema-Test-Suite, as the sources of the package jsonschema carry it (MIT).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from drawn_answers import Drawing, byte_tokenizer
from localinfer.errors import LocalInferError
from localinfer.text.grammar import Grammars, Matcher, json_schema
from random_schemas import RandomSchemas

PACKAGE, VERSION = "jsonschema", "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
SUITE = Path(tempfile.gettempdir()) / "json-schema-test-suite"
DRAFTS = ("draft2020-12", "draft7")
# What the drafts leave open, or what a checker must be told to do: what is optional, but for these.
_OPTIONAL = ("bignum.json", "ecmascript-regex.json", "float-overflow.json", "non-bmp-regex.json", "no-schema.json")
_ORDERS = 600  # of the members of objects that are tried: a constraint has them in the order of the schema


@dataclass
class Counts:
    """What became of schemas and of what was tried with them. `wrong` must be empty."""

    schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    unfinished: int = 0
    accepted: int = 0  # valid instances
    rejected: int = 0  # instances that are not valid
    narrower: list[dict[str, Any]] = field(default_factory=list)  # valid ones that the constraint does not let through
    wrong: list[dict[str, Any]] = field(default_factory=list)  # what it lets through and is not valid


class SchemaChecks:
    """Tries schemas with a small vocabulary."""

    def __init__(self) -> None:
        self._tokenizer = byte_tokenizer()
        self._grammars = Grammars(self._tokenizer, self._tokenizer.vocab_size)
        self._drawing = Drawing(self._tokenizer)
        self._bytes = [self._tokenizer.token_id(f"<0x{byte:02X}>") for byte in range(256)]

    def matcher(self, schema: Any, counts: Counts) -> Matcher | None:
        """The matcher of a schema, or None if it is refused."""
        counts.schemas += 1
        try:
            return self._grammars.matcher(json_schema(schema))
        except LocalInferError as error:
            counts.refused[_reason(error.message)] += 1
            return None

    def draw(self, schema: Any, counts: Counts, chance: random.Random, answers: int = 2) -> None:
        """Draws answers of a schema, and validates them."""
        matcher = self.matcher(schema, counts)
        if matcher is None:
            return
        checker = jsonschema.Draft202012Validator
        validator = checker(schema, format_checker=checker.FORMAT_CHECKER)
        for _ in range(answers):
            try:
                tokens = self._drawing.answer(matcher.copy(), chance)
            except LocalInferError as error:
                counts.wrong.append({"schema": schema, "error": error.message[:200]})
                continue
            if tokens is None:
                counts.unfinished += 1
                continue
            counts.answers += 1
            text = self._tokenizer.decode(tokens, strip_prefix=False)
            try:
                found = next(validator.iter_errors(json.loads(text)), None)
            except ValueError as error:
                found = error
            if found is not None:
                counts.wrong.append({"schema": schema, "answer": text, "error": str(found)[:200]})

    def suite(self, folder: Path, counts: Counts) -> None:
        """Tries every instance of the public suite, whose sources are unpacked in a folder."""
        for draft, name, case in _cases(folder):
            matcher = self.matcher(case["schema"], counts)
            for test in case["tests"] if matcher is not None else ():
                assert matcher is not None
                orders = itertools.islice(_orders(test["data"]), _ORDERS)
                taken = any(self._takes(matcher, json.dumps(each, ensure_ascii=False)) for each in orders)
                told = {"where": f"{draft}/{name}", "schema": case["schema"], "instance": test["data"]}
                if taken and not test["valid"]:
                    counts.wrong.append(told)
                elif test["valid"] and not taken:
                    counts.narrower.append(told)
                elif taken:
                    counts.accepted += 1
                else:
                    counts.rejected += 1

    def _takes(self, matcher: Matcher, text: str) -> bool:
        matcher = matcher.copy()
        for byte in text.encode("utf-8", "replace"):
            token = self._bytes[byte]
            assert token is not None
            if matcher.complete or not matcher.take(token):
                return False
        return matcher.accepting or matcher.complete


def random_checks(count: int, seed: int) -> Counts:
    """Draws so many schemas, and two answers of each."""
    counts, checks, schemas, chance = Counts(), SchemaChecks(), RandomSchemas(seed), random.Random(seed)
    for _ in range(count):
        checks.draw(schemas.draw(), counts, chance)
    return counts


def download_suite(folder: Path) -> Path:
    """Fetches and unpacks the suite, unless it is there. RuntimeError if it cannot be fetched."""
    archive = folder / f"{PACKAGE}-{VERSION}.tar.gz"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = ["--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}"]
        command = [sys.executable, "-m", "pip", "download", "-q", "--timeout", "5", "--retries", "0", "-d", folder]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True)
        if done.returncode or not archive.exists():
            raise RuntimeError(f"{PACKAGE} {VERSION} cannot be downloaded: {' '.join(done.stderr.split())[-200:]}")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{archive} is not what it was: its SHA-256 is {found}")
    suite = folder / f"{PACKAGE}-{VERSION}" / "json" / "tests"
    if not suite.is_dir():
        with tarfile.open(archive) as packed:
            inside = [member for member in packed if "/json/tests/" in member.name]
            packed.extractall(folder, inside, filter="data")
    return suite


def _cases(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for draft in DRAFTS:
        for path in sorted((folder / draft).rglob("*.json")):
            inside = path.relative_to(folder / draft).parts
            if len(inside) == 1 or inside[1] in _OPTIONAL or inside[1] == "format":
                for case in json.loads(path.read_text(encoding="utf-8")):
                    yield draft, "/".join(inside), case


def _orders(value: Any) -> Iterator[Any]:
    """The value with the members of its objects in every order."""
    if isinstance(value, dict) and len(value) <= 5:
        members = [[(key, each) for each in _orders(inner)] for key, inner in value.items()]
        for order in itertools.permutations(members):
            for chosen in itertools.product(*order):
                yield dict(chosen)
    elif isinstance(value, list) and len(value) <= 5:
        for items in itertools.product(*[list(itertools.islice(_orders(inner), 50)) for inner in value]):
            yield list(items)
    else:
        yield value


def _reason(message: str) -> str:
    """A refusal without what is particular to one schema."""
    words = message.removeprefix("the JSON schema cannot be used: ")
    return words.split(": ")[0][:60] if "Unimplemented" not in words else words[:90]
