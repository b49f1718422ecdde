"""The engine: one synchronous loop in one thread. Schedule, step, sample, emit."""

from __future__ import annotations

import itertools
import os
import time
from array import array
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import replace

from localinfer.engine.checks import token_ids
from localinfer.engine.kv import BlockManager
from localinfer.engine.request import Choice, FinishReason, Output, Request, TextDecoder, TokenLogprob
from localinfer.engine.runner import run_step
from localinfer.engine.sampler import Sampler, new_draw
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.scheduler import Scheduler
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.statistics import EngineStatistics
from localinfer.engine.stop import StopMatcher
from localinfer.errors import ContextLengthError, LocalInferError
from localinfer.kernels.base import Cancelled, Executable, LoadConfig


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
        self._counters = EngineStatistics()

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def statistics(self) -> EngineStatistics:
        """A copy of the counters and gauges; any thread may read it."""
        scheduler, kv = self.scheduler, self.kv
        return replace(
            self._counters,
            preemptions=self._counters.preemptions + sum(r.preemptions for r in list(self._requests.values())),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_blocks_used=kv.count - kv.free,
            kv_blocks_total=kv.count,
            kv_waste_tokens=sum(kv.waste(sequence) for sequence in list(scheduler.running)),
        )

    def add_request(
        self,
        prompt: Tokens[int],
        params: SamplingParams,
        new_decoder: Callable[[], TextDecoder] | None = None,
        *,
        priority: int = 0,
    ) -> Request:
        """Queues a prompt of token ids. ContextLengthError if it cannot be answered in the context.

        `new_decoder` makes the decoder of one answer; without it outputs have no text, and stop texts cannot be
        found. A lower `priority` is served earlier.
        """
        prompt = token_ids("the prompt", prompt, self.vocab_size)
        self._check_length(prompt, params)
        token_ids("stop_token_ids", params.stop_token_ids, self.vocab_size)
        token_ids("logit_bias", params.logit_bias, self.vocab_size)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_ids)
        if params.stop and new_decoder is None:
            raise LocalInferError("stop texts need a decoder, or use stop_token_ids")
        id = next(self._ids)
        seed = int.from_bytes(os.urandom(6), "little") if params.seed is None else params.seed
        sequence = Sequence.of_prompt(id, prompt, priority=priority)
        decoder, stops = new_decoder() if new_decoder else None, StopMatcher(params.stop)
        request = Request(
            id=id,
            params=params,
            seed=seed,
            priority=priority,
            prompt=array("i", prompt),
            choices=[Choice(0, sequence, decoder, stops, new_draw(params, seed))],
            arrived=time.perf_counter(),
            stop_ids=stop_ids,
            banned=array("i", sorted(stop_ids)),
        )
        self._requests[id] = request
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
        self._begin(chunks)
        self._in_step = frozenset(chunk.sequence.id for chunk in chunks)
        try:
            logits = run_step(self._executable, chunks)
        except Cancelled:
            self.scheduler.rollback(chunks)
            self._leave_aborted()
            return
        except Exception as error:  # it would fail again and again, so nobody who took part may stay
            self.scheduler.rollback(chunks)
            self._fail([chunk.sequence for chunk in chunks], error)
            return
        except BaseException:
            self.scheduler.rollback(chunks)
            raise
        finally:
            self._in_step = frozenset()
        self._count(chunks)
        answering = [chunk.sequence for chunk in chunks if chunk.rows]
        self.scheduler.commit(chunks)
        row_bytes = 4 * logits.vocab_size
        done = 0
        try:
            for row, sequence in enumerate(answering):
                self._advance(sequence, logits.address + row * row_bytes)
                done += 1
        finally:  # Ctrl-C between two rows: the logits of those behind are gone
            lost = LocalInferError("the answer was interrupted while its next token was drawn")
            self._fail(answering[done:], lost)

    def _begin(self, chunks: list[Chunk]) -> None:
        """Notes when requests take part in a step for the first time, and what the cache spared them."""
        now = time.perf_counter()
        for chunk in chunks:
            request = self._requests[chunk.sequence.id]
            if not request.first_step:
                request.first_step = now
                self._counters.prompt_tokens += len(request.prompt)
                self._counters.cached_tokens += request.cached or 0

    def _count(self, chunks: list[Chunk]) -> None:
        """Counts a step that is executed but not committed."""
        prompts = sum(chunk.sequence.computed < chunk.sequence.prompt_length for chunk in chunks)
        self._counters.steps += 1
        self._counters.steps_mixed += 0 < prompts < len(chunks)
        self._counters.steps_cached += any(chunk.sequence.cached for chunk in chunks)

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        for sequence in sequences:
            if (request := self._requests.get(sequence.id)) is not None:
                self._end(request, "error", str(error), error)

    def _advance(self, sequence: Sequence, logits: int) -> None:
        """Draws the next token of a sequence; its request ends if it cannot be drawn."""
        request = self._requests[sequence.id]
        try:
            self._draw(request, request.choices[sequence.index], logits)
        except Exception as error:
            self._end(request, "error", str(error), error)

    def _draw(self, request: Request, choice: Choice, logits: int) -> None:
        params, sequence = request.params, choice.sequence
        early = choice.generated_count < params.min_tokens
        token, logprob = self._sampler.draw(logits, sequence, params, choice.draw, request.banned if early else None)
        request.last_token = time.perf_counter()
        request.first_token = request.first_token or request.last_token
        self._counters.generated_tokens += 1
        sequence.tokens.append(token)
        if logprob is not None:
            choice.logprobs.append(logprob)
        if token in request.stop_ids:
            return self._finish(request, choice, "stop", f"token {token}", token, "", logprob)
        text = choice.decoder.push(token) if choice.decoder else ""
        text = text if early else choice.stops.push(text)
        if end := self._end_after(params, choice):
            return self._finish(request, choice, *end, token, text, logprob)
        self._outputs.append(Output(request, choice.index, token, text, logprob, None))

    def _end_after(self, params: SamplingParams, choice: Choice) -> tuple[FinishReason, str] | None:
        """Whether an answer ends with the token it has just got: why, and in words."""
        if choice.stops.matched is not None:
            return "stop", f"text {choice.stops.matched!r}"
        if choice.generated_count == params.max_tokens:
            return "length", f"max_tokens {params.max_tokens}"
        if len(choice.sequence.tokens) == self.config.context:
            return "length", f"the context of {self.config.context} tokens is full"
        return None

    def _end(self, request: Request, reason: FinishReason, detail: str, error: Exception | None = None) -> None:
        """All answers of a request that are under way end, whatever they have got."""
        request.error = request.error or error
        for choice in request.choices:
            if choice.finish_reason is None:
                self._finish(request, choice, reason, detail)

    def _finish(
        self,
        request: Request,
        choice: Choice,
        reason: FinishReason,
        detail: str,
        token: int | None = None,
        text: str = "",
        logprob: TokenLogprob | None = None,
    ) -> None:
        """An answer is over; text still on its way is let out first."""
        try:
            text += choice.last_text()
        except Exception as error:
            request.error = request.error or error
            reason, detail = "error", str(request.error)
        choice.finish_reason, choice.finish_detail = reason, detail
        self.scheduler.finish(choice.sequence)
        if all(each.finish_reason for each in request.choices):
            request.finish_reason = request.choices[0].finish_reason
            self._counters.preemptions += request.preemptions
            del self._requests[request.id]
        self._outputs.append(Output(request, choice.index, token, text, logprob, reason))

    def _leave_aborted(self) -> None:
        while self._aborted:
            request = self._requests.get(self._aborted.popleft())
            if request is not None:
                self._end(request, "cancelled", "by the caller")

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
