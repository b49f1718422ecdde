"""Steps of an engine that wait until a test lets them pass, so that nothing depends on how fast the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from localinfer import LLM
from localinfer.kernels.base import Batch, Cancelled, Logits

PATIENCE = 120.0  # seconds: the machine may be busy


class Gate:
    """Stands between an engine and its backend. At first every step passes."""

    def __init__(self, llm: LLM) -> None:
        self._executable: Any = llm.engine._executable
        llm.engine._executable = self
        self._changed = threading.Condition()
        self._permits: int | None = None
        self._cancelled = False
        self._error: Exception | None = None
        self.waiting = False  # whether a step waits
        self.steps = 0

    def close_gate(self, permits: int = 0) -> None:
        """So many steps more, then they wait."""
        with self._changed:
            self._permits = permits

    def open_gate(self, permits: int | None = None) -> None:
        """For all that come, or for so many steps more."""
        with self._changed:
            self._permits = permits
            self._changed.notify_all()

    def fail(self, error: Exception | None) -> None:
        """Steps raise this from now on."""
        with self._changed:
            self._error = error

    def wait_for_step(self) -> None:
        """Until a step waits."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting, PATIENCE), "no step came"

    def step(self, batch: Batch) -> Logits:
        with self._changed:
            self.waiting = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._permits != 0 or self._cancelled, PATIENCE), "nobody opens"
            self.waiting = False
            if self._cancelled:
                self._cancelled = False
                raise Cancelled
            if self._error is not None:
                raise self._error
            if self._permits is not None:
                self._permits -= 1
            self.steps += 1
        logits: Logits = self._executable.step(batch)
        return logits

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.005)
