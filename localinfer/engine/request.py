"""What was asked of the engine, and what has come of it so far."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from localinfer.engine.pooling import Pool
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.sequence import NearMiss, Sequence
from localinfer.engine.stop import StopMatcher
from localinfer.kernels.host.sampler import Draw

if TYPE_CHECKING:
    from localinfer.engine.beam import BeamSearch
    from localinfer.text.constraint import Constraint

FinishReason = Literal["stop", "length", "cancelled", "error", "loop"]


class TextDecoder(Protocol):
    """Turns the tokens of one answer into text, piece by piece, never splitting a character."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


# From the tokens so far, prompt and answer, and a row of logits that it changes in place. LLM.stream says more.
LogitsProcessor = Callable[["array[int]", "memoryview[float]"], object]


class TokenLogprob(NamedTuple):
    """A token, its log probability, and the likeliest tokens at its place with theirs, the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Choice:
    """One of the answers to a request."""

    index: int
    sequence: Sequence
    decoder: TextDecoder | None
    stops: StopMatcher
    draw: Draw
    constraint: Constraint | None = None  # what may come next in it
    logprobs: list[TokenLogprob] = field(default_factory=list)  # if asked for, or needed to rank the choices
    withheld: list[Output] = field(default_factory=list)  # until it is certain that this choice is given
    finish_reason: FinishReason | None = None
    finish_detail: str = ""  # in words: which stop string, or that the context is full

    @property
    def mean_logprob(self) -> float:
        """What `best_of` ranks by."""
        return sum(each.logprob for each in self.logprobs) / len(self.logprobs) if self.logprobs else -inf

    @property
    def generated(self) -> array[int]:
        return self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def generated_count(self) -> int:
        return len(self.sequence.tokens) - self.sequence.prompt_length

    def last_text(self) -> str:
        """The text that was still on its way when the answer ended, unless a stop string swallowed it."""
        if self.stops.matched is not None:
            return ""
        text = self.stops.push(self.decoder.finish() if self.decoder else "")
        return text if self.stops.matched is not None else text + self.stops.finish()


@dataclass(eq=False)
class Request:
    """A prompt, how it is to be answered, and its answers. Times are of time.perf_counter(), 0 before they come.

    Once it is over, `choices` are the answers given, in order; until then there may be more of them. An embedding has
    a single choice without tokens.
    """

    id: int
    params: SamplingParams
    seed: int
    priority: int
    prompt: array[int]
    choices: list[Choice]
    arrived: float
    stop_ids: frozenset[int]
    banned: array[int]  # what cannot be drawn before min_tokens
    logits_processors: tuple[LogitsProcessor, ...] = ()
    prompt_logprobs: list[TokenLogprob | None] | None = None  # of the prompt's tokens so far; None of the first
    search: BeamSearch | None = None
    pool: Pool | None = None
    embedding: array[float] | None = None  # float32, not normalized
    cached: int | None = None  # prompt tokens that were found in the cache; None before the first step
    near_miss: NearMiss | None = None  # where the prompt parted from what the cache held, if it began like that
    dropped_preemptions: int = 0  # of what is no choice any more
    finish_reason: FinishReason | None = None  # of the first choice, once all are over
    error: Exception | None = None  # of a finish_reason "error"; what is no LocalInferError is a bug of ours
    first_step: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def preemptions(self) -> int:
        """How often an answer gave its room to others and was computed again."""
        return self.dropped_preemptions + sum(choice.sequence.preemptions for choice in self.choices)

    def give_best(self) -> None:
        """Only the `params.n` choices with the largest mean log probability stay, the best first."""
        ranked = sorted(self.choices, key=lambda choice: (-choice.mean_logprob, choice.index))
        self.dropped_preemptions += sum(choice.sequence.preemptions for choice in ranked[self.params.n :])
        self.choices = ranked[: self.params.n]
        for index, choice in enumerate(self.choices):
            choice.index = index
            choice.withheld = [replace(output, index=index) for output in choice.withheld]


@dataclass(frozen=True, slots=True)
class Output:
    """What one step brought one choice of a request.

    `text` may lag behind `token`: a stop string may be under way. After the last output of a request,
    `Request.finish_reason` is set.
    """

    request: Request
    index: int
    token: int | None
    text: str
    logprob: TokenLogprob | None
    finish_reason: FinishReason | None
