"""Makes a Request of what is asked, or says why it cannot be answered."""

from __future__ import annotations

import itertools
import os
import time
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, get_args

from localinfer.engine.checks import token_ids, wrong
from localinfer.engine.pooling import Pool, Pooling
from localinfer.engine.request import Choice, LogitsProcessor, Request, TextDecoder
from localinfer.engine.sampler import new_draw
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import Sequence
from localinfer.engine.stop import StopMatcher
from localinfer.errors import ContextLengthError, LocalInferError, UnsupportedError
from localinfer.kernels.host.sampler import Breakers
from localinfer.kernels.program import Purpose
from localinfer.text.constraint import Bounds, Constraint

if TYPE_CHECKING:
    from localinfer.engine.beam import BeamSearch

NewDecoder = Callable[[], TextDecoder] | None
# What models are for, in words.
MADE_FOR: dict[Purpose, str] = {
    "text": "it writes text",
    "embedding": "it is an encoder, which makes embeddings of texts",
    "ranking": "it is an encoder, which gives a query and a document a score",
}
HOW_TO_ASK: dict[Purpose, str] = {
    "text": "ask for completions",
    "embedding": "ask for embeddings: LLM.embed, or /v1/embeddings",
    "ranking": "ask it to rank documents: LLM.rank, or /v1/rerank",
}


