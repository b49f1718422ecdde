"""A file in the making, which can be gone on with after its process died.

Beside the file to be lie `FILE.part`, laid out as it will be, and `FILE.part.json`: a first line that stands for what
is being made, and a line for each finished tensor with its hashes. What the journal says is not believed: the bytes are
hashed again. Nothing stands under the final name before everything is written. A folder is made in the same way, as
`FOLDER.part`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from localinfer.errors import LocalInferError
from localinfer.formats.closing import Closing

_HASHED_AT_ONCE = 1 << 22  # bytes


class Journal(Closing):
    """JSON arrays in the lines of a file, under a first line that stands for what they are about; for one process.

    `entries`, of so many `fields`, are those that an earlier process noted under the same first line; anything else is
    forgotten. `writes` names what the file stands for, for messages. LocalInferError if another process has it, or if
    it cannot be written.
    """

    def __init__(self, path: Path, fingerprint: str, writes: Path, fields: int = 3) -> None:
        self.path = path
        self._fields = fields
        self.entries: list[Any] = []
        try:
            self._file: IO[str] = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise LocalInferError(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise LocalInferError(
                f"{writes} is being written by another process", "wait for it, or give another name with --output"
            ) from error
        if not self._read(fingerprint):
            self.restart(fingerprint)

    def _read(self, fingerprint: str) -> bool:
        self._file.seek(0)
        text = self._file.read()
        whole, _, broken = text.rpartition("\n")
        if broken:  # the line that was being written
            self._file.truncate(len(whole.encode()) + 1)
        first, *lines = whole.split("\n")
        if first != fingerprint:
            return False
        try:
            self.entries = [json.loads(line) for line in lines]
        except ValueError:
            return False
        return all(isinstance(entry, list) and len(entry) == self._fields for entry in self.entries)

    def restart(self, fingerprint: str) -> None:
        """Forgets everything."""
        self.entries = []
        self._file.truncate(0)
        self._write(fingerprint)

    def note(self, entry: object) -> None:
        """Writes an entry, at once."""
        self._write(json.dumps(entry))

    def _write(self, line: str) -> None:
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise LocalInferError(f"cannot write {self.path}: {error.strerror}") from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()


class WorkFile(Closing):
    """The file and the journal beside `final`, held by one process. `member` names the large file of a folder.

    path        the file in the making
    root        the same, or the folder that it is in: what gets the final name
    finished    tensor of the source → its sha256, and those of the tensors made of it.

    Use it in a `with` statement. LocalInferError if another process has them, or if they cannot be written.
    """

    def __init__(self, final: Path, fingerprint: str, member: str = "") -> None:
        self.final = final
        self.root = final.with_name(final.name + ".part")
        self.path = self.root / member if member else self.root
        self._journal = Journal(final.with_name(final.name + ".part.json"), fingerprint, final)
        try:
            self.finished: dict[str, tuple[str, dict[str, str]]] = {
                name: (source, results) for name, source, results in self._journal.entries
            }
            if not (self.finished and self.path.exists()):
                self._restart(fingerprint)
        except BaseException:
            self._journal.close()
            raise

    def _restart(self, fingerprint: str) -> None:
        self.finished = {}
        self._journal.restart(fingerprint)
        try:
            if self.root.is_dir():
                shutil.rmtree(self.root)
            self.root.unlink(missing_ok=True)
            self.path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise LocalInferError(f"cannot write {self.root}: {error.strerror}") from error

    @property
    def present(self) -> int:
        """Bytes of the disk that the file in the making has taken already."""
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0

    def note(self, name: str, source: str, results: dict[str, str]) -> None:
        """Notes that what is made of a tensor is written."""
        self.finished[name] = (source, results)
        self._journal.note([name, source, results])

    def publish(self) -> None:
        """Gives the file or folder its name, at once and whole. What had the name before goes."""
        try:
            if self.final.is_dir():
                old = self.final.with_name(f".{self.final.name}.{os.getpid()}")
                self.final.rename(old)
                self.root.rename(self.final)
                shutil.rmtree(old)
            else:
                os.replace(self.root, self.final)
            self._journal.remove()
            _sync_folder(self.final.parent)
        except OSError as error:
            raise LocalInferError(f"cannot write {self.final}: {error.strerror}") from error

    def close(self) -> None:
        self._journal.close()


def write_whole(path: Path, text: str) -> None:
    """Writes a small file that is there whole or not at all. LocalInferError if it cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LocalInferError(f"cannot write {path}: {error.strerror}") from error


def file_sha256(path: Path, stop: Callable[[], bool] = lambda: False) -> str:
    """The hash of a file, or anything once `stop` says so. LocalInferError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while not stop() and (data := file.read(_HASHED_AT_ONCE)):
                digest.update(data)
        return digest.hexdigest()
    except OSError as error:
        raise LocalInferError(f"cannot read {path}: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
