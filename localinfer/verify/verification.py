"""`localinfer verify`, from a file to a report."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from localinfer.checkpoints import is_checkpoint, open_model
from localinfer.errors import UnsupportedError
from localinfer.formats.model_file import ModelFile
from localinfer.formats.safetensors import open_safetensors
from localinfer.kernels.base import Tensor
from localinfer.quantize.calibrate import DEFAULT, Known, calibration_text, known_from
from localinfer.quantize.provenance import KEY, Provenance, read_provenance
from localinfer.quantize.source import source_files
from localinfer.verify.derive import calibrated_quantizers, derived_again, false_claim, is_claimed, tells_of_feedback
from localinfer.verify.examine import Finding, Tally, Verdict, examine
from localinfer.verify.hashes import Check, Hashed, check_files, check_sources, check_tensors
from localinfer.verify.limits import measure_limits
from localinfer.verify.pair import Pair
from localinfer.verify.report import Report, TensorReport
from localinfer.verify.sample import chunks_of

_DROP_AFTER = 256 << 20  # bytes that may stay mapped
# Told about the file, or about how it was quantized.
_NOT_COMPARED = ("split.", "quantize.", "localinfer.", "general.file_type", "general.quantization_", "general.name")
# A head that is the embedding table stands only once in some files.
_SAME_MATRIX = {"output.weight": "token_embd.weight"}


class Watcher(Protocol):
    """Who is told how far the work is, in bytes, and what else there is to say."""

    def say(self, text: str) -> None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    path       the file: .gguf, or a folder with safetensors
    source     what it is said to be made from: of the same kinds; None checks hashes only
    calibrate  the statistics that it was calibrated with, as `localinfer quantize --calibrate` takes them
    share      of the rows to look at; 1 is all
    seed       chooses them
    threads    0: one per processor that this process may use
    limits     measure what changes would have been found
    """

    path: Path
    source: Path | None = None
    calibrate: str = ""
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
        stored = opened.enter_context(open_safetensors(wishes.path)) if is_checkpoint(wishes.path) else None
        tensors: Mapping[str, Hashed] = stored.tensors if stored else file.tensors
        notes: list[str] = []
        provenance = read_provenance(stored.metadata if stored else file.metadata, str(wishes.path))
        if provenance and stored is None and _is_of_another_file(provenance, file):
            notes.append("its provenance is that of a file with other types, which it was made from or pretends to be")
            provenance = None
        checks = _check_hashes(file.paths, tensors, provenance, pool, watcher) if wishes.share >= 1 else []
        told = {check.name for check in checks if check.kind == "tensor"}
        notes += [f"no hash is known of tensor {name}" for name in tensors if told and name not in told]
        found: dict[str, Any] = {}
        if wishes.source is not None:
            source = opened.enter_context(open_model(wishes.source))
            if provenance and wishes.share >= 1:
                checks += check_sources(provenance, source_files(source, wishes.source))
            comparison = _Comparison(file, source, provenance, wishes, pool, watcher)
            found["tensors"] = comparison.tensors()
            found["metadata"] = _metadata_differences(file, source)
            notes += comparison.notes
            if wishes.limits:
                found["limits"] = measure_limits(comparison.consistent, wishes.seed)
        return Report(
            path=str(wishes.path),
            source="" if wishes.source is None else str(wishes.source),
            share=wishes.share,
            seed=wishes.seed,
            checks=checks,
            provenance=_told(provenance),
            notes=notes,
            **found,
        )


def _is_of_another_file(provenance: Provenance, file: ModelFile) -> bool:
    """Whether most of the bytes are in tensors of other types than the provenance says.

    Programs that quantize a file copy its metadata, and with it a provenance that is not theirs.
    """
    other = sum(
        tensor.nbytes
        for name, tensor in file.tensors.items()
        if name not in provenance.tensors or provenance.tensors[name].type != tensor.type.name
    )
    return other * 2 > sum(tensor.nbytes for tensor in file.tensors.values())