class Admission:
    """Numbers requests and knows what one may ask of a model with `vocab_size` tokens and so long a context.

    `end_ids` are the tokens that the model ends an answer with; `constrain` makes what watches over an answer that is
    bound, and raises LocalInferError for a grammar that cannot be followed; `find_breakers` finds DRY's sequence
    breakers among the tokens. A model whose `purpose` is not "text" is an encoder.
    """

    def __init__(
        self,
        context: int,
        vocab_size: int,
        end_ids: Iterable[int],
        constrain: Callable[[Bounds], Constraint] | None = None,
        find_breakers: Callable[[tuple[str, ...]], Breakers] | None = None,
        purpose: Purpose = "text",
    ) -> None:
        self._context = context
        self._vocab_size = vocab_size
        self._end_ids = frozenset(end_ids)
        self._constrain = constrain
        self._find_breakers = find_breakers
        self._purpose = purpose
        self._ids = itertools.count()

    def answer(
        self,
        prompt: Tokens[int],
        params: SamplingParams,
        new_decoder: NewDecoder,
        priority: int,
        logits_processors: Iterable[LogitsProcessor] = (),
    ) -> Request:
        """A request for answers; see Engine.add_request."""
        if self._purpose != "text":
            raise UnsupportedError(f"this model writes no text: {MADE_FOR[self._purpose]}", HOW_TO_ASK[self._purpose])
        prompt = token_ids("the prompt", prompt, self._vocab_size)
        self._check_length(prompt, params.max_tokens)
        token_ids("stop_token_ids", params.stop_token_ids, self._vocab_size)
        token_ids("logit_bias", params.logit_bias, self._vocab_size)
        if params.stop and new_decoder is None:
            raise LocalInferError("stop texts need a decoder, or use stop_token_ids")
        processors = _processors(logits_processors)
        request = self._request(prompt, params, new_decoder, priority)
        request.logits_processors = processors
        if params.prompt_logprobs is not None:
            request.prompt_logprobs = [None]
            request.choices[0].sequence.rows_from = 0
        if params.beam_width:
            request.search = self._search(request, new_decoder)
        return request

    def embedding(self, prompt: Tokens[int], pooling: Pooling, priority: int, second: int | None = None) -> Request:
        """A request for one vector; see Engine.add_embedding."""
        if pooling not in get_args(Pooling):
            raise wrong("pooling", pooling, f"one of {', '.join(get_args(Pooling))}")
        if (self._purpose == "ranking") != (second is not None):
            asked = "makes no embeddings" if second is None else "does not rank documents"
            raise UnsupportedError(f"this model {asked}: {MADE_FOR[self._purpose]}", HOW_TO_ASK[self._purpose])
        prompt = token_ids("the prompt", prompt, self._vocab_size)
        self._check_length(prompt, 0)
        if second is not None and not 0 < second < len(prompt):
            raise wrong("second", second, f"a place within the {len(prompt)} tokens")
        request = self._request(prompt, SamplingParams(), None, priority)
        request.pool = Pool("cls" if self._purpose == "ranking" else pooling, len(prompt))
        sequence = request.choices[0].sequence
        sequence.whole, sequence.second = self._purpose != "text", second
        sequence.hidden, sequence.rows_from = True, request.pool.rows_from
        return request

    def _request(self, prompt: Tokens[int], params: SamplingParams, new_decoder: NewDecoder, priority: int) -> Request:
        id = next(self._ids)
        seed = int.from_bytes(os.urandom(6), "little") if params.seed is None else params.seed
        breakers = self.breakers(params)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_ids)
        choices = [
            Choice(
                index,
                Sequence.of_prompt(id, prompt, index=index, priority=priority),
                new_decoder() if new_decoder else None,
                StopMatcher(params.stop),
                new_draw(params, seed, index, breakers),
                constraint=self.constraint(params),
            )
            for index in range(params.drawn)
        ]
        return Request(
            id=id,
            params=params,
            seed=seed,
            priority=priority,
            prompt=array("i", prompt),
            choices=choices,
            arrived=time.perf_counter(),
            stop_ids=stop_ids,
            banned=array("i", sorted(stop_ids)),
        )

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """What watches over one answer; None if nothing binds it. Any thread may call it.

        LocalInferError if a grammar cannot be followed.
        """
        if (bounds := params.bounds) is None:
            return None
        if self._constrain is None:
            raise LocalInferError("this engine was made without a vocabulary, and cannot follow a grammar")
        return self._constrain(bounds)

    def breakers(self, params: SamplingParams) -> Breakers | None:
        """What DRY's sequence breakers are in tokens. Any thread may call it."""
        if not (params.looks_back and params.dry_sequence_breakers):
            return None
        if self._find_breakers is None:
            raise LocalInferError("this engine was made without a vocabulary, and cannot find dry_sequence_breakers")
        return self._find_breakers(params.dry_sequence_breakers)

    def _search(self, request: Request, new_decoder: NewDecoder) -> BeamSearch:
        params, stop_ids = request.params, request.stop_ids
        room = self._context - len(request.prompt)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)

        def ends(answer: array[int]) -> bool:
            if answer[-1] in stop_ids:
                return True
            if not params.stop or new_decoder is None:
                return False
            decoder, stops = new_decoder(), StopMatcher(params.stop)
            for place, token in enumerate(answer):
                text = decoder.push(token)
                if place >= params.min_tokens:
                    stops.push(text)
            return stops.matched is not None

        from localinfer.engine.beam import Beam, BeamSearch

        first = Beam(request.choices[0].sequence)
        return BeamSearch(params.beam_width, params.length_penalty, limit, ends, [first])

    def _check_length(self, prompt: Tokens[int], asked: int | None) -> None:
        """`asked` tokens must have room behind the prompt; None: one at least."""
        if not prompt:
            raise LocalInferError("the prompt is empty: there is no token to continue from")
        if self._purpose != "text" and len(prompt) > self._context:
            raise ContextLengthError(
                f"the text has {len(prompt)} tokens, but the model takes {self._context} at once",
                "shorten the text, or ask for its parts one by one",
            )
        if len(prompt) + (1 if asked is None else asked) > self._context:
            more = f" and {asked} more are asked for" if asked else ""
            lower = "lower max_tokens, " if asked else ""
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens{more}, but the context holds {self._context}",
                f"shorten the prompt, {lower}or load the model with a larger context",
            )


def _processors(given: Iterable[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    if not isinstance(given, Iterable):
        raise wrong("logits_processors", given, "a sequence of functions of the tokens and the logits")
    found = tuple(given)
    for each in found:
        if not callable(each):
            raise wrong("an item of logits_processors", each, "a function of the tokens and the logits")
    return found
