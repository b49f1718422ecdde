"""Where a quantized file comes from: one JSON text in the file itself, and the same beside it.

In a GGUF file it is the value of the key `localinfer.provenance`, in a safetensors file an entry of that name in
`__metadata__`. Trailing blanks are part of its value there: the header keeps its length while numbers are filled in.
`FILE.provenance.json` beside the file says the same, with the hash of the file as well. docs/quantize.md explains every
field to those who read one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localinfer.errors import FormatError

KEY = "localinfer.provenance"
SCHEMA = 1
UNKNOWN_HASH = "0" * 64  # of a tensor that is not made yet
_REPORT_ROOM = 2048  # bytes kept for the quality report, which is measured when everything else is written
_HINT = "the file may be damaged, or made by a newer version: update localinfer"


@dataclass(frozen=True)
class SourceFile:
    """A file that was read; `name` is its path within the model's folder."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """What was quantized. `repository` and `revision` are those of the hub, "" where the files did not come from it."""

    name: str
    files: tuple[SourceFile, ...]
    repository: str = ""
    revision: str = ""


@dataclass(frozen=True)
class TensorRecord:
    """How one tensor was made. Hashes are of a tensor's bytes as they lie in the source, and in the result.

    method         an algorithm, for ever: "copy", "cast", "search-1", ...
    calibrated     whether the calibration statistics were used
    source_sha256  of the tensor's bytes as `open_model` presents the source (rows permuted where llama.cpp's are)
    """

    type: str
    method: str
    calibrated: bool
    source_type: str
    source_sha256: str
    sha256: str


@dataclass(frozen=True)
class Provenance:
    """Everything that re-deriving the file needs, and what was measured on it.

    recipe       {"name": "q4_k_m" or "4.2bpw", ...}; for mixed precision with what led to the types
    calibration  {"sha256": of the statistics' values, "text_sha256": ..., "tokens": ..., ...}, or None
    quality      a report as `localinfer eval` measures it, {"skipped": why}, or None while it is not measured yet
    """

    version: str
    source: Source
    recipe: Mapping[str, Any]
    calibration: Mapping[str, Any] | None
    tensors: Mapping[str, TensorRecord]
    quality: Mapping[str, Any] | None = None
    schema: int = field(default=SCHEMA)

    def to_json(self) -> str:
        """One line, keys in a fixed order, ASCII."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "tool": f"localinfer {self.version}",
            "source": asdict(self.source) | {"files": [asdict(file) for file in self.source.files]},
            "recipe": dict(self.recipe),
            "calibration": None if self.calibration is None else dict(self.calibration),
            "quality": None if self.quality is None else dict(self.quality),
            "tensors": {name: asdict(record) for name, record in self.tensors.items()},
        }


def from_json(text: str, where: str) -> Provenance:
    """Reads what `to_json` wrote; `where` names the file for messages. FormatError if it is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: the provenance is no JSON: {error}", _HINT) from error
    try:
        if found["schema"] != SCHEMA:
            raise FormatError(f"{where}: the provenance has schema {found['schema']!r}, not {SCHEMA}", _HINT)
        source = found["source"]
        files = tuple(SourceFile(**file) for file in source["files"])
        provenance = Provenance(
            version=found["tool"].removeprefix("localinfer "),
            source=Source(source["name"], files, source["repository"], source["revision"]),
            recipe=found["recipe"],
            calibration=found["calibration"],
            tensors={name: TensorRecord(**record) for name, record in found["tensors"].items()},
            quality=found["quality"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{where}: the provenance lacks what it should have: {error}", _HINT) from error
    _check(provenance, where)
    return provenance


def _check(provenance: Provenance, where: str) -> None:
    """Refuses values of wrong kinds: the text comes with a file that anybody may have made."""
    texts = [provenance.version, provenance.source.name, provenance.source.repository, provenance.source.revision]
    for file in provenance.source.files:
        texts += [file.name, file.sha256]
    for record in provenance.tensors.values():
        texts += [record.type, record.method, record.source_type, record.source_sha256, record.sha256]
    maps = [provenance.recipe, provenance.calibration or {}, provenance.quality or {}]
    right = (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(value, dict) for value in maps)
        and all(type(file.size) is int for file in provenance.source.files)
        and all(isinstance(record.calibrated, bool) for record in provenance.tensors.values())
    )
    if not right:
        raise FormatError(f"{where}: the provenance has values of the wrong kind", _HINT)


def room_for(provenance: Provenance, width: Callable[[str], int] = len) -> int:
    """Room that is enough as well when hashes and quality report are filled in, as the header's format counts it."""
    return width(provenance.to_json()) + _REPORT_ROOM


def padded(provenance: Provenance, room: int, width: Callable[[str], int] = len) -> str:
    """The JSON with blanks behind it, so that it takes `room` in the header."""
    text = provenance.to_json()
    if width(text) > room:
        raise ValueError(f"a provenance of {width(text)} characters does not fit {room}")
    return text + " " * (room - width(text))


def width_in_json(text: str) -> int:
    """Characters that a text takes as a JSON string: quotes in it take two."""
    return len(json.dumps(text))


def read_provenance(metadata: Mapping[str, Any], where: str) -> Provenance | None:
    """What a file says about itself, from its metadata; None if it says nothing."""
    text = metadata.get(KEY)
    if text is None:
        return None
    if not isinstance(text, str):
        raise FormatError(f"{where}: {KEY} should be a text", _HINT)
    return from_json(text, where)


def sidecar_path(path: Path) -> Path:
    """Where the same stands beside a file."""
    return path.with_name(path.name + ".provenance.json")


def sidecar_text(provenance: Provenance, files: list[SourceFile]) -> str:
    """The provenance for people, and the hashes of the files themselves, which cannot stand inside them."""
    return json.dumps({"files": [asdict(file) for file in files]} | provenance.to_dict(), indent=1) + "\n"


def statement(provenance: Provenance, files: list[SourceFile]) -> dict[str, Any]:
    """An in-toto statement (in-toto.io/Statement/v1) with SLSA's provenance as its predicate, to be signed."""
    recipe = {"recipe": dict(provenance.recipe), "calibration": provenance.calibration}
    repository = provenance.source.repository
    where = f"pkg:huggingface/{repository}@{provenance.source.revision}" if repository else ""
    sources = [
        {"name": file.name, "digest": {"sha256": file.sha256}} | ({"uri": where} if where else {})
        for file in provenance.source.files
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": file.sha256}} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"urn:localinfer:quantize:{SCHEMA}",
                "externalParameters": recipe,
                "resolvedDependencies": sources,
            },
            "runDetails": {"builder": {"id": f"urn:localinfer:{provenance.version}"}},
        },
    }
