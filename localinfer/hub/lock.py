"""One process at a time works at one model of the store, and at one file of the Hugging Face cache."""

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
        with locked_file(path, busy) as descriptor:
            if not _is(path, descriptor):
                continue  # whoever had it has deleted it meanwhile: nobody else would see this lock
            try:
                yield
            finally:
                path.unlink()
            return


@contextlib.contextmanager
def locked_file(path: Path, busy: Callable[[], object]) -> Iterator[int]:
    """Holds an exclusive flock on a file, which is created if need be and stays; gives its descriptor.

    `busy` as in `locked`. It excludes huggingface_hub too, which locks the files of its cache in the same way.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
