"""The engine: one synchronous loop in one thread. Schedule, step, sample, emit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from typing import TYPE_CHECKING

from localinfer.engine.admission import Admission
from localinfer.engine.kv import BlockManager
from localinfer.engine.loop import loop_period
from localinfer.engine.pooling import Pool, Pooling
from localinfer.engine.request import (
    Choice,
    FinishReason,
    LogitsProcessor,
    Output,
    Request,
    TextDecoder,
    TokenLogprob,
)
from localinfer.engine.runner import Rows, run_step
from localinfer.engine.sampler import Sampler
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.scheduler import Scheduler
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.speculation import Speculation, SpeculationMode
from localinfer.engine.statistics import EngineStatistics
from localinfer.engine.step_times import StepTimes
from localinfer.errors import LocalInferError
from localinfer.kernels.base import Cancelled, Executable, LoadConfig
from localinfer.kernels.host.sampler import Breakers
from localinfer.kernels.program import Purpose
from localinfer.text.constraint import Bounds, Constraint

if TYPE_CHECKING:
    from localinfer.engine.beam import BeamSearch
    from localinfer.engine.draft import DraftModel


class Engine:
    """Runs any number of requests on one Executable.

    One thread calls everything, but for `abort` (also from a signal handler) and `prepare`, which any thread may call.
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
        paced: bool = True,
        speculation: SpeculationMode = "off",
        draft: DraftModel | None = None,
        constrain: Callable[[Bounds], Constraint] | None = None,
        find_breakers: Callable[[tuple[str, ...]], Breakers] | None = None,
        purpose: Purpose = "text",
    ) -> None:
        """`end_ids` are the tokens that the model ends an answer with; `chunk` is as in Scheduler; not `paced` means
        that prompts come in pieces that are as large beside answers as without. `constrain` makes what watches over an
        answer that is bound, `find_breakers` finds the texts among the tokens that end DRY's repetitions.

        A draft model belongs to the engine, which closes it.
        """
        self.config = config
        self.vocab_size = vocab_size
        self.speculation: SpeculationMode = speculation
        self.kv = BlockManager(config.kv_blocks, config.block_size, share=prefix_cache)
        if self.kv.blocks_for(config.context) > config.kv_blocks:
            raise ValueError(f"{config.kv_blocks} KV blocks do not hold a context of {config.context} tokens")
        times = StepTimes()
        self.scheduler = Scheduler(
            self.kv,
            max_tokens=config.max_tokens,
            max_sequences=config.max_sequences,
            max_rows=config.max_rows,
            chunk=chunk,
            times=times if paced else None,
        )
        self._speculation = Speculation(
            speculation, self.kv, times, max_tokens=config.max_tokens, max_rows=config.max_rows, draft=draft
        )
        self._executable = executable
        self._sampler = Sampler(vocab_size, config.context)
        self._admission = Admission(config.context, vocab_size, end_ids, constrain, find_breakers, purpose)
        self._requests: dict[int, Request] = {}
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
            kv_waste_tokens=sum(kv.waste(sequence) for sequence in (*scheduler.running, *scheduler.parked)),
        )

    def prepare(self, params: SamplingParams) -> None:
        """Compiles what binds an answer ahead, which may take a second. Any thread may call it.

        LocalInferError says what of a grammar is wrong, or cannot be enforced.
        """
        self._admission.constraint(params)

    def prepare_breakers(self, params: SamplingParams) -> None:
        """Finds DRY's sequence breakers ahead, which may take a tenth of a second. Any thread may call it."""
        self._admission.breakers(params)

    def add_request(
        self,
        prompt: Tokens[int],
        params: SamplingParams,
        new_decoder: Callable[[], TextDecoder] | None = None,
        *,
        priority: int = 0,
        logits_processors: Iterable[LogitsProcessor] = (),
    ) -> Request:
        """Queues a prompt of token ids. ContextLengthError if it cannot be answered in the context.

        `new_decoder` makes the decoder of one answer; without it outputs have no text, and stop texts cannot be
        found. A lower `priority` is served earlier. LLM.stream says what `logits_processors` are.
        """
        return self._queue(self._admission.answer(prompt, params, new_decoder, priority, logits_processors))

    def add_embedding(
        self, prompt: Tokens[int], *, pooling: Pooling = "mean", priority: int = 0, second: int | None = None
    ) -> Request:
        """Queues token ids whose hidden states are wanted as one vector, `Request.embedding` once it is finished.

        See engine/pooling.py for what `pooling` means. The prefix cache is not used. ContextLengthError if the prompt
        is longer than the context.

        A model for ranking makes one number of a query and a document, whose tokens begin at `second`.
        UnsupportedError if that is asked of another model, or another thing of that model.
        """
        return self._queue(self._admission.embedding(prompt, pooling, priority, second))

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
        started = time.perf_counter()
        chunks = self._speculation.extend(self.scheduler.schedule(), self.scheduler.running, self._room, self._guess)
        answers = sum(chunk.decodes for chunk in chunks)
        prompt_tokens = sum(chunk.count for chunk in chunks) - answers
        if not prompt_tokens:
            started = time.perf_counter()  # what drafting takes is counted by itself
        steps = self._counters.steps
        try:
            for hidden in (False, True):
                self._run([chunk for chunk in chunks if chunk.sequence.hidden == hidden])
        except BaseException:
            self.scheduler.rollback(chunks)  # of what is committed it takes nothing back
            raise
        if self._counters.steps > steps:
            self._count_drafts(*self._speculation.settle(answers, prompt_tokens, time.perf_counter() - started))
        outputs, self._outputs = self._outputs, []
        return outputs

    def close(self) -> None:
        self._sampler.close()
        self._speculation.close()
        self._executable.close()

    def _run(self, chunks: list[Chunk]) -> None:
        """Executes chunks that want logits all, or all hidden states."""
        chunks = [chunk for chunk in chunks if chunk.sequence.id in self._requests]
        if not chunks:
            return
        self._begin(chunks)
        self._in_step = frozenset(chunk.sequence.id for chunk in chunks)
        try:
            results = run_step(self._executable, chunks)
        except Cancelled:
            self.scheduler.rollback(chunks)
            self._leave_aborted()
            return
        except Exception as error:  # it would fail again and again, so nobody who took part may stay
            self.scheduler.rollback(chunks)
            self._fail([chunk.sequence for chunk in chunks], error)
            return
        finally:
            self._in_step = frozenset()
        self._count(chunks)
        self.scheduler.commit(chunks)
        done = 0
        try:
            for rows in results:
                self._take(rows)
                done += 1
        finally:  # Ctrl-C between two rows: the logits of those behind are gone
            lost = LocalInferError("the answer was interrupted while its next token was drawn")
            self._fail([rows.sequence for rows in results[done:]], lost)

    def _begin(self, chunks: list[Chunk]) -> None:
        """Notes when requests take part in a step for the first time, and what the cache spared them."""
        now = time.perf_counter()
        for chunk in chunks:
            request = self._requests[chunk.sequence.id]
            if not request.first_step:
                request.first_step = now
                request.cached, request.near_miss = chunk.sequence.cached, chunk.sequence.near_miss
                self._counters.prompt_tokens += len(request.prompt)
                self._counters.cached_tokens += request.cached or 0

    def _count(self, chunks: list[Chunk]) -> None:
        """Counts a step that is executed but not committed."""
        prompts = sum(chunk.sequence.computed < chunk.sequence.prompt_length for chunk in chunks)
        self._counters.steps += 1
        self._counters.steps_mixed += 0 < prompts < len(chunks)
        self._counters.steps_cached += any(chunk.sequence.cached for chunk in chunks)

    def _count_drafts(self, drafted: int, accepted: int) -> None:
        self._counters.steps_speculated += drafted > 0
        self._counters.drafted += drafted
        self._counters.accepted += accepted
        self._counters.rejected += drafted - accepted

    def _room(self, sequence: Sequence) -> int:
        """How many tokens it makes sense to draft: another is drawn behind them, and the answer may end before."""
        request = self._requests[sequence.id]
        if request.params.beam_width:
            return 0
        most = self.config.context - len(sequence.tokens)
        if request.params.max_tokens is not None:
            most = min(most, request.params.max_tokens + sequence.prompt_length - len(sequence.tokens))
        return max(0, most - 1)

    def _guess(self, sampler: Sampler, sequence: Sequence, shadow: Sequence, logits: int) -> int:
        """What the target would draw from logits of a draft model. LocalInferError if it is not among its tokens.

        Logits processors are not asked: they see each token of an answer once.
        """
        request = self._requests[sequence.id]
        early = len(shadow.tokens) - shadow.prompt_length < request.params.min_tokens
        draw, banned = request.choices[sequence.index].draw, request.banned if early else None
        learned = draw.mirostat_mu
        if len(shadow.tokens) > len(sequence.tokens):
            draw.accept()  # as if the tokens guessed before were part of the answer
        try:
            token, _ = sampler.draw(logits, shadow, request.params, draw, banned)
        finally:
            draw.mirostat_mu = learned
        if token >= self.vocab_size:
            raise LocalInferError(f"token {token} is not in the vocabulary")
        return token

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        for sequence in sequences:
            if (request := self._requests.get(sequence.id)) is not None:
                self._end(request, "error", str(error), error)

    def _take(self, rows: Rows) -> None:
        """Makes of the rows of a sequence what its request asks for; the request ends if that is not possible."""
        if (request := self._requests.get(rows.sequence.id)) is None:
            return  # another of its choices has just failed
        try:
            if request.pool is not None:
                self._pool(request, request.pool, rows)
            else:
                self._take_logits(request, rows)
        except Exception as error:
            self._end(request, "error", str(error), error)

    def _take_logits(self, request: Request, rows: Rows) -> None:
        sequence = rows.sequence
        for index in range(rows.count):
            following = rows.first + index + 1
            if following < len(sequence.tokens):
                self._tell_prompt_logprob(request, sequence, following, rows.row(index))
            elif request.search is not None:
                self._search(request, request.search, sequence, rows.row(index))
            elif not request.first_token:
                self._begin_answers(request, rows.row(index))
            else:
                return self._answer(request, request.choices[sequence.index], rows, index)

    def _tell_prompt_logprob(self, request: Request, sequence: Sequence, position: int, logits: int) -> None:
        top = request.params.prompt_logprobs
        if request.prompt_logprobs is not None and top is not None:
            request.prompt_logprobs.append(self._sampler.logprob(logits, sequence.tokens[position], top))
            sequence.rows_from = position

    def _begin_answers(self, request: Request, logits: int) -> None:
        """The prompt is processed: every choice goes on from it, with a first token of its own."""
        first, *others = request.choices
        first.sequence.rows_from = None
        copies = [pair for choice in others for pair in self.scheduler.fork(first.sequence, choice.sequence)]
        if copies:
            self._executable.copy_blocks(copies)
        for choice in request.choices:
            self._draw(request, choice, logits)

    def _answer(self, request: Request, choice: Choice, rows: Rows, index: int) -> None:
        """Draws the next token; if it was drafted, the row behind it holds too, and so on."""
        self._draw(request, choice, rows.row(index))
        for count, token in enumerate(rows.drafts, 1):
            if choice.finish_reason is not None or choice.sequence.tokens[-1] != token:
                break
            self._speculation.accept(choice.sequence)
            self._draw(request, choice, rows.row(index + count))

    def _search(self, request: Request, search: BeamSearch, sequence: Sequence, logits: int) -> None:
        """A beam has its logits. Once all beams have, the search goes a step further, and ends perhaps."""
        sequence.rows_from = None
        request.first_token = request.first_token or time.perf_counter()
        early = len(sequence.tokens) - sequence.prompt_length < request.params.min_tokens
        draw, banned = request.choices[0].draw, request.banned if early else None
        count = search.width + len(request.stop_ids)
        processors = request.logits_processors
        found = self._sampler.candidates(logits, sequence, request.params, draw, banned, count, processors)
        self.scheduler.park(sequence)
        if search.offer(sequence, found):
            self._search_on(request, search)

    def _search_on(self, request: Request, search: BeamSearch) -> None:
        step = search.choose()
        for dropped in step.dropped:
            request.dropped_preemptions += dropped.preemptions
            self.scheduler.finish(dropped)
        for beam in search.sequences:
            self.scheduler.resume(beam)
        copies = [pair for fork in step.forks for pair in self.scheduler.fork(*fork)]
        if copies:
            self._executable.copy_blocks(copies)
        search.advance()
        self._counters.generated_tokens += len(search.beams)
        if not search.beams:
            self._give_found(request, search)

    def _give_found(self, request: Request, search: BeamSearch) -> None:
        """The answers that were found get their tokens, as if these had just been drawn."""
        request.last_token = time.perf_counter()
        request.choices = request.choices[: len(search.finished)]
        for choice, found in zip(request.choices, search.finished, strict=False):
            choice.sequence = Sequence.of_prompt(request.id, request.prompt, index=choice.index)
            for place, token in enumerate(found.tokens):
                self._append(request, choice, token, found.told[place] if found.told else None)

    def _pool(self, request: Request, pool: Pool, rows: Rows) -> None:
        request.embedding = pool.add(rows)
        rows.sequence.rows_from = pool.rows_from
        if request.embedding is not None:
            self._finish(request, request.choices[0], "stop", "the text is embedded")

    def _draw(self, request: Request, choice: Choice, logits: int) -> None:
        params, sequence = request.params, choice.sequence
        early = choice.generated_count < params.min_tokens
        allowed = choice.constraint.allowed() if choice.constraint is not None else None
        banned = request.banned if early and allowed is None else None
        processors = request.logits_processors
        token, logprob = self._sampler.draw(logits, sequence, params, choice.draw, banned, allowed, processors)
        if params.mirostat:
            choice.draw.accept()
        request.last_token = time.perf_counter()
        request.first_token = request.first_token or request.last_token
        self._counters.generated_tokens += 1
        self._append(request, choice, token, logprob)

    def _append(self, request: Request, choice: Choice, token: int, logprob: TokenLogprob | None) -> None:
        """An answer gets its next token, which may be its last."""
        params = request.params
        early = choice.generated_count < params.min_tokens
        choice.sequence.tokens.append(token)
        if choice.constraint is not None:
            choice.constraint.accept(token)
        if logprob is not None:
            choice.logprobs.append(logprob)
        logprob = logprob if params.logprobs else None
        if token in request.stop_ids:
            return self._finish(request, choice, "stop", f"token {token}", token, "", logprob)
        text = choice.decoder.push(token) if choice.decoder else ""
        text = text if early else choice.stops.push(text)
        if end := self._end_after(params, choice):
            return self._finish(request, choice, *end, token, text, logprob)
        self._emit(request, choice, token, text, logprob)

    def _end_after(self, params: SamplingParams, choice: Choice) -> tuple[FinishReason, str] | None:
        """Whether an answer ends with the token it has just got: why, and in words."""
        if choice.stops.matched is not None:
            return "stop", f"text {choice.stops.matched!r}"
        if choice.constraint is not None and choice.constraint.complete:
            return "stop", "the grammar allows nothing more"
        if params.loop_detection and (period := loop_period(choice.generated)):
            return "loop", f"the last {'token repeats' if period == 1 else f'{period} tokens repeat'} again and again"
        if choice.generated_count == params.max_tokens:
            return "length", f"max_tokens {params.max_tokens}"
        if len(choice.sequence.tokens) == self.config.context:
            return "length", f"the context of {self.config.context} tokens is full"
        return None

    def _end(self, request: Request, reason: FinishReason, detail: str, error: Exception | None = None) -> None:
        """All answers of a request that are under way end, whatever they have got."""
        request.error = request.error or error
        for beam in request.search.sequences if request.search else ():
            self.scheduler.finish(beam)
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
        self._emit(request, choice, token, text, logprob)
        if all(each.finish_reason for each in request.choices):
            self._leave(request)

    def _emit(
        self, request: Request, choice: Choice, token: int | None, text: str, logprob: TokenLogprob | None
    ) -> None:
        outputs = choice.withheld if request.params.withholds else self._outputs
        outputs.append(Output(request, choice.index, token, text, logprob, choice.finish_reason))

    def _leave(self, request: Request) -> None:
        """A request is over."""
        if request.params.withholds:
            if request.search is None:
                request.give_best()
            self._outputs += [output for choice in request.choices for output in choice.withheld]
        request.finish_reason = request.choices[0].finish_reason
        self._counters.preemptions += request.preemptions
        del self._requests[request.id]

    def _leave_aborted(self) -> None:
        while self._aborted:
            request = self._requests.get(self._aborted.popleft())
            if request is not None:
                self._end(request, "cancelled", "by the caller")

    def _queue(self, request: Request) -> Request:
        self._requests[request.id] = request
        self.scheduler.add(request.choices[0].sequence)
        return request
