"""`localinfer quantize`, from a source to a published file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from localinfer import __version__
from localinfer.checkpoints import open_model
from localinfer.errors import LocalInferError
from localinfer.formats.file_writer import FileLayout, FileWriter
from localinfer.quantize.convert import GGUFJob
from localinfer.quantize.gguf_output import layout_of, records
from localinfer.quantize.provenance import (
    UNKNOWN_HASH,
    Provenance,
    SourceFile,
    TensorRecord,
    padded,
    room_for,
    sidecar_path,
    sidecar_text,
    statement,
)
from localinfer.quantize.recipes import ALIASES, choose, find_recipe
from localinfer.quantize.source import (
    begin_hashing,
    describe_source,
    identities,
    is_quantized,
    shape_of,
    source_files,
    weights_in,
)
from localinfer.quantize.stream import Hashes, Job, Source, write_tensors
from localinfer.quantize.work import WorkFile, file_sha256, write_whole


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
    """What was made. `weights` counts all of them; `types`: bytes by type; `seconds` excludes measuring quality."""

    path: Path
    size: int
    weights: int
    seconds: float
    types: dict[str, tuple[int, int]]  # type → tensors, bytes
    provenance: Provenance

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size / self.weights


@dataclass(frozen=True)
class Product:
    """A file to be made, whatever its format.

    jobs      one per tensor of the source
    layout    the file's layout, given the text of the provenance
    records   what provenance says of the tensors, given their hashes
    measure   the quality report of the file in the making
    """

    source: Source
    jobs: Sequence[Job]
    layout: Callable[[str], FileLayout]
    records: Callable[[dict[str, Hashes]], dict[str, TensorRecord]]
    measure: Callable[[Path], dict[str, Any]]
    recipe: dict[str, Any]
    calibration: dict[str, Any] | None = None


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
        jobs = [GGUFJob(model.tensor(choice.name), choice) for choice in choices]
        product = Product(
            source=model,
            jobs=jobs,
            layout=lambda text: layout_of(model, jobs, recipe.file_type, text),
            records=lambda hashes: records(jobs, hashes),
            measure=lambda path: {"skipped": "not asked for"},
            recipe={"name": name},
        )
        types: dict[str, tuple[int, int]] = {}
        for choice in choices:
            tensors, size = types.get(choice.type, (0, 0))
            types[choice.type] = (tensors + 1, size + choice.nbytes)
        made, size, seconds = make(product, wishes, source_files(model, wishes.source), output, report)
        return Result(output, size, weights_in(model), seconds, types, made)


def make(
    product: Product, wishes: Wishes, files: list[Path], output: Path, report: Report
) -> tuple[Provenance, int, float]:
    """Writes a product and what lies beside it; returns its provenance, its size, and how many seconds it took."""
    started = time.monotonic()
    marks = identities(files)
    unknown = tuple(SourceFile(mark.name, mark.size, UNKNOWN_HASH) for mark in marks)
    source = describe_source(wishes.source, unknown)
    draft = Provenance(__version__, source, product.recipe, product.calibration, product.records({}))
    room = room_for(draft)
    layout = product.layout(padded(draft, room))
    fingerprint = _digest([draft.to_dict(), [asdict(mark) for mark in marks], layout.size])
    with ThreadPoolExecutor(1, "hash") as hasher, WorkFile(output, fingerprint) as work:
        if work.finished:
            report.say(f"going on with {work.path.name}: {len(work.finished)} of {len(product.jobs)} tensors are there")
        check_room(output, layout.size - work.present)
        hashing = begin_hashing(files, hasher)
        with FileWriter(work.path, layout) as writer:
            threads = wishes.threads or len(os.sched_getaffinity(0))
            hashes = write_tensors(product.source, product.jobs, work, writer, threads, report.progress)
            known = tuple(future.result() for future in hashing)
            if identities(files) != marks:
                raise LocalInferError(f"{wishes.source} was changed while it was read", "run the command again")
            made = replace(draft, source=replace(source, files=known), tensors=product.records(hashes))
            writer.write_header(product.layout(padded(made, room)))
            seconds = time.monotonic() - started
            made = replace(made, quality=product.measure(work.path))
            writer.write_header(product.layout(padded(made, room)))
            writer.flush()
        _write_beside(wishes, made, work.path, output)
        refuse_existing(output, wishes.force)
        work.publish()
    return made, layout.size, seconds


def _write_beside(wishes: Wishes, made: Provenance, path: Path, output: Path) -> None:
    files = [SourceFile(output.name, path.stat().st_size, file_sha256(path))]
    write_whole(sidecar_path(output), sidecar_text(made, files))
    if wishes.statement:
        text = json.dumps(statement(made, files), indent=1) + "\n"
        write_whole(output.with_name(output.name + ".intoto.json"), text)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def default_output(source: Path, recipe: str) -> Path:
    """NAME-Q4_K_M.gguf in the current folder; what the source's name says about its own type is dropped."""
    stem = source.resolve().name if source.is_dir() else source.stem
    for suffix in ("-f32", "-f16", "-bf16", ".f32", ".f16", ".bf16"):
        if stem.lower().endswith(suffix):
            stem = stem[: -len(suffix)]
            break
    return Path(f"{stem}-{recipe.upper()}.gguf")


def refuse_existing(path: Path, force: bool) -> None:
    """LocalInferError if there is no folder for a file, or if one would be overwritten that nobody said may be."""
    if not path.parent.is_dir():
        raise LocalInferError(f"{path.parent} is no folder", "make it first, or name another file with --output")
    if path.is_dir():
        raise LocalInferError(f"{path} is a folder", "name a file with --output")
    if path.exists() and not force:
        raise LocalInferError(f"{path} exists", "--force overwrites it, --output names another file")


def check_room(path: Path, size: int) -> None:
    """LocalInferError if `size` bytes more do not fit the disk of `path`."""
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise LocalInferError(
            f"{path.name} needs {size / 1e9:.1f} GB, and {path.parent} has {free / 1e9:.1f} GB free",
            "free some space, or write to another disk with --output",
        )


def _requantizing(source: Path) -> str:
    return (
        f"{source} is quantized already: the result gets the errors of both. Better quantize from the model's original "
        "weights (F16, BF16 or F32), if you can have them."
    )
