"""The folder in which a pull works, and the rename that makes it a model.

It lies inside the store, so that the last step is a rename on one file system. A lock per model keeps others out
(hub/lock.py). What a dead pull left there, the next one for that model goes on with, or removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.hub.lock import locked
from localinfer.hub.report import Report, in_words
from localinfer.hub.store import INCOMING, REPLACED, Installed, read_record


@contextlib.contextmanager
def working(folder: Path, report: Report) -> Iterator[Path]:
    """The folder in which a pull works, under the model's lock; it stays unless it is published."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder, lambda: report.say("another process is pulling this model; waiting for it")):
        work = folder.with_name(f"{INCOMING}{folder.name}")
        work.mkdir(exist_ok=True)
        try:
            yield work
        finally:
            with contextlib.suppress(OSError):  # published, or not empty
                work.rmdir()


@contextlib.contextmanager
def removed_afterwards(work: Path) -> Iterator[None]:
    """For pulls that begin anew each time: empties their folder before, and removes it after."""
    shutil.rmtree(work)
    work.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(work: Path, folder: Path, report: Report) -> Installed:
    """Gives the finished folder its final name, and deletes the one that it replaces, if nothing is lost by that."""
    for entry in os.scandir(work):  # what the download needed
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name.startswith("."):
            os.unlink(entry.path)
    _sync_folder(work)
    replaced = unused_folder(folder.parent, f"{REPLACED}{folder.name}")
    if folder.exists():
        folder.rename(replaced)
    work.rename(folder)
    _sync_folder(folder.parent)
    model = read_record(folder)
    if replaced.exists():
        _retire(replaced, model, report)
    return model


def _retire(replaced: Path, model: Installed, report: Report) -> None:
    try:
        before = read_record(replaced)
    except LocalInferError:
        shutil.rmtree(replaced)
        return
    kept = {each.path for each in model.files}
    left = [each for each in before.files if each.fetched and each.path not in kept and each.path.exists()]
    if left:
        size = in_words(sum(each.size for each in left))
        report.say(f"the version before still takes {size}; localinfer gc removes it")
    else:
        shutil.rmtree(replaced)


def unused_folder(parent: Path, prefix: str) -> Path:
    number = 1
    while (path := parent / f"{prefix}-{number}").exists():
        number += 1
    return path


def require_space(folder: Path, need: int, name: str) -> None:
    """LocalInferError if the disk of the store has not so many bytes free."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise LocalInferError(
            f"{folder} has {free / 1e6:.0f} MB free, but pulling {name} takes up to {need / 1e6:.0f} MB",
            "make room, or set LOCALINFER_HOME to a folder on another disk",
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder.parent
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise LocalInferError(
            f"cannot write {where}: {reason}",
            "make room, or set LOCALINFER_HOME (for the hub HF_HUB_CACHE) to a folder that can be written",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
