"""From a sequence's row of logits to its next token."""

from __future__ import annotations

from array import array

from localinfer.engine.request import TokenLogprob
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import Sequence
from localinfer.kernels.host.sampler import NativeSampler


class Sampler:
    """Applies SamplingParams to rows of `vocab_size` logits."""

    def __init__(self, vocab_size: int) -> None:
        self._native = NativeSampler(vocab_size)

    def draw(
        self, logits: int, sequence: Sequence, params: SamplingParams, seed: int, banned: array[int] | None
    ) -> tuple[int, TokenLogprob | None]:
        """The token at position `len(sequence.tokens)`, and its log probability if `params` asks for it.

        `logits` is the address of the row. LocalInferError if nothing can be drawn from it (NaN, for example).
        """
        seen, from_prompt = None, 0
        if params.penalizes:
            seen = sequence.tokens[-params.penalty_window :]  # a window of 0 is everything
            from_prompt = max(0, len(seen) - (len(sequence.tokens) - sequence.prompt_length))
        token, logprob = self._native.sample(
            logits,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=seed,
            position=len(sequence.tokens),
            seen=seen,
            from_prompt=from_prompt,
            banned=banned,
            with_logprob=params.logprobs,
        )
        return token, None if logprob is None else TokenLogprob(token, logprob)

    def close(self) -> None:
        self._native.close()
