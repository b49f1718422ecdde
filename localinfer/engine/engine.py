"""The engine: one synchronous loop in one thread. Schedule, step, sample, emit."""

from __future__ import annotations

import itertools
import os
import time
from array import array
from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from localinfer.engine.checks import token_ids
from localinfer.engine.kv import BlockManager
from localinfer.engine.runner import run_step
from localinfer.engine.sampler import Sampler
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.scheduler import Scheduler
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.stop import StopMatcher
from localinfer.errors import ContextLengthError, LocalInferError
from localinfer.kernels.base import Cancelled, Executable, LoadConfig

FinishReason = Literal["stop", "length", "cancelled", "error"]


class TextDecoder(Protocol):
    """Turns the tokens of one answer into text, piece by piece, never splitting a character."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


@dataclass(eq=False)
class Request:
    """What was asked, and what has come of it so far."""

    id: int
    params: SamplingParams
    seed: int
    sequence: Sequence
    decoder: TextDecoder | None
    stops: StopMatcher
    arrived: float
    stop_ids: frozenset[int]
    banned: array[int]  # what cannot be drawn before min_tokens
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    finish_detail: str = ""  # in words: which stop string, or that the context is full
    error: Exception | None = None  # of a finish_reason "error"; what is no LocalInferError is a bug of ours
    first_step: float = 0.0  # times of time.perf_counter()
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def generated(self) -> array[int]:
        return self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def generated_count(self) -> int:
        return len(self.sequence.tokens) - self.sequence.prompt_length


class Output(NamedTuple):
    """What one step brought one request. `text` may lag behind `token`: a stop string may be under way."""

    request: Request
    token: int | None
    text: str
    finish_reason: FinishReason | None


class Engine:
    """Runs any number of requests on one Executable.

    One thread calls everything; `abort` alone may be called from any thread, and from a signal handler.
    """

    def __init__(
        self,
        executable: Executable,
        config: LoadConfig,
        vocab_size: int,
        *,
        end_ids: Tokens[int] = (),
        prefix_cache: bool = True,
        chunk: int = 0,
    ) -> None:
        """`end_ids` are the tokens that the model ends an answer with; `chunk` is as in Scheduler."""
        self.config = config
        self.vocab_size = vocab_size
        self.kv = BlockManager(config.kv_blocks, config.block_size, share=prefix_cache)
        if self.kv.blocks_for(config.context) > config.kv_blocks:
            raise ValueError(f"{config.kv_blocks} KV blocks do not hold a context of {config.context} tokens")
        self.scheduler = Scheduler(
            self.kv, max_tokens=config.max_tokens, max_sequences=config.max_sequences, chunk=chunk
        )
        self._executable = executable
        self._sampler = Sampler(vocab_size)
        self._end_ids = frozenset(end_ids)
        self._requests: dict[int, Request] = {}
        self._ids = itertools.count()
        self._aborted: deque[int] = deque()
        self._in_step: frozenset[int] = frozenset()
        self._outputs: list[Output] = []  # what `step` returns next

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add_request(self, prompt: Tokens[int], params: SamplingParams, decoder: TextDecoder | None = None) -> Request:
        """Queues a prompt of token ids. ContextLengthError if it cannot be answered in the context.

        Without a decoder its outputs have no text, and stop texts cannot be found.
        """
        prompt = token_ids("the prompt", prompt, self.vocab_size)
        self._check_length(prompt, params)
        token_ids("stop_token_ids", params.stop_token_ids, self.vocab_size)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_ids)
        if params.stop and decoder is None:
            raise LocalInferError("stop texts need a decoder, or use stop_token_ids")
        sequence = Sequence.of_prompt(next(self._ids), prompt)
        request = Request(
            id=sequence.id,
            params=params,
            seed=int.from_bytes(os.urandom(6), "little") if params.seed is None else params.seed,
            sequence=sequence,
            decoder=decoder,
            stops=StopMatcher(params.stop),
            arrived=time.perf_counter(),
            stop_ids=stop_ids,
            banned=array("i", sorted(stop_ids)),
        )
        self._requests[request.id] = request
        self.scheduler.add(sequence)
        return request

    def abort(self, request_id: int) -> None:
        """Ends a request with "cancelled", waiting or running; a step that works for it stops early.

        The next call of `step` brings its last output. Nothing happens if the request is over.
        """
        self._aborted.append(request_id)
        if request_id in self._in_step:
            self._executable.cancel()

    def step(self) -> list[Output]:
        """Executes one step; what it brought, request by request. Empty if there is nothing to do.

        What goes wrong ends the requests that it concerns with "error", and is found in `Request.error`. Only what is
        meant to end the program (KeyboardInterrupt) is raised; outputs that were made by then come with the next step.
        """
        self._leave_aborted()
        if chunks := self.scheduler.schedule():
            self._run(chunks)
        outputs, self._outputs = self._outputs, []
        return outputs

    def close(self) -> None:
        self._sampler.close()
        self._executable.close()

    def _run(self, chunks: list[Chunk]) -> None:
        started = time.perf_counter()
        for chunk in chunks:
            request = self._requests[chunk.sequence.id]
            request.first_step = request.first_step or started
        self._in_step = frozenset(chunk.sequence.id for chunk in chunks)
        try:
            logits = run_step(self._executable, chunks)
        except Cancelled:
            self.scheduler.rollback(chunks)
            self._leave_aborted()
            return
        except Exception as error:  # it would fail again and again, so nobody who took part may stay
            self.scheduler.rollback(chunks)
            self._fail(chunks, error)
            return
        except BaseException:
            self.scheduler.rollback(chunks)
            raise
        finally:
            self._in_step = frozenset()
        finishing = [chunk for chunk in chunks if chunk.finishes]
        self.scheduler.commit(chunks)
        row_bytes = 4 * logits.vocab_size
        done = 0
        try:
            for row, chunk in enumerate(finishing):
                self._advance(self._requests[chunk.sequence.id], logits.address + row * row_bytes)
                done += 1
        finally:  # Ctrl-C between two rows: the logits of those behind are gone
            self._fail(finishing[done:], LocalInferError("the answer was interrupted while its next token was drawn"))

    def _fail(self, chunks: list[Chunk], error: Exception) -> None:
        for chunk in chunks:
            if (request := self._requests.get(chunk.sequence.id)) is not None:
                request.error = error
                self._finish(request, None, "", "error", str(error))

    def _advance(self, request: Request, logits: int) -> None:
        """Draws the next token of a sequence, and ends its request if that token says so, or if it cannot be drawn."""
        try:
            self._draw(request, logits)
        except Exception as error:
            request.error = error
            self._finish(request, None, "", "error", str(error))

    def _draw(self, request: Request, logits: int) -> None:
        params = request.params
        early = request.generated_count < params.min_tokens
        token, logprob = self._sampler.draw(
            logits, request.sequence, params, request.seed, request.banned if early else None
        )
        now = time.perf_counter()
        request.first_token = request.first_token or now
        request.last_token = now
        request.sequence.tokens.append(token)
        if logprob is not None:
            request.logprobs.append(logprob)
        if token in request.stop_ids:
            return self._finish(request, token, "", "stop", f"token {token}")
        text = request.decoder.push(token) if request.decoder else ""
        text = text if early else request.stops.push(text)
        if request.stops.matched is not None:
            return self._finish(request, token, text, "stop", f"text {request.stops.matched!r}")
        if request.generated_count == params.max_tokens:
            return self._finish(request, token, text, "length", f"max_tokens {params.max_tokens}")
        if len(request.sequence.tokens) == self.config.context:
            return self._finish(request, token, text, "length", f"the context of {self.config.context} tokens is full")
        self._outputs.append(Output(request, token, text, None))

    def _finish(self, request: Request, token: int | None, text: str, reason: FinishReason, detail: str) -> None:
        """The request leaves; text still on its way is let out first, unless a stop string swallowed it."""
        try:
            text += _last_text(request)
        except Exception as error:
            request.error = request.error or error
            reason, detail = "error", str(request.error)
        request.finish_reason, request.finish_detail = reason, detail
        self.scheduler.finish(request.sequence)
        del self._requests[request.id]
        self._outputs.append(Output(request, token, text, reason))

    def _leave_aborted(self) -> None:
        while self._aborted:
            request = self._requests.get(self._aborted.popleft())
            if request is not None:
                self._finish(request, None, "", "cancelled", "by the caller")

    def _check_length(self, prompt: Tokens[int], params: SamplingParams) -> None:
        context, wanted = self.config.context, params.max_tokens or 1
        if not prompt:
            raise LocalInferError("the prompt is empty: there is no token to continue from")
        if len(prompt) + wanted > context:
            asked = f" and {params.max_tokens} more are asked for" if params.max_tokens else ""
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens{asked}, but the context holds {context}",
                "shorten the prompt, lower max_tokens, or load the model with a larger context",
            )


def _last_text(request: Request) -> str:
    if request.stops.matched is not None:
        return ""
    rest = request.decoder.finish() if request.decoder else ""
    text = request.stops.push(rest)
    return text if request.stops.matched is not None else text + request.stops.finish()
