"""POST /v1/completions"""

from __future__ import annotations

from typing import Literal

import msgspec

from localinfer.server.schemas.sampling import Alternatives, Choices, SamplingFields, Usage


class CompletionRequest(SamplingFields, kw_only=True):
    """`prompt` is a text, token ids, or a list of either. `max_tokens` is 16 and `temperature` 1 if they are not given,
    as in OpenAI's API. `echo` puts the prompt in front of the answer; with `logprobs` its tokens have theirs too, and
    with `max_tokens` 0 nothing else is sent. `suffix` is what follows the answer, for models that fill gaps in.
    """

    prompt: str | list[str | int | list[int]]
    best_of: Choices | None = None
    echo: bool | None = None
    logprobs: Alternatives | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = None


class CompletionLogprobs(msgspec.Struct):
    """Of equal length, one entry per token: with `echo` of the prompt first, whose first token has none."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct):
    """One answer; those to the first prompt come first."""

    index: int
    text: str
    finish_reason: str
    logprobs: CompletionLogprobs | None = None


class TextCompletion(msgspec.Struct, kw_only=True):
    """What is sent without `stream`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
