"""An engine in a thread of its own, asked from an event loop.

The loop hands jobs over and never waits for a step; the thread takes them in between two steps. What a step brought
crosses back in one call for all requests, and is spread to those who wait for it on the loop's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localinfer.engine.engine import Engine
from localinfer.engine.pooling import Pooling
from localinfer.engine.request import Output, Request, TextDecoder
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.text.grammar import GrammarFailure

LONGEST_RETRY = 60  # seconds


class QueueFullError(LocalInferError):
    """Too many requests wait already. `retry_after` is a guess in whole seconds of when one will fit."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(
            f"{waiting} requests wait for this model already", f"try again in {retry_after} s, or allow a longer queue"
        )
        self.retry_after = retry_after


class EngineStoppedError(LocalInferError):
    """The engine takes no requests: it was stopped, or it has failed."""


class EngineFailedError(LocalInferError):
    """A request that the engine had accepted failed, and not by its own fault."""


@dataclass(frozen=True)
class Job:
    """One prompt: to be answered, or with `pooling`, to be embedded. Without `new_decoder` its outputs have no text."""

    prompt: Sequence[int]
    params: SamplingParams
    new_decoder: Callable[[], TextDecoder] | None = None
    priority: int = 0
    pooling: Pooling | None = None
    second: int | None = None  # of a query and a document to rank: where the document begins


