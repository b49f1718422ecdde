"""`gc`: what takes room on the disk, and nothing refers to.

In the store: what pulls that died have left, versions that were replaced, models that were being deleted. In the
Hugging Face cache, which other programs share: downloads that were not finished and that nobody is at, and what
localinfer fetched for a model that it no longer has. Complete files of other programs are never touched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.hub.cache import Partial, discard_partial, partial_files
from localinfer.hub.folders import models_folder
from localinfer.hub.lock import locked, locked_file
from localinfer.hub.store import INCOMING, REMOVED, REPLACED, delete, own_bytes, read_record, referred_paths


class Waste(NamedTuple):
    """Something that nothing refers to: what it is, where, and the bytes that it takes."""

    what: str
    path: Path
    size: int


class _Busy(Exception):
    """Somebody is at work there."""


def collect(remove: bool = True) -> list[Waste]:
    """What nothing refers to; deleted, unless `remove` is false. What a running pull works at is left alone."""
    found = []
    for folder in _hidden_folders():
        with contextlib.suppress(_Busy, FileNotFoundError), _alone(folder):
            found += _folder(folder, remove)
    for partial in partial_files():
        with contextlib.suppress(_Busy, FileNotFoundError), _lock_of(partial):
            found.append(Waste("unfinished download", partial.path, partial.size))
            if remove:
                discard_partial(partial)
    for path in models_folder().glob(".lock-*") if remove else ():  # of processes that were killed
        with contextlib.suppress(_Busy), locked(path.with_name(path.name.removeprefix(".lock-")), _busy):
            pass
    return found


def _folder(folder: Path, remove: bool) -> list[Waste]:
    what = "unfinished pull" if folder.name.startswith(INCOMING) else "replaced version"
    if folder.name.startswith(REMOVED):
        what = "model being deleted"
    size = own_bytes(folder)
    with contextlib.suppress(LocalInferError):
        kept = referred_paths(besides=folder)
        for each in read_record(folder).files:
            if each.fetched and each.path not in kept and each.path.exists():
                size += each.path.stat().st_size
    if remove:
        size = delete(folder).freed
    return [Waste(what, folder, size)]


def _hidden_folders() -> list[Path]:
    try:
        entries = list(os.scandir(models_folder()))
    except FileNotFoundError:
        return []
    kinds = (INCOMING, REPLACED, REMOVED)
    hidden = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and e.name.startswith(kinds)]
    # Unfinished pulls last: what they have fetched protects what they share with replaced versions.
    return sorted(hidden, key=lambda path: (path.name.startswith(INCOMING), path.name))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock of the model that an unfinished pull is for; the others belong to nobody."""
    if not folder.name.startswith(INCOMING):
        yield
        return
    with locked(folder.with_name(folder.name.removeprefix(INCOMING)), _busy):
        yield


@contextlib.contextmanager
def _lock_of(partial: Partial) -> Iterator[None]:
    partial.lock.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(partial.lock, _busy):
        yield


def _busy() -> None:
    raise _Busy
