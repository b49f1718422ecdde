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
from types import TracebackType
from typing import IO

from localinfer.errors import LocalInferError

_HASHED_AT_ONCE = 1 << 22  # bytes


class WorkFile:
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
        self._journal_path = final.with_name(final.name + ".part.json")
        self.finished: dict[str, tuple[str, dict[str, str]]] = {}
        try:
            self._journal: IO[str] = open(self._journal_path, "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise LocalInferError(f"cannot write {self._journal_path}: {error.strerror}") from error
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._journal.close()
            raise LocalInferError(
                f"{final} is being written by another process", "wait for it, or give another name with --output"
            ) from error
        if not self._read(fingerprint):
            self._restart(fingerprint)

    def _read(self, fingerprint: str) -> bool:
        """Takes over what an earlier process noted; whether it was making the same file."""
        self._journal.seek(0)
        text = self._journal.read()
        whole, _, broken = text.rpartition("\n")
        if broken:  # the line that was being written
            self._journal.truncate(len(whole.encode()) + 1)
        lines = whole.split("\n")
        if not whole or lines[0] != fingerprint or not self.path.exists():
            return False
        for line in lines[1:]:
            try:
                name, source, results = json.loads(line)
            except ValueError:
                return False
            self.finished[name] = (source, results)
        return True

    def _restart(self, fingerprint: str) -> None:
        self.finished = {}
        try:
            if self.root.is_dir():
                shutil.rmtree(self.root)
            self.root.unlink(missing_ok=True)
            self.path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise LocalInferError(f"cannot write {self.root}: {error.strerror}") from error
        self._journal.truncate(0)
        self._write(fingerprint)

    @property
    def present(self) -> int:
        """Bytes of the disk that the file in the making has taken already."""
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0

    def note(self, name: str, source: str, results: dict[str, str]) -> None:
        """Notes that what is made of a tensor is written."""
        self.finished[name] = (source, results)
        self._write(json.dumps([name, source, results]))

    def _write(self, line: str) -> None:
        try:
            self._journal.write(line + "\n")
            self._journal.flush()
        except OSError as error:
            raise LocalInferError(f"cannot write {self._journal_path}: {error.strerror}") from error

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
            self._journal_path.unlink(missing_ok=True)
            _sync_folder(self.final.parent)
        except OSError as error:
            raise LocalInferError(f"cannot write {self.final}: {error.strerror}") from error

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> WorkFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