class Answers:
    """What comes of the jobs of one `submit`. Everything here is called on the event loop.

    First `accepted`, then `next` until `over`. Whoever does not want the rest calls `cancel`.
    """

    def __init__(self, thread: EngineThread, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.requests: list[Request] = []  # in order of the jobs, once they are accepted
        self.started = time.perf_counter()
        self.token_times = array("d")  # when the steps ended that brought tokens, by time.perf_counter()
        self.cancelled = False
        self._thread = thread
        self._in = False  # whether the engine has accepted the jobs
        self._running = 0  # requests that have not finished
        self._error: Exception | None = None
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether `next` has nothing more to bring."""
        return not self._outputs and not self._running and (self._in or self._error is not None)

    async def accepted(self) -> list[Request]:
        """The engine's requests, in order of the jobs. Raises what the engine refuses one of them with."""
        while not self._in and self._error is None:
            await self._wait(None)
        if self._error is not None:
            raise self._error
        return self.requests

    async def next(self, patience: float | None = None) -> list[Output]:
        """The outputs since the last call, at least one; none only after `patience` seconds without any, or if over.

        Raises what ended a request with "error", EngineStoppedError if it was cancelled or the engine is gone.
        """
        if not self._outputs and not self.over:
            await self._wait(patience)
        if self._error is not None:
            raise self._error
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            if output.finish_reason == "error":
                raise _failure(output.request)
            if output.finish_reason == "cancelled":
                raise EngineStoppedError("the answer was cancelled before its end")
        return outputs

    def cancel(self) -> None:
        """Ends what is not over, within one step of the engine. May be called again, and afterwards."""
        if not self.cancelled and (self._running or not (self._in or self._error)):
            self.cancelled = True
            self._thread._abort(self)

    async def _wait(self, patience: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if patience is None else loop.call_later(patience, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _accept(self, requests: list[Request]) -> None:
        self.requests = requests
        self._in = True
        self._running = len(requests)
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._running = 0
        self._wake()

    def _push(self, output: Output, stepped: float) -> None:
        if output.token is not None and self.token_times[-1:] != array("d", [stepped]):
            self.token_times.append(stepped)
        self._outputs.append(output)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            _wake(self._waiter)


def _failure(request: Request) -> Exception:
    error = request.error or RuntimeError("a request failed and does not say why")
    if isinstance(error, GrammarFailure):  # the request's own fault
        return error
    return EngineFailedError(error.message, error.hint) if isinstance(error, LocalInferError) else error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class EngineThread:
    """Runs one Engine. `submit` and everything that it gives back belong to `loop`; `stop` may come from anywhere."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, *, queue: int = 64, name: str = "engine"
    ) -> None:
        """At most `queue` calls of `submit` may wait beyond those that can run at the same time."""
        self.engine = engine
        self.failure: BaseException | None = None  # what ended the thread, if it was not asked to end
        self._loop = loop
        self._limit = engine.config.max_sequences + queue
        self._inbox: deque[Answers] = deque()
        self._awake = threading.Event()
        self._stopping = False
        self._known: dict[int, Answers] = {}  # by the engine's request id; used on the loop only
        self._open: set[Answers] = set()  # whose jobs are not over; used on the loop only
        self._usual_seconds = 1.0  # that a submit takes, averaged
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self.failure is None and self._thread.is_alive()

    @property
    def active(self) -> int:
        """Submits that are not over."""
        return len(self._open)

    @property
    def requests(self) -> list[Request]:
        """What the engine has accepted and not finished, in order. On the loop only; the engine goes on meanwhile."""
        accepted = [request for answers in self._open for request in answers.requests]
        return sorted((r for r in accepted if r.finish_reason is None), key=lambda request: request.id)

    def submit(self, jobs: Sequence[Job]) -> Answers:
        """Hands jobs to the engine. QueueFullError if too many wait, EngineStoppedError if it takes none."""
        if self._stopping or not self.healthy:
            raise self._stopped()
        if len(self._open) >= self._limit:
            waiting = len(self._open) - self.engine.config.max_sequences
            turns = len(self._open) / self.engine.config.max_sequences
            raise QueueFullError(waiting, max(1, min(LONGEST_RETRY, round(turns * self._usual_seconds))))
        answers = Answers(self, jobs)
        self._open.add(answers)
        self._inbox.append(answers)
        self._awake.set()
        return answers

    def stop(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """Takes no more jobs, and ends. Without `drain`, or once `timeout` seconds are over, what runs is cancelled.

        Blocks; never to be called on the loop. False if the thread does not end even then.
        """
        self._stopping = True
        self._awake.set()
        if drain:
            self._thread.join(timeout)
        if self._thread.is_alive():
            self._tell(self._cancel_all)
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # On the loop.

    def _abort(self, answers: Answers) -> None:
        with contextlib.suppress(ValueError):  # the thread has taken it in
            self._inbox.remove(answers)
            self._refused(answers, EngineStoppedError("the request was cancelled"))
        for request in answers.requests:
            self.engine.abort(request.id)
        self._awake.set()

    def _cancel_all(self) -> None:
        for answers in list(self._open):
            answers.cancel()

    def _accepted(self, answers: Answers, requests: list[Request]) -> None:
        for request in requests:
            self._known[request.id] = answers
        answers._accept(requests)
        if answers.cancelled:
            self._abort(answers)

    def _refused(self, answers: Answers, error: Exception) -> None:
        self._open.discard(answers)
        answers._fail(error)

    def _deliver(self, outputs: list[Output], ended: set[int], stepped: float) -> None:
        """What one step brought, which ended at `stepped`; `ended` are the ids of requests that were over after it."""
        known = self._known
        for output in outputs:
            if (answers := known.get(output.request.id)) is not None:
                answers._push(output, stepped)
        for id in ended:
            if (answers := known.pop(id, None)) is not None:
                answers._running -= 1
                if not answers._running:
                    self._close(answers)

    def _close(self, answers: Answers) -> None:
        self._open.discard(answers)
        if not answers.cancelled:
            self._usual_seconds += 0.2 * (time.perf_counter() - answers.started - self._usual_seconds)

    def _gone(self) -> None:
        """The thread has ended: nobody may wait for it."""
        self._known.clear()
        for answers in list(self._open):
            self._refused(answers, self._stopped())

    def _stopped(self) -> EngineStoppedError:
        if self.failure is not None:
            return EngineStoppedError("the engine of this model has failed", "the log of the server says more")
        return EngineStoppedError("this model is being unloaded", "ask again")

    # In the thread.

    def _run(self) -> None:
        try:
            while True:
                self._take_in()
                if self.engine.has_work:
                    if outputs := self.engine.step():
                        # Looked at now: the next step may end more before the loop comes to these outputs.
                        ended = {o.request.id for o in outputs if o.request.finish_reason is not None}
                        self._tell(self._deliver, outputs, ended, time.perf_counter())
                elif self._stopping:
                    return
                else:
                    self._awake.wait()
                    self._awake.clear()
        except BaseException as error:
            self.failure = error
            logging.getLogger(__name__).exception("the engine has failed: it takes no more requests")
        finally:
            self._tell(self._gone)

    def _take_in(self) -> None:
        while self._inbox:
            answers = self._inbox.popleft()
            requests: list[Request] = []
            try:
                if answers.cancelled:
                    raise EngineStoppedError("the request was cancelled")
                for job in answers.jobs:
                    requests.append(self._add(job))
            except Exception as error:
                for request in requests:
                    self.engine.abort(request.id)
                self._tell(self._refused, answers, error)
            else:
                self._tell(self._accepted, answers, requests)

    def _add(self, job: Job) -> Request:
        if job.pooling is not None:
            return self.engine.add_embedding(job.prompt, pooling=job.pooling, priority=job.priority, second=job.second)
        return self.engine.add_request(job.prompt, job.params, job.new_decoder, priority=job.priority)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(callback, *arguments)