def _check_hashes(
    paths: tuple[Path, ...],
    tensors: Mapping[str, Hashed],
    provenance: Provenance | None,
    pool: Executor,
    watcher: Watcher,
) -> list[Check]:
    checks = check_files(paths)
    if provenance:
        done, lock = 0, Lock()
        total = sum(tensor.nbytes for tensor in tensors.values())

        def add(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                watcher.progress("hashing", done, total)

        checks += check_tensors(provenance, tensors, "the provenance", pool, add)
    return checks


def _told(provenance: Provenance | None) -> dict[str, object] | None:
    """What a file says of its origin, without the list of its tensors."""
    if provenance is None:
        return None
    told = provenance.to_dict()
    del told["tensors"]
    return told


class _Comparison:
    """All tensors of a file with those of a source.

    consistent   pairs that have room for doubt, with what was found
    notes        what could not be done
    """

    def __init__(
        self,
        file: ModelFile,
        source: ModelFile,
        provenance: Provenance | None,
        wishes: Wishes,
        pool: Executor,
        watcher: Watcher,
    ) -> None:
        assert wishes.source is not None
        self._file, self._source, self._source_path = file, source, wishes.source
        self._provenance = provenance
        self._wishes = wishes
        self._pool = pool
        self._watcher = watcher
        self.consistent: list[tuple[Pair, Finding]] = []
        self.notes: list[str] = []
        self._known = self._statistics()

    def _statistics(self) -> Known:
        """The calibration statistics that the file was made with."""
        recorded = self._provenance.calibration if self._provenance else None
        if recorded is None:
            return Known()
        if not self._wishes.calibrate:
            more = "default makes them again" if _is_default_text(recorded) else "names their statistics"
            self.notes.append(f"tensors that were calibrated were not made again: --calibrate {more}")
            return Known()
        feedback = bool(recorded.get("feedback"))
        known = known_from(self._wishes.calibrate, self._source, feedback, self._wishes.threads, self._watcher)
        if known.statistics is None or known.statistics.sha256 != recorded.get("sha256"):
            self.notes.append("the statistics of --calibrate are not those that the file was made with")
            return Known()
        return known

    def tensors(self) -> list[TensorReport]:
        derived, false = self._derived()
        reports, done, mapped = [], 0, 0
        total = sum(tensor.nbytes for tensor in self._file.tensors.values())
        for name, tensor in self._file.tensors.items():
            self._watcher.progress("comparing", done, total)
            partner = self._partner(name)
            if name in derived and partner is not None:
                found = Finding(Verdict.IDENTICAL, derived[name])
                rows = math.prod(tensor.shape[:-1])
                reports.append(TensorReport(name, tensor.type.name, partner.type.name, rows, rows, found))
            else:
                reports.append(self._report(tensor, partner, false.get(name, "")))
            done += tensor.nbytes
            mapped += tensor.nbytes + (partner.nbytes if partner else 0)
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

    def _derived(self) -> tuple[dict[str, str], dict[str, str]]:
        """Tensors of a folder of ours that came out the same when made again, by how; and those with false records."""
        if self._provenance is None or self._wishes.share < 1 or not is_checkpoint(self._wishes.path):
            return {}, {}

        def progress(done: int, total: int) -> None:
            self._watcher.progress("making again", done, total)

        return derived_again(
            self._wishes.path, self._source_path, self._source, self._provenance, self._known, self._pool, progress
        )

    def _partner(self, name: str) -> Tensor | None:
        return self._source.tensors.get(name) or self._source.tensors.get(_SAME_MATRIX.get(name, ""))

    def _stands_elsewhere(self, name: str) -> bool:
        """A head that the source holds as a matrix of its own though it is its embedding table."""
        other = _SAME_MATRIX.get(name, "")
        if other not in self._source.tensors:
            return False
        here, there = self._source.tensors[name], self._source.tensors[other]
        return here.type == there.type and here.buffer == there.buffer

    def _report(self, tensor: Tensor, partner: Tensor | None, false: str) -> TensorReport:
        """`false` is the method by which its record wrongly says that it was made, if that is known already."""
        if partner is None:
            return TensorReport(tensor.name, tensor.type.name, "", 0, 0, None, "the source")
        if partner.shape != tensor.shape:
            finding = Finding(Verdict.DIFFERENT, f"shape {tensor.shape} instead of {partner.shape}", tally=Tally())
            return TensorReport(tensor.name, tensor.type.name, partner.type.name, 0, 0, finding)
        pair = Pair(tensor, partner)
        chunks = chunks_of(pair, self._wishes.share, self._wishes.seed)
        record = self._provenance.tensors.get(tensor.name) if self._provenance else None
        more = calibrated_quantizers(record, self._known, tensor.name)
        try:
            finding = examine(pair, chunks, self._pool, more, tells_of_feedback(record, partner))
        except UnsupportedError as error:  # a type that nothing here can read
            finding = Finding(Verdict.UNPROVEN, error.message)
        if finding.verdict in (Verdict.CONSISTENT, Verdict.UNPROVEN):
            if record is not None and is_claimed(record, self._known, tensor.name, partner):
                false = record.method
            if false:
                finding = replace(finding, verdict=Verdict.DIFFERENT, how=false_claim(false))
        if finding.verdict is Verdict.CONSISTENT:
            self.consistent.append((pair, finding))
        seen = sum(chunk.rows for chunk in chunks)
        return TensorReport(tensor.name, tensor.type.name, partner.type.name, pair.rows, seen, finding)


def _is_default_text(calibration: Mapping[str, Any]) -> bool:
    """Whether statistics are of the text that comes with localinfer."""
    text = calibration_text(DEFAULT)
    return calibration.get("text_sha256") == hashlib.sha256(text.encode()).hexdigest()


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
    if isinstance(one, Iterable) and isinstance(other, Iterable) and not isinstance(one, str):
        return list(one) == list(other)
    return bool(one == other)
