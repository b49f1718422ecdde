"""`localinfer quantize`, from a source to a published file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from localinfer import __version__
from localinfer.checkpoints import open_model
from localinfer.errors import LocalInferError
from localinfer.formats.gguf_writer import GGUFWriter
from localinfer.formats.model_file import ModelFile
from localinfer.quantize.convert import Calibration, Job, default_method, make_job
from localinfer.quantize.provenance import (
    UNKNOWN_HASH,
    Provenance,
    SourceFile,
    padded,
    room_for,
    sidecar_path,
    sidecar_text,
    statement,
)
from localinfer.quantize.recipes import ALIASES, Choice, choose, find_recipe
from localinfer.quantize.source import (
    begin_hashing,
    describe_source,
    identities,
    is_quantized,
    shape_of,
    source_files,
    weights_in,
)
from localinfer.quantize.work import WorkFile, file_sha256, write_whole
from localinfer.quantize.write_gguf import check_room, fingerprint, layout_of, records, write_tensors


class Report(Protocol):
    """Who is told about the work."""

    def say(self, text: str) -> None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    source     a .gguf file, or a folder with config.json and safetensors
    to         a recipe's name
    output     the file to write; None names it after the source and the recipe, in the current folder
    threads    0: one per processor that this process may use
    force      overwrite `output`
    report     measure the quality, and write it into the file
    statement  write an in-toto statement as well
    """

    source: Path
    to: str
    output: Path | None = None
    threads: int = 0
    force: bool = False
    report: bool = True
    statement: bool = False


@dataclass(frozen=True)
class Result:
    """What was made. `weights` counts all of them, `seconds` is the whole time, measuring quality excluded."""

    path: Path
    size: int
    weights: int
    seconds: float
    choices: Sequence[Choice]
    provenance: Provenance

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size / self.weights


def quantize(wishes: Wishes, report: Report) -> Result:
    """Makes a GGUF file. LocalInferError, with nothing under the final name, if it cannot be made."""
    recipe = find_recipe(wishes.to)
    name = ALIASES.get(wishes.to.lower(), wishes.to.lower())
    output = wishes.output or default_output(wishes.source, name)
    refuse_existing(output, wishes.force)
    with open_model(wishes.source) as model:
        if is_quantized(model):
            report.say(_requantizing(wishes.source))
        choices = choose(recipe, model.tensors, shape_of(model))
        for choice in choices:
            if choice.reason:
                report.say(f"{choice.name}: {choice.type}, because {choice.reason}")
        jobs = [make_job(model.tensor(c.name), c, Calibration(), default_method()) for c in choices]
        return _write(wishes, model, jobs, recipe.file_type, {"name": name}, output, report)


def _write(
    wishes: Wishes,
    model: ModelFile,
    jobs: Sequence[Job],
    file_type: int,
    recipe: dict[str, Any],
    output: Path,
    report: Report,
) -> Result:
    started = time.monotonic()
    threads = wishes.threads or len(os.sched_getaffinity(0))
    files = source_files(model, wishes.source)
    marks = identities(files)
    unknown = tuple(SourceFile(mark.name, mark.size, UNKNOWN_HASH) for mark in marks)
    draft = Provenance(__version__, describe_source(wishes.source, unknown), recipe, None, records(jobs, {}))
    room = room_for(draft)
    layout = layout_of(model, jobs, file_type, padded(draft, room))
    check_folder(output)
    with (
        ThreadPoolExecutor(1, "hash") as hasher,
        WorkFile(output, fingerprint(jobs, layout, marks, None)) as work,
    ):
        if work.finished:
            report.say(f"going on with {work.path.name}: {len(work.finished)} of {len(jobs)} tensors are there")
        check_room(output, layout.size, work.present)
        hashing = begin_hashing(files, hasher)
        with GGUFWriter(work.path, layout) as writer:
            hashes = write_tensors(model, jobs, work, writer, threads, report.progress)
            known = tuple(future.result() for future in hashing)
            if identities(files) != marks:
                raise LocalInferError(f"{wishes.source} was changed while it was read", "run the command again")
            made = replace(draft, source=describe_source(wishes.source, known), tensors=records(jobs, hashes))
            writer.write_header(layout_of(model, jobs, file_type, padded(made, room)))
            seconds = time.monotonic() - started
            made = replace(made, quality=_quality(wishes, work.path, report))
            writer.write_header(layout_of(model, jobs, file_type, padded(made, room)))
            writer.flush()
        _describe(wishes, made, work.path, output)
        refuse_existing(output, wishes.force)
        work.publish()
    return Result(output, layout.size, weights_in(model), seconds, [job.choice for job in jobs], made)


def _quality(wishes: Wishes, path: Path, report: Report) -> dict[str, Any]:
    return {"skipped": "not asked for"}


def _describe(wishes: Wishes, made: Provenance, path: Path, output: Path) -> None:
    """Writes what lies beside the file."""
    files = [SourceFile(output.name, path.stat().st_size, file_sha256(path))]
    write_whole(sidecar_path(output), sidecar_text(made, files))
    if wishes.statement:
        import json

        text = json.dumps(statement(made, files), indent=1) + "\n"
        write_whole(output.with_name(output.name + ".intoto.json"), text)


def default_output(source: Path, recipe: str) -> Path:
    """NAME-Q4_K_M.gguf in the current folder; what the source's name says about its own type is dropped."""
    stem = source.resolve().name if source.is_dir() else source.stem
    for suffix in ("-f32", "-f16", "-bf16", ".f32", ".f16", ".bf16"):
        if stem.lower().endswith(suffix):
            stem = stem[: -len(suffix)]
            break
    return Path(f"{stem}-{recipe.upper()}.gguf")


def refuse_existing(path: Path, force: bool) -> None:
    """LocalInferError if a file would be overwritten that nobody said may be."""
    if path.is_dir():
        raise LocalInferError(f"{path} is a folder", "name a file with --output")
    if path.exists() and not force:
        raise LocalInferError(f"{path} exists", "--force overwrites it, --output names another file")


def check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise LocalInferError(f"{path.parent} is no folder", "make it first, or name another file with --output")


def _requantizing(source: Path) -> str:
    return (
        f"{source} is quantized already: the result gets the errors of both. Better quantize from the model's original "
        "weights (F16, BF16 or F32), if you can have them."
    )
