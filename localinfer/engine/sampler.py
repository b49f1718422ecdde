"""From a sequence's row of logits to its next token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from ctypes import memmove
from typing import TYPE_CHECKING

from localinfer.engine.request import LogitsProcessor, TokenLogprob
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import Sequence
from localinfer.errors import LocalInferError
from localinfer.kernels.host.sampler import Breakers, Draw, NativeSampler

if TYPE_CHECKING:
    from localinfer.engine.beam import Candidate


class Sampler:
    """Applies SamplingParams to rows of `vocab_size` logits, each given by its address.

    DRY looks at `longest` tokens at most. LocalInferError if nothing can be drawn from a row (NaN, for example).
    """

    def __init__(self, vocab_size: int, longest: int = 0) -> None:
        self._native = NativeSampler(vocab_size, longest)
        self._row = array("f")  # a copy for logits processors, once there are any

    def draw(
        self,
        logits: int,
        sequence: Sequence,
        params: SamplingParams,
        draw: Draw,
        banned: array[int] | None,
        allowed: array[int] | None = None,
        processors: Tokens[LogitsProcessor] = (),
    ) -> tuple[int, TokenLogprob | None]:
        """The token at position `len(sequence.tokens)`, and its log probability if `params` needs it.

        `draw` is what `new_draw` made; tokens in `banned` cannot be drawn, nor those whose bit in `allowed` is not set.
        It has to be told if the token is accepted (Draw.accept).
        """
        self._look_at(sequence, params, draw, banned)
        draw.allow(allowed)
        needed = params.logprobs or params.withholds
        if processors:
            token = self._native.draw(self._processed(logits, sequence, draw, processors), draw).token
            return token, self.logprob(logits, token, params.top_logprobs) if needed else None
        token, logprob, top = self._native.draw(logits, draw, params.top_logprobs if needed else None)
        return token, None if logprob is None else TokenLogprob(token, logprob, top)

    def candidates(
        self,
        logits: int,
        sequence: Sequence,
        params: SamplingParams,
        draw: Draw,
        banned: array[int] | None,
        count: int,
        processors: Tokens[LogitsProcessor] = (),
    ) -> list[Candidate]:
        """The `count` tokens that rank first after bias and penalties; fewer if not so many can follow."""
        from localinfer.engine.beam import Candidate

        self._look_at(sequence, params, draw, banned)
        changed = self._processed(logits, sequence, draw, processors) if processors else logits
        return [
            Candidate(token, score, self.logprob(logits, token, params.top_logprobs) if params.logprobs else None)
            for token, score in self._native.candidates(changed, draw, count)
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
        if params.looks_back:
            draw.look_back(sequence.tokens[-max(0, params.dry_penalty_last_n) :])

    def _processed(self, logits: int, sequence: Sequence, draw: Draw, processors: Tokens[LogitsProcessor]) -> int:
        """The address of a row that was given to the processors, one after the other."""
        size = 4 * self._native.vocab_size
        if not self._row:
            self._row = array("f", bytes(size))
        draw.adjusts = True
        address = self._row.buffer_info()[0]
        memmove(address, logits, size)
        for processor in processors:
            view = memoryview(self._row).cast("B").cast("f")
            try:
                result = processor(sequence.tokens[:], view)
            except Exception as error:
                words = f"{type(error).__name__}: {error}".removesuffix(": ")
                raise LocalInferError(f"a logits processor failed: {words}") from error
            if result is not None and result is not view:
                raise LocalInferError(
                    f"a logits processor returned a {type(result).__name__}",
                    "it has to change the logits that it is given, and to return nothing",
                )
        return address


def new_draw(params: SamplingParams, seed: int, choice: int = 0, breakers: Breakers | None = None) -> Draw:
    """What all draws of one answer have in common; `breakers` are params.dry_sequence_breakers in tokens."""
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
        top_n_sigma=params.top_n_sigma,
        dynatemp_range=params.dynatemp_range,
        dynatemp_exponent=params.dynatemp_exponent,
        xtc_probability=params.xtc_probability,
        xtc_threshold=params.xtc_threshold,
        mirostat=params.mirostat,
        mirostat_tau=params.mirostat_tau,
        mirostat_eta=params.mirostat_eta,
        dry_multiplier=params.dry_multiplier,
        dry_base=params.dry_base,
        dry_allowed_length=params.dry_allowed_length,
        dry_breakers=breakers,
    )
