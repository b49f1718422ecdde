"""Loading a model for a command, with progress where it takes long enough to be noticed."""

import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

from localinfer.cli.interrupt import interrupt_ends
from localinfer.engine.llm import LLM
from localinfer.engine.load import CHAT_DEFAULTS
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.hub.store import catalog_entry

QUIET_SECONDS = 0.5


def load_model(model: str, *, template: str = "", **options: Any) -> LLM:
    """An LLM. `template` names a file with a chat template. Ctrl-C while it loads ends the process at once."""
    source = read_template(template) if template else None
    with interrupt_ends(), _Progress() as progress:
        llm = LLM(model, chat_template=source, progress=progress if sys.stderr.isatty() else None, **options)
    gc.enable()  # `main` switched it off
    return llm


# Small models run in circles, and nobody wants to read that to the end of the context.
CONVERSATION = {"loop_detection": True}


def recommended_sampling(by_file: SamplingParams, path: Path) -> tuple[SamplingParams, str]:
    """What a conversation with the model in that file samples with, and who recommends it.

    What the file says (engine/load.py); else the model card, which the catalog quotes; else what suits most models.
    """
    if by_file != CHAT_DEFAULTS:
        return by_file, "the model's file"
    entry = catalog_entry(path)
    if entry is not None and entry.sampling:
        return SamplingParams(**entry.sampling), "the model card"
    return by_file, "localinfer"


def read_template(name: str) -> str:
    """The source of a chat template that can be compiled."""
    hint = "--template takes the path of a jinja2 file; without it the model's own template is used"
    try:
        source = Path(os.path.expanduser(name)).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise LocalInferError(f"there is no file {name}", hint) from error
    except UnicodeDecodeError as error:
        raise LocalInferError(f"the chat template {name} is not valid UTF-8 at byte {error.start}", hint) from error
    except OSError as error:
        raise LocalInferError(f"the chat template {name} cannot be read: {error.strerror}", hint) from error
    from localinfer.text.template_sandbox import compile_template

    try:
        compile_template(source)
    except Exception as error:  # jinja2's complaints, and those of Python about what it made of the template
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        words = "it nests too deep" if isinstance(error, RecursionError) else getattr(error, "message", "") or error
        raise LocalInferError(f"the chat template {name} is no valid jinja2: {where}{words}", hint) from error
    return source


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
