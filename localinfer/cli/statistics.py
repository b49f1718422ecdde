"""Figures of an answer, in words and as data."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localinfer.engine.llm import LLM, Completion


def rates(completion: "Completion") -> str:
    """How long the answer is and how fast it came; the time to the first token is the prompt's."""
    count = len(completion.tokens)
    rate = completion.decode_tokens_per_second
    return f"{count} token{'' if count == 1 else 's'}" + (f", {rate:.1f} tokens/s" if rate else "")


def context_use(completion: "Completion", context: int) -> str:
    return f"{completion.prompt_tokens + len(completion.tokens)} of {context} tokens"


def as_data(completion: "Completion", llm: "LLM", text: str, thought: str) -> dict[str, Any]:
    """What `run --json` prints.

    model, backend, context (tokens), text, reasoning (what the model thought before, if it did), tokens (ids, the one
    that ended the answer included), finish_reason, finish_detail, seed, and stats: prompt_tokens, cached_tokens,
    completion_tokens, queue_seconds, prefill_seconds, prefill_tokens_per_second, decode_seconds,
    decode_tokens_per_second.
    """
    return {
        "model": llm.name,
        "backend": llm.backend,
        "context": llm.context,
        "text": text,
        "reasoning": thought,
        "tokens": list(completion.tokens),
        "finish_reason": completion.finish_reason,
        "finish_detail": completion.finish_detail,
        "seed": completion.seed,
        "stats": {
            "prompt_tokens": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": len(completion.tokens),
            "queue_seconds": completion.queue_seconds,
            "prefill_seconds": completion.prefill_seconds,
            "prefill_tokens_per_second": completion.prefill_tokens_per_second,
            "decode_seconds": completion.decode_seconds,
            "decode_tokens_per_second": completion.decode_tokens_per_second,
        },
    }
