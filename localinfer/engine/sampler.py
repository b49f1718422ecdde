"""From a sequence's row of logits to its next token."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from localinfer.engine.request import TokenLogprob
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import Sequence
from localinfer.kernels.host.sampler import Draw, NativeSampler

if TYPE_CHECKING:
    from localinfer.engine.beam import Candidate


class Sampler:
    """Applies SamplingParams to rows of `vocab_size` logits, each given by its address.

    LocalInferError if nothing can be drawn from a row (NaN, for example).
    """

    def __init__(self, vocab_size: int) -> None:
        self._native = NativeSampler(vocab_size)

    def draw(
        self,
        logits: int,
        sequence: Sequence,
        params: SamplingParams,
        draw: Draw,
        banned: array[int] | None,
        allowed: array[int] | None = None,
    ) -> tuple[int, TokenLogprob | None]:
        """The token at position `len(sequence.tokens)`, and its log probability if `params` needs it.

        `draw` is what `new_draw` made; tokens in `banned` cannot be drawn, nor those whose bit in `allowed` is not set.
        """
        self._look_at(sequence, params, draw, banned)
        draw.allow(allowed)
        needed = params.logprobs or params.withholds
        token, logprob, top = self._native.draw(logits, draw, params.top_logprobs if needed else None)
        return token, None if logprob is None else TokenLogprob(token, logprob, top)

    def candidates(
        self, logits: int, sequence: Sequence, params: SamplingParams, draw: Draw, banned: array[int] | None, count: int
    ) -> list[Candidate]:
        """The `count` tokens that rank first after bias and penalties; fewer if not so many can follow."""
        from localinfer.engine.beam import Candidate

        self._look_at(sequence, params, draw, banned)
        return [
            Candidate(token, score, self.logprob(logits, token, params.top_logprobs) if params.logprobs else None)
            for token, score in self._native.candidates(logits, draw, count)
        ]

    def logprob(self, logits: int, token: int, top: int) -> TokenLogprob:
        """What the row says of a token that stands at its place."""
        return TokenLogprob(token, *self._native.logprobs(logits, token, top))

    def close(self) -> None:
        self._native.close()

    def _look_at(self, sequence: Sequence, params: SamplingParams, draw: Draw, banned: array[int] | None) -> None:
        draw.position = len(sequence.tokens)
        draw.ban(banned)
        if params.penalizes:
            seen = sequence.tokens[-params.penalty_window :]  # a window of 0 is everything
            draw.see(seen, max(0, len(seen) - (len(sequence.tokens) - sequence.prompt_length)))


def new_draw(params: SamplingParams, seed: int, choice: int = 0) -> Draw:
    """What all draws of one answer have in common."""
    bias = array("i", params.logit_bias), array("f", params.logit_bias.values())
    return Draw(
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.typical_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        seed=seed,
        choice=choice,
        bias=bias if params.logit_bias else None,
    )
