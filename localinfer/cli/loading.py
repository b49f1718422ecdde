"""Loading a model for a command, with progress where it takes long enough to be noticed."""

import gc
import sys
import time
from pathlib import Path
from typing import Any

from localinfer.cli.interrupt import interrupt_ends
from localinfer.engine.llm import LLM
from localinfer.errors import LocalInferError

QUIET_SECONDS = 0.5


def load_model(model: str, *, template: str = "", **options: Any) -> LLM:
    """An LLM. `template` names a file with a chat template. Ctrl-C while it loads ends the process at once."""
    source = None
    if template:
        try:
            source = Path(template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LocalInferError(f"the chat template {template} cannot be read: {error}") from error
    with interrupt_ends(), _Progress() as progress:
        llm = LLM(model, chat_template=source, progress=progress if sys.stderr.isatty() else None, **options)
    gc.enable()  # `main` switched it off
    return llm


class _Progress:
    """One line on standard error that is gone when the model is there."""

    def __enter__(self) -> "_Progress":
        self._start, self._shown = time.monotonic(), False
        return self

    def __call__(self, done: int, total: int) -> None:
        if total and time.monotonic() - self._start > QUIET_SECONDS:
            self._shown = True
            print(f"\rloading {100 * done // total:3d} %", end="", file=sys.stderr, flush=True)

    def __exit__(self, *reason: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
