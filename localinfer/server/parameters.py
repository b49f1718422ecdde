"""From the fields of a request to the engine's sampling parameters."""

from __future__ import annotations

from typing import Any

from localinfer.engine.sampling import SamplingParams
from localinfer.server.errors import ApiError, invalid
from localinfer.server.schemas.sampling import SamplingFields
from localinfer.server.structured import grammar_of

# Fields that have the engine's name and meaning.
_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "n",
    "length_penalty",
    "loop_detection",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)
_PENALTIES_OFF = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
REPEAT_LAST_N = 64  # what llama.cpp and Ollama look at, unless they are told otherwise


def sampling_params(
    fields: SamplingFields, base: SamplingParams, max_tokens: int | None, **more: Any
) -> SamplingParams:
    """What was asked for, `base` where nothing was, and `more` by the engine's names.

    ApiError or LocalInferError names what makes no sense.
    """
    given: dict[str, Any] = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    if fields.top_k is not None:
        given["top_k"] = max(0, fields.top_k)  # -1 is how vLLM writes "off"
    if fields.top_n_sigma is not None:
        given["top_n_sigma"] = max(0.0, fields.top_n_sigma)  # and -1 how llama.cpp writes it
    if fields.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(text for text in fields.dry_sequence_breakers if text)
    given |= _repetition(fields, base)
    if fields.seed is not None:
        given["seed"] = fields.seed % 2**64  # OpenAI's may be negative
    if fields.stop is not None:
        # Empty texts come from forms that were left empty: they stop nothing.
        stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop
        given["stop"] = tuple(stop for stop in stops if stop)
    if fields.use_beam_search:
        given["beam_width"] = more.pop("best_of", None) or fields.n or 1
        given.setdefault("temperature", 0.0)
    return base.changed(max_tokens=max_tokens, grammar=grammar_of(fields), **given, **more)


def _repetition(fields: SamplingFields, base: SamplingParams) -> dict[str, Any]:
    """The penalties as llama.cpp and Ollama write them."""
    penalty, window = fields.repeat_penalty, fields.repeat_last_n
    given: dict[str, Any] = {}
    if penalty is not None:
        if fields.repetition_penalty not in (None, penalty):
            raise invalid("these say different things: repeat_penalty, repetition_penalty", param="repeat_penalty")
        given["repetition_penalty"] = penalty
        window = (base.penalty_window or REPEAT_LAST_N) if window is None else window
    if window == 0:
        return _PENALTIES_OFF
    return given if window is None else {**given, "penalty_window": max(0, window)}


def room_for_answer(prompt_tokens: int, context: int, wanted: int | None, what: str) -> int | None:
    """How many tokens the answer may have: what is wanted, at most what the context leaves; None: no other limit.

    ApiError where nothing is left; agents know its code and its words, and compact what they send.
    """
    room = context - prompt_tokens
    if room < 1:
        raise context_overflow(prompt_tokens, context, what)
    return None if wanted is None else min(wanted, room)


def context_overflow(prompt_tokens: int, context: int, what: str) -> ApiError:
    """`what` (messages, prompt, input) is too long."""
    return invalid(
        f"This model's maximum context length is {context} tokens. However, your {what} resulted in {prompt_tokens} "
        f"tokens, which leaves no room for an answer. Please reduce the length of the {what}.",
        param=what,
        code="context_length_exceeded",
    )
