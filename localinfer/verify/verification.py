"""`localinfer verify`, from a file to a report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

from localinfer.checkpoints import open_model
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Tensor
from localinfer.quantize.provenance import KEY, Provenance, read_provenance
from localinfer.verify.examine import Finding, Tally, Verdict, examine
from localinfer.verify.hashes import Check, check_files, check_sources, check_tensors
from localinfer.verify.limits import measure_limits
from localinfer.verify.pair import Pair
from localinfer.verify.report import Report, TensorReport
from localinfer.verify.sample import chunks_of

_DROP_AFTER = 256 << 20  # bytes that may stay mapped
# Told about the file, or about how it was quantized.
_NOT_COMPARED = ("split.", "quantize.", "localinfer.", "general.file_type", "general.quantization_version")
# A head that is the embedding table stands only once in some files.
_SAME_MATRIX = {"output.weight": "token_embd.weight"}


class Watcher(Protocol):
    """Who is told how far the work is, in bytes."""

    def progress(self, what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    path     the file: .gguf, or a folder with safetensors
    source   what it is said to be made from: of the same kinds; None checks hashes only
    share    of the rows to look at; 1 is all
    seed     chooses them
    threads  0: one per processor that this process may use
    limits   measure what changes would have been found
    """

    path: Path
    source: Path | None = None
    share: float = 1.0
    seed: int = 0
    threads: int = 0
    limits: bool = True


def verify(wishes: Wishes, watcher: Watcher) -> Report:
    """Looks at a file, and at its source if one is named.

    FormatError, UnsupportedError or LocalInferError if one of them cannot be read.
    """
    threads = wishes.threads or len(os.sched_getaffinity(0))
    with ExitStack() as opened:
        pool = opened.enter_context(ThreadPoolExecutor(threads, "verify"))
        file = opened.enter_context(open_model(wishes.path))
        provenance = read_provenance(dict(file.metadata.items()), str(wishes.path))
        checks = _check_hashes(file, provenance, pool, watcher) if wishes.share >= 1 else []
        if wishes.source is None:
            return Report(
                str(wishes.path), "", wishes.share, wishes.seed, checks, _told(provenance), notes=_silent(file, checks)
            )
        source = opened.enter_context(open_model(wishes.source))
        if provenance and wishes.share >= 1:
            checks += check_sources(provenance, source.paths)
        comparison = _Comparison(file, source, wishes, pool, watcher)
        tensors = comparison.tensors()
        return Report(
            str(wishes.path),
            str(wishes.source),
            wishes.share,
            wishes.seed,
            checks,
            _told(provenance),
            tensors,
            _metadata_differences(file, source),
            measure_limits(comparison.consistent, wishes.seed) if wishes.limits else (),
        )


def _check_hashes(file: ModelFile, provenance: Provenance | None, pool: Executor, watcher: Watcher) -> list[Check]:
    checks = check_files(file.paths)
    if provenance:
        done, lock = 0, Lock()
        total = sum(tensor.nbytes for tensor in file.tensors.values())

        def add(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                watcher.progress("hashing", done, total)

        checks += check_tensors(provenance, file.tensors, "the provenance", pool, add)
    return checks


def _silent(file: ModelFile, checks: Sequence[Check]) -> list[str]:
    """Tensors that no hash is known of, in a file that tells some."""
    known = {check.name for check in checks if check.kind == "tensor"}
    return [f"no hash is known of tensor {name}" for name in file.tensors if known and name not in known]


def _told(provenance: Provenance | None) -> dict[str, object] | None:
    """What a file says of its origin, without the list of its tensors."""
    if provenance is None:
        return None
    told = provenance.to_dict()
    del told["tensors"]
    return told


class _Comparison:
    """All tensors of a file with those of a source. `consistent`: pairs that have room for doubt, with their rules."""

    def __init__(self, file: ModelFile, source: ModelFile, wishes: Wishes, pool: Executor, watcher: Watcher) -> None:
        self._file, self._source = file, source
        self._wishes = wishes
        self._pool = pool
        self._watcher = watcher
        self.consistent: list[tuple[Pair, Finding]] = []

    def tensors(self) -> list[TensorReport]:
        reports, done, mapped = [], 0, 0
        total = sum(tensor.nbytes for tensor in self._file.tensors.values())
        for name, tensor in self._file.tensors.items():
            self._watcher.progress("comparing", done, total)
            reports.append(self._report(tensor, self._partner(name)))
            done, mapped = done + tensor.nbytes, mapped + tensor.nbytes
            if mapped > _DROP_AFTER:
                mapped = 0
                self._file.drop_pages()
                self._source.drop_pages()
        self._watcher.progress("comparing", total, total)
        return reports + [
            TensorReport(name, "", tensor.type.name, 0, 0, None, "the file")
            for name, tensor in self._source.tensors.items()
            if name not in self._file.tensors and not self._stands_elsewhere(name)
        ]

    def _partner(self, name: str) -> Tensor | None:
        return self._source.tensors.get(name) or self._source.tensors.get(_SAME_MATRIX.get(name, ""))

    def _stands_elsewhere(self, name: str) -> bool:
        """A head that the source holds as a matrix of its own though it is its embedding table."""
        other = _SAME_MATRIX.get(name, "")
        if other not in self._source.tensors:
            return False
        here, there = self._source.tensors[name], self._source.tensors[other]
        return here.type == there.type and here.buffer == there.buffer

    def _report(self, tensor: Tensor, partner: Tensor | None) -> TensorReport:
        if partner is None:
            return TensorReport(tensor.name, tensor.type.name, "", 0, 0, None, "the source")
        if partner.shape != tensor.shape:
            finding = Finding(Verdict.DIFFERENT, f"shape {tensor.shape} instead of {partner.shape}", tally=Tally())
            return TensorReport(tensor.name, tensor.type.name, partner.type.name, 0, 0, finding)
        pair = Pair(tensor, partner)
        chunks = chunks_of(pair, self._wishes.share, self._wishes.seed)
        finding = examine(pair, chunks, self._pool)
        if finding.verdict is Verdict.CONSISTENT:
            self.consistent.append((pair, finding))
        seen = sum(chunk.rows for chunk in chunks)
        return TensorReport(tensor.name, tensor.type.name, partner.type.name, pair.rows, seen, finding)


def _metadata_differences(file: ModelFile, source: ModelFile) -> list[str]:
    """Keys whose values differ, or that only one of the two has; what describes the file itself is left out."""
    keys = dict.fromkeys([*dict(file.metadata.items()), *dict(source.metadata.items())])
    return [
        key
        for key in keys
        if not key.startswith(_NOT_COMPARED)
        and key != KEY
        and not _equal(file.metadata.get(key), source.metadata.get(key))
    ]


def _equal(one: object, other: object) -> bool:
    if isinstance(one, str | int | float) or one is None or other is None:
        return one == other
    try:
        return list(one) == list(other)  # type: ignore[call-overload]
    except TypeError:
        return False
