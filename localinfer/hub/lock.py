"""One process at a time works at one model of the store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(folder: Path, busy: Callable[[], object]) -> Iterator[None]:
    """Holds the lock of the model in `folder`, and leaves no file behind.

    Where another process has it, `busy` is called, and then waited, unless it raises. The kernel gives the lock back
    if the process dies; the file that stays is taken over by the next.
    """
    path = folder.with_name(f".lock-{folder.name}")
    while True:
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy()
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is(path, file.fileno()):
                continue  # whoever had it has deleted it meanwhile: nobody else would see this lock
            try:
                yield
            finally:
                path.unlink()
            return


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
