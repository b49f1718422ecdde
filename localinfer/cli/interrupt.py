"""Ctrl-C that stops an answer and not the program."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_calls(cancel: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `cancel` and raises nothing. For the main thread only.

    Python runs signal handlers between two bytecodes, so not while a step of the model, which may take many seconds,
    is in native code. The signal's number is written to a pipe at once, and a thread that waits there calls `cancel`.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGINT:
                cancel()

    thread = threading.Thread(target=watch, name="interrupt", daemon=True)
    handler = signal.signal(signal.SIGINT, lambda number, frame: None)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGINT, handler)
        os.close(writer)
        thread.join()
        os.close(reader)


@contextmanager
def interrupt_ends() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once, also in native code: for work that leaves nothing to clean up."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
