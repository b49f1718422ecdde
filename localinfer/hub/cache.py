"""The Hugging Face cache, which other programs share: where a file of a repository lies in it.

    models--OWNER--NAME/blobs/HASH                 what a file holds, under the hash by which the hub knows it
    models--OWNER--NAME/snapshots/COMMIT/FILE      a link to that
    models--OWNER--NAME/refs/REVISION              the commit that a branch or tag was at
    .locks/models--OWNER--NAME/HASH.lock           held by whoever writes the blob

This is the layout that huggingface_hub documents, so that it, transformers and others find what localinfer puts there.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError


class Place(NamedTuple):
    """Where one file of a repository lies, or would lie."""

    pointer: Path
    blob: Path
    lock: Path

    @property
    def partial(self) -> Path:
        """What has come of the blob so far; older versions of huggingface_hub use the same name for the same."""
        return self.blob.with_name(f"{self.blob.name}.incomplete")


def cache_folder() -> Path:
    """The folder that HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME say."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).absolute()


def place_of(repository: str, commit: str, file: str, blob_name: str) -> Place:
    """Where the file is kept; LocalInferError if its name leads out of the cache."""
    parts = file.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in [*parts, blob_name, commit]):
        raise LocalInferError(f"{repository} has a file with the name {file!r}, which leads elsewhere")
    folder = f"models--{repository.replace('/', '--')}"
    top = cache_folder() / folder
    return Place(
        top.joinpath("snapshots", commit, *parts),
        top / "blobs" / blob_name,
        cache_folder() / ".locks" / folder / f"{blob_name}.lock",
    )


def prepare(place: Place) -> None:
    """Makes the folders that a place needs."""
    for path in place:
        path.parent.mkdir(parents=True, exist_ok=True)


def publish(place: Place) -> None:
    """Gives the blob, which is there and right, its name in the snapshot."""
    place.pointer.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(place.blob, place.pointer.parent)
    scratch = Path(tempfile.mktemp(prefix=".link-", dir=place.pointer.parent))
    scratch.symlink_to(target)
    scratch.replace(place.pointer)


def write_ref(repository: str, revision: str, commit: str) -> None:
    """Remembers which commit a branch or tag is at, so that others find the snapshot without asking the hub."""
    if revision == commit or any(part in ("", ".", "..") for part in revision.split("/")):
        return
    path = cache_folder() / f"models--{repository.replace('/', '--')}" / "refs" / revision
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".ref-", delete=False) as file:
        file.write(commit)
    os.replace(file.name, path)


class CachedFile(NamedTuple):
    """A file of a snapshot: its path in the repository, its bytes, and the name of its blob, "" if it is no link."""

    path: str
    size: int
    blob_name: str


def snapshot(repository: str, revision: str) -> tuple[str, list[CachedFile]]:
    """The commit that a branch, tag or commit was last known to be at, and the files of it that are here.

    The commit is "" if nothing is known. Nobody but the disk is asked.
    """
    top = cache_folder() / f"models--{repository.replace('/', '--')}"
    commit = revision
    with contextlib.suppress(OSError):
        commit = (top / "refs" / revision).read_text().strip()
    folder = top / "snapshots" / commit
    if not re.fullmatch(r"[0-9a-f]{40}", commit) or not folder.is_dir():
        return "", []
    return commit, [
        CachedFile(
            path.relative_to(folder).as_posix(),
            path.stat().st_size,
            os.path.basename(os.readlink(path)) if path.is_symlink() else "",
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def discard(pointer: Path) -> int:
    """Deletes a file of a snapshot, and its blob if no other snapshot has it; returns the bytes that this freed.

    Folders and refs that lead nowhere afterwards go too. A file outside the cache is left alone.
    """
    top = _repository_folder(pointer)
    if top is None or not pointer.is_symlink():
        return 0
    blob = pointer.parent / os.readlink(pointer)
    blob = Path(os.path.normpath(blob))
    pointer.unlink()
    freed = 0
    if blob.parent == top / "blobs" and not _is_linked(top, blob):
        with contextlib.suppress(FileNotFoundError):
            freed = blob.lstat().st_size
            blob.unlink()
    _tidy(top)
    return freed


def _repository_folder(pointer: Path) -> Path | None:
    for folder in pointer.parents:
        if folder.name.startswith("models--") and (folder / "snapshots") in pointer.parents:
            return folder if folder.parent == cache_folder() else None
    return None


def _is_linked(top: Path, blob: Path) -> bool:
    for folder, _, names in os.walk(top / "snapshots"):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path) and os.path.normpath(os.path.join(folder, os.readlink(path))) == str(blob):
                return True
    return False


def _tidy(top: Path) -> None:
    """Removes empty folders of a repository, and refs to commits that have no snapshot."""
    _remove_empty(top / "snapshots")
    for path, _, names in os.walk(top / "refs"):
        for name in names:
            ref = Path(path, name)
            if not (top / "snapshots" / ref.read_text(errors="replace")).is_dir():
                ref.unlink()
    for folder in (top / "refs", top / "blobs", top):
        _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(path)


class Partial(NamedTuple):
    """A download that was not finished: its bytes on the disk, and the lock of whoever would write it."""

    path: Path
    size: int
    lock: Path


def discard_partial(partial: Partial) -> None:
    """Deletes an unfinished download, and the folders of its repository if they are empty then."""
    partial.path.unlink()
    _tidy(partial.path.parents[1])


def partial_files() -> list[Partial]:
    """Unfinished downloads in the cache, those of other programs included."""
    found = []
    for path in sorted(cache_folder().glob("models--*/blobs/*.incomplete")):
        # huggingface_hub names its own HASH.RANDOM.incomplete, and locks HASH.lock as well.
        lock = cache_folder() / ".locks" / path.parents[1].name / f"{path.name.partition('.')[0]}.lock"
        with contextlib.suppress(FileNotFoundError):
            found.append(Partial(path, path.stat().st_size, lock))
    return found
