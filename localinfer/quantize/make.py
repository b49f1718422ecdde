"""Making a file, whatever its format: tensors, provenance, quality report, what lies beside it; at last its name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localinfer import __version__
from localinfer.errors import LocalInferError
from localinfer.formats.file_writer import FileLayout, FileWriter
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
from localinfer.quantize.report import Report
from localinfer.quantize.source import Hashing, describe_source, identities
from localinfer.quantize.stream import Hashes, Job, Source, processors, write_tensors
from localinfer.quantize.work import WorkFile, file_sha256, write_whole


@dataclass(frozen=True)
class Product:
    """What is to be made.

    source     the tensors' model; `path` is where it lies, `files` are all that the result depends on
    jobs       one per tensor of the source
    layout     the layout of the file, given the text of its provenance, whose length in a header `width` tells
    records    what provenance says of the tensors, given their hashes
    measure    the quality report, given the file (or folder) in the making
    beside     texts and files that belong into the folder of the result, by name
    member     the name of the large file in that folder; "" if the result is one file
    """

    source: Source
    path: Path
    files: Sequence[Path]
    jobs: Sequence[Job]
    layout: Callable[[str], FileLayout]
    records: Callable[[Mapping[str, Hashes]], dict[str, TensorRecord]]
    measure: Callable[[Path], dict[str, Any]]
    recipe: Mapping[str, Any]
    calibration: Mapping[str, Any] | None = None
    beside: Mapping[str, str | Path] = field(default_factory=dict)
    member: str = ""
    width: Callable[[str], int] = len


@dataclass(frozen=True)
class Made:
    """The result."""

    provenance: Provenance
    size: int


def make(product: Product, output: Path, *, threads: int, force: bool, signed: bool, report: Report) -> Made:
    """Makes a product under the name `output`. LocalInferError, with nothing under that name, if that fails.

    `threads` 0 is one per processor that this process may use; `signed` writes an in-toto statement as well.
    """
    marks = identities(product.files)
    unknown = tuple(SourceFile(mark.name, mark.size, UNKNOWN_HASH) for mark in marks)
    source = describe_source(product.path, unknown)
    draft = Provenance(__version__, source, product.recipe, product.calibration, product.records({}))
    room = room_for(draft, product.width)
    layout = product.layout(padded(draft, room, product.width))
    fingerprint = digest([draft.to_dict(), [asdict(mark) for mark in marks], layout.size])
    with Hashing(product.files) as hashing, WorkFile(output, fingerprint, product.member) as work:
        if work.finished:
            report.say(f"going on with {work.root.name}: {len(work.finished)} of {len(product.jobs)} tensors are there")
        check_room(output, layout.size - work.present)
        with FileWriter(work.path, layout) as writer:
            hashes = write_tensors(product.source, product.jobs, work, writer, threads or processors(), report.progress)
            known = hashing.result()
            if identities(product.files) != marks:
                raise LocalInferError(f"{product.path} was changed while it was read", "run the command again")
            made = replace(draft, source=replace(source, files=known), tensors=product.records(hashes))
            writer.write_header(product.layout(padded(made, room, product.width)))
            _put_beside(product.beside, work.root)
            made = replace(made, quality=product.measure(work.root))
            writer.write_header(product.layout(padded(made, room, product.width)))
            writer.flush()
        _describe(made, work, output, signed)
        refuse_existing(output, force)
        work.publish()
    return Made(made, layout.size)


def _put_beside(beside: Mapping[str, str | Path], folder: Path) -> None:
    for name, content in beside.items():
        try:
            if isinstance(content, Path):
                shutil.copyfile(content, folder / name)
            else:
                (folder / name).write_text(content, encoding="utf-8")
        except OSError as error:
            raise LocalInferError(f"cannot write {folder / name}: {error.strerror}") from error


def _describe(made: Provenance, work: WorkFile, output: Path, signed: bool) -> None:
    """Writes what is said about the result beside it, or, for a folder, beside the large file in it."""
    name, place = (output.name, output) if work.root == work.path else (work.path.name, work.path)
    files = [SourceFile(name, work.path.stat().st_size, file_sha256(work.path))]
    write_whole(sidecar_path(place), sidecar_text(made, files))
    if signed:
        text = json.dumps(statement(made, files), indent=1) + "\n"
        write_whole(place.with_name(place.name + ".intoto.json"), text)


def digest(value: object) -> str:
    """A line that stands for a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def refuse_existing(path: Path, force: bool) -> None:
    """LocalInferError if there is no folder for a file, or if something would be overwritten that must not be."""
    if not path.absolute().parent.is_dir():
        raise LocalInferError(f"{path.parent} is no folder", "make it first, or give another name with --output")
    if path.exists() and not force:
        raise LocalInferError(f"{path} exists", "--force overwrites it, --output gives another name")


def refuse_sources(path: Path, files: Sequence[Path]) -> None:
    """LocalInferError if the result would take the place of what it is made of."""
    place = path.resolve()
    if any(file.resolve() == place or place in file.resolve().parents for file in files):
        raise LocalInferError(f"{path} is what is to be quantized", "give another name with --output")


def check_room(path: Path, size: int) -> None:
    """LocalInferError if `size` bytes more do not fit the disk of `path`."""
    free = shutil.disk_usage(path.absolute().parent).free
    if size > free:
        raise LocalInferError(
            f"{path.name} needs {size / 1e9:.1f} GB, and {path.absolute().parent} has {free / 1e9:.1f} GB free",
            "free some space, or write to another disk with --output",
        )
