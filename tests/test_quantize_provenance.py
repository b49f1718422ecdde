"""Provenance is read from files that anybody may have made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localinfer.errors import FormatError
from localinfer.quantize.provenance import (
    KEY,
    Provenance,
    Source,
    SourceFile,
    TensorRecord,
    from_json,
    padded,
    read_provenance,
    room_for,
    sidecar_text,
    statement,
    width_in_json,
)

FILE = SourceFile("model.safetensors", 123, "ab" * 32)
WHOLE = Provenance(
    "1.2.3",
    Source("model", (FILE,), "owner/model", "c0ffee"),
    {"name": "q4_k_m"},
    {"sha256": "cd" * 32, "feedback": True},
    {"a.weight": TensorRecord("Q4_K", "feedback-1", True, "BF16", "01" * 32, "23" * 32)},
    {"kl_mean": {"value": 0.25, "error": None}},
)


def test_what_is_written_is_read_again() -> None:
    assert from_json(WHOLE.to_json(), "x") == WHOLE
    assert read_provenance({KEY: WHOLE.to_json() + "   "}, "x") == WHOLE
    assert read_provenance({}, "x") is None


def test_blanks_keep_the_length_of_a_header() -> None:
    draft = Provenance("1.2.3", WHOLE.source, WHOLE.recipe, WHOLE.calibration, WHOLE.tensors)
    for width in (len, width_in_json):
        room = room_for(draft, width)
        texts = [padded(draft, room, width), padded(WHOLE, room, width)]
        assert {width(text) for text in texts} == {room}
        assert [from_json(text, "x") for text in texts] == [draft, WHOLE]
    with pytest.raises(ValueError, match="does not fit"):
        padded(WHOLE, 10)


def test_the_statement_names_what_was_made_and_of_what() -> None:
    made = SourceFile("out.gguf", 5, "ef" * 32)
    found = statement(WHOLE, [made])
    assert found["subject"] == [{"name": "out.gguf", "digest": {"sha256": "ef" * 32}}]
    (used,) = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert used == {
        "name": "model.safetensors",
        "digest": {"sha256": "ab" * 32},
        "uri": "pkg:huggingface/owner/model@c0ffee",
    }
    assert json.loads(sidecar_text(WHOLE, [made]))["files"][0]["sha256"] == "ef" * 32


def paths_into(value: Any) -> list[tuple[Any, ...]]:
    """The way to every value inside a JSON value."""
    if isinstance(value, dict):
        return [(key, *rest) for key, item in value.items() for rest in [(), *paths_into(item)]]
    if isinstance(value, list):
        return [(i, *rest) for i, item in enumerate(value) for rest in [(), *paths_into(item)]]
    return []


@pytest.mark.parametrize("way", paths_into(json.loads(WHOLE.to_json())), ids=str)
@pytest.mark.parametrize("other", [None, 7, "text", [], {}, [[]], True], ids=repr)
def test_a_value_of_another_kind_is_refused_or_harmless(way: tuple[Any, ...], other: Any) -> None:
    data = json.loads(WHOLE.to_json())
    inner = data
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = other
    check(json.dumps(data))
    del inner[way[-1]]
    check(json.dumps(data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_any_other_json_is_refused(value: Any) -> None:
    check(json.dumps(value))


@given(st.text(max_size=30))
def test_any_other_text_is_refused(text: str) -> None:
    check(text)


def check(text: str) -> None:
    """FormatError, or something whose parts have the kinds that they say."""
    try:
        found = from_json(text, "file.gguf")
    except FormatError:
        return
    assert isinstance(found.version, str)
    assert isinstance(found.source.name, str)
    assert all(isinstance(file.sha256, str) and isinstance(file.size, int) for file in found.source.files)
    assert all(isinstance(r.type, str) and isinstance(r.method, str) for r in found.tensors.values())
    assert found.to_json()
