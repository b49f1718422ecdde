"""What is quantized: the model, the hashes of its files, and where on the hub they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from localinfer.formats.model_file import ModelFile
from localinfer.quantize.provenance import Source, SourceFile
from localinfer.quantize.recipes import Shape
from localinfer.quantize.work import file_sha256

# The hub's cache: models--owner--name/snapshots/<revision>/<file>.
_SNAPSHOT = re.compile(r".*/models--(?P<repository>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})(/.*)?", re.DOTALL)


@dataclass(frozen=True)
class SourceIdentity:
    """Cheap marks by which a changed source is noticed before anything is hashed."""

    name: str
    size: int
    modified: int


def source_files(model: ModelFile, path: Path) -> list[Path]:
    """The files that the result depends on: those of the weights, and beside a checkpoint's its JSON and vocabulary."""
    folder = path if path.is_dir() else path.parent
    weights = list(model.paths)
    if path.suffix == ".gguf":
        return weights
    beside = [
        name
        for pattern in ("*.json", "*.model", "*.jinja")
        for name in sorted(folder.glob(pattern))
        if name.is_file() and not name.name.endswith(".provenance.json")
    ]
    return list(dict.fromkeys([*weights, *beside]))


def identities(files: Sequence[Path]) -> list[SourceIdentity]:
    return [SourceIdentity(f.name, (stat := f.stat()).st_size, stat.st_mtime_ns) for f in files]


class Hashing:
    """Hashes files beside other work. Use it in a `with` statement; it stops where the block ends early."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._stop = Event()
        self._pool = ThreadPoolExecutor(1, "hash")
        self._files = [self._pool.submit(self._hashed, file) for file in files]

    def result(self) -> tuple[SourceFile, ...]:
        """Waits for the hashes. LocalInferError if a file cannot be read."""
        return tuple(future.result() for future in self._files)

    def _hashed(self, path: Path) -> SourceFile:
        return SourceFile(path.name, path.stat().st_size, file_sha256(path, self._stop.is_set))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


def describe_source(path: Path, files: tuple[SourceFile, ...]) -> Source:
    """Repository and revision are read from the path, or from where it leads, if that is in the hub's cache."""
    here = path.absolute()
    while (match := _SNAPSHOT.fullmatch(str(here))) is None and here.is_symlink():
        here = here.parent / here.readlink()
    name = here.resolve().name if path.is_dir() else here.name
    if match is None:
        return Source(name, files)
    return Source(name, files, match["repository"].replace("--", "/", 1), match["revision"])


def shape_of(model: ModelFile) -> Shape:
    """What recipes want to know about a model."""
    metadata = model.metadata
    architecture = metadata.get_str("general.architecture", "")
    heads = _first(metadata, f"{architecture}.attention.head_count", 1)
    return Shape(
        layers=_first(metadata, f"{architecture}.block_count", 1),
        queries_per_key=heads // max(1, _first(metadata, f"{architecture}.attention.head_count_kv", heads)),
        experts=_first(metadata, f"{architecture}.expert_count", 0),
        tied="output.weight" not in model.tensors,
    )


def is_quantized(model: ModelFile) -> bool:
    """Whether weights of the source were quantized before."""
    return any(tensor.type.block_size > 1 for tensor in model.tensors.values())


def weights_in(model: ModelFile) -> int:
    """How many weights all tensors have."""
    return sum(t.nbytes // t.type.block_bytes * t.type.block_size for t in model.tensors.values())


def _first(metadata: Mapping[str, object], key: str, default: int) -> int:
    """An integer that some models have per layer."""
    value = metadata.get(key, default)
    if isinstance(value, int):
        return value
    try:
        return max(int(item) for item in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return default
