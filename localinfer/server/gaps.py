"""Gaps between two texts, as the endpoints that fill them in share them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from localinfer.engine.llm import LLM
from localinfer.errors import UnsupportedError
from localinfer.server.errors import invalid
from localinfer.text.fill_in import File, fill_in_prompt


def gap(llm: LLM, prefix: str, suffix: str, *, files: Sequence[File] = (), room: int | None = None) -> array[int]:
    """The prompt for a gap (text/fill_in.py). ApiError 400 if the model fills none in."""
    try:
        return fill_in_prompt(llm.tokenizer, prefix, suffix, files=files, room=room)
    except UnsupportedError as error:
        raise invalid(f"{error.message} ({error.hint})", code="unsupported_model") from error


def marks(llm: LLM) -> tuple[int, ...]:
    """The tokens around gaps, with which an answer that fills one in ends."""
    return llm.tokenizer.fill_in.marks if llm.tokenizer.fill_in is not None else ()
