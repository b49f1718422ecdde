"""What is known of one request: filled by its handler, read by the log and the metrics when it is over."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from localinfer.engine.request import Request
    from localinfer.text.tokenizer import Tokenizer

NEAR = 8  # tokens that a prompt has in common with the cache, if it is worth a word that it then parts from it
CLIENT_LEFT = 499  # the status of an answer that nobody waited for, as nginx writes it in its logs


class NearMiss(NamedTuple):
    """Where a prompt parted from what the prefix cache holds: the tokens before `position` were the same."""

    position: int
    cached: bytes  # the text of the token in the cache, and of the one in its place
    asked: bytes


@dataclass(eq=False)
class RequestRecord:
    """One HTTP request, from its arrival to its last byte.

    A handler makes it when the request arrives, sets what it learns, and calls `done` exactly where the answer ends:

        record = RequestRecord("/v1/chat/completions", client, report)
        record.model = model.name              # once it is found: it becomes a label, so never the client's own text
        record.add(request, llm.tokenizer)     # each request handed to the engine (one per prompt or input)
        record.token_times = answers.token_times
        record.done()                          # or done(400, "the prompt is empty"), or done(CLIENT_LEFT)

    Times are those of time.perf_counter(), in seconds. With several engine requests the first step and the first token
    are the earliest, the last token is the latest: queue, prefill and decode follow each other and add up.
    """

    endpoint: str
    client: str = ""
    report: Callable[[RequestRecord], None] = lambda record: None
    id: str = ""
    model: str = ""
    streamed: bool = False
    ignored_fields: tuple[str, ...] = ()  # fields that we do not know; the client's own text
    arrived: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    status: int = 0
    error: str = ""  # in words, for a person; may quote the client
    token_times: array[float] = field(default_factory=lambda: array("d"))  # when steps brought tokens of it
    requests: list[Request] = field(default_factory=list)
    near_miss: NearMiss | None = None
    _tokenizer: Tokenizer | None = None

    def add(self, request: Request, tokenizer: Tokenizer | None = None) -> None:
        """A request of the engine that works for this one; `tokenizer` puts a near miss into words."""
        self.requests.append(request)
        self._tokenizer = tokenizer

    def done(self, status: int = 200, error: str = "") -> None:
        """The answer is over, well or badly. Reports it; whoever calls again changes nothing."""
        if self.status:
            return
        self.status, self.error, self.ended = status, error, time.perf_counter()
        for request in self.requests:
            miss = request.near_miss
            if miss is not None and miss.position >= NEAR and self._tokenizer is not None:
                text = self._tokenizer.token_bytes
                self.near_miss = NearMiss(miss.position, text(miss.cached), text(miss.asked))
        self.report(self)

    @property
    def gaps(self) -> list[float]:
        """Seconds between the steps that brought tokens."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Why each answer ended, in order; of one that has not ended, nothing."""
        reasons = [choice.finish_reason for request in self.requests for choice in request.choices]
        return tuple(reason for reason in reasons if reason is not None)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose keys and values were there already."""
        return sum(request.cached or 0 for request in self.requests)

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def generated_tokens(self) -> int:
        """Drawn tokens of all answers, those that ended them included."""
        return sum(choice.generated_count for request in self.requests for choice in request.choices)

    @property
    def preemptions(self) -> int:
        return sum(request.preemptions for request in self.requests)

    @property
    def first_step(self) -> float:
        """0 if no step has worked for it."""
        return min((request.first_step for request in self.requests if request.first_step), default=0.0)

    @property
    def first_token(self) -> float:
        """0 if none was drawn."""
        return min((request.first_token for request in self.requests if request.first_token), default=0.0)

    @property
    def last_token(self) -> float:
        return max((request.last_token for request in self.requests), default=0.0)

    @property
    def total_seconds(self) -> float:
        return self.ended - self.arrived

    @property
    def queue_seconds(self) -> float:
        """From arrival to the first step: tokenizing, loading the model and waiting."""
        return (self.first_step or self.ended) - self.arrived

    @property
    def prefill_seconds(self) -> float:
        """From the first step to the first token, or to the end if there was none."""
        return (self.first_token or self.ended) - self.first_step if self.first_step else 0.0

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return self.last_token - self.first_token if self.first_token else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first of each answer, by the time they took; 0 if there are none."""
        answers = sum(bool(choice.generated_count) for request in self.requests for choice in request.choices)
        return (self.generated_tokens - answers) / self.decode_seconds if self.decode_seconds > 0 else 0.0
