"""Every hash that a file carries, compared with what is there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from localinfer.errors import FormatError
from localinfer.quantize.provenance import Provenance, from_json, sidecar_path
from localinfer.quantize.work import file_sha256

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Hashed(Protocol):
    """A tensor as it lies in a file."""

    @property
    def nbytes(self) -> int: ...
    @property
    def buffer(self) -> memoryview: ...


@dataclass(frozen=True)
class Check:
    """One hash: what it is of, who says it, and whether it is right. `found` is "" where nothing is there to be hashed.

    kind   "tensor", "file", or "source file"
    """

    kind: str
    name: str
    told_by: str
    expected: str
    found: str

    @property
    def right(self) -> bool:
        return self.expected == self.found


def check_tensors(
    provenance: Provenance, tensors: Mapping[str, Hashed], told_by: str, pool: Executor, done: Callable[[int], None]
) -> list[Check]:
    """The hash of every tensor of the file, against its provenance; tensors that it does not tell have no check."""

    def check(name: str) -> Check:
        tensor = tensors.get(name)
        found = "" if tensor is None else hashlib.sha256(tensor.buffer).hexdigest()
        done(0 if tensor is None else tensor.nbytes)
        return Check("tensor", name, told_by, provenance.tensors[name].sha256, found)

    return list(pool.map(check, provenance.tensors))


def check_files(paths: tuple[Path, ...]) -> list[Check]:
    """The files themselves: against the provenance beside them, and where they lie in the hub's cache against that."""
    checks = []
    for path in paths:
        expected = {**_sidecar(path), **_cached(path)}
        if expected:
            found = file_sha256(path)
            checks += [Check("file", path.name, who, told, found) for who, told in expected.items()]
    return checks


def check_sources(provenance: Provenance, paths: Sequence[Path]) -> list[Check]:
    """The files of a source, against what the provenance says of those of the same name."""
    here = {path.name: path for path in paths}
    return [
        Check("source file", file.name, "the provenance", file.sha256, file_sha256(here[file.name]))
        for file in provenance.source.files
        if file.name in here
    ]


def read_sidecar(path: Path) -> tuple[Provenance, dict[str, str]] | None:
    """The provenance beside a file, and the hashes of files that it tells by name; None if there is none."""
    beside = sidecar_path(path)
    if not beside.is_file():
        return None
    text = beside.read_text(encoding="utf-8", errors="replace")
    provenance = from_json(text, str(beside))
    files: Any = json.loads(text).get("files")
    try:
        return provenance, {str(file["name"]): str(file["sha256"]) for file in files or []}
    except (KeyError, TypeError) as error:
        raise FormatError(f"{beside}: the list of files is damaged", "delete it, or get it again") from error


def _sidecar(path: Path) -> dict[str, str]:
    found = read_sidecar(path)
    if found is None or path.name not in found[1]:
        return {}
    return {sidecar_path(path).name: found[1][path.name]}


def _cached(path: Path) -> dict[str, str]:
    """The hub's cache names the file that a link in it leads to by its hash."""
    real = path.resolve()
    if real != path.absolute() and real.parent.name == "blobs" and _SHA256.fullmatch(real.name):
        return {"the hub": real.name}
    return {}
