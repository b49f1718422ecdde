"""JSON schemas: answers drawn at random fit them, and the public suite's instances that do not fit are not let through.

scripts/schemas.py does the same with 10,000 schemas.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localinfer.errors import UnsupportedError
from localinfer.text.json_schemas import enforceable
from schema_checks import Counts, SchemaChecks, download_suite, random_checks

# What constraints are narrower in than the drafts: numbers in another spelling, formats that would be notes only, rare
# forms of addresses, leap seconds.
NARROWER = 61


def test_answers_drawn_at_random_fit_their_schemas() -> None:
    counts = random_checks(400, seed=11)
    assert counts.wrong == []
    assert counts.answers > 500
    assert counts.unfinished < counts.answers / 10


@pytest.mark.network
def test_the_public_suite_agrees(tmp_path: Path) -> None:
    try:
        folder = download_suite(tmp_path)
    except RuntimeError as error:
        pytest.skip(str(error))
    counts = Counts()
    SchemaChecks().suite(folder, counts)
    assert counts.wrong == []
    assert counts.accepted > 600
    assert counts.rejected > 500
    assert len(counts.narrower) <= NARROWER, counts.narrower


KIND: dict[str, Any] = {"type": "object", "required": ["kind"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        ({"maxLength": 3.0}, {"maxLength": 3}),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}),
        ({"type": "object", "propertyNames": {"type": "string"}}, {"type": "object"}),
        ({"type": ["integer", "null"], "format": "int64"}, {"type": ["integer", "null"]}),
        ({"properties": {"format": {"maxItems": 1.0}}}, {"properties": {"format": {"maxItems": 1}}}),
        ({"enum": [{"format": "x", "maxItems": 1.0}]}, {"enum": [{"format": "x", "maxItems": 1.0}]}),
        (
            {"oneOf": [{**KIND, "properties": {"kind": {"const": name}}} for name in "ab"], "discriminator": {}},
            {"anyOf": [{**KIND, "properties": {"kind": {"const": name}}} for name in "ab"]},
        ),
        (
            {"oneOf": [{**KIND, "properties": {"kind": {"const": "a"}}}] * 2},
            {"oneOf": [{**KIND, "properties": {"kind": {"const": "a"}}}] * 2},
        ),
    ],
)
def test_schemas_are_rewritten_where_that_changes_nothing(schema: Any, expected: Any) -> None:
    assert enforceable(schema) == expected


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "false"),
        ({"contentEncoding": "base64"}, "contentEncoding"),
        ({"$ref": "#/$defs/a", "$id": "b"}, r"\$id beside"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}}, "itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "never end"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "never end"),
    ],
)
def test_what_makes_no_sense_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        enforceable(schema)


def test_trees_and_lists_of_themselves_are_fine() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}}, "required": ["n"]}
    assert enforceable(tree) == tree
    assert enforceable({"type": "array", "items": {"$ref": "#"}})
