"""Several models, loaded when somebody asks for them and unloaded when nobody does, or when another needs the room.

Everything here runs on the event loop, but for loading and unloading, which take a thread each time. One model is
loaded at a time. Requests wait meanwhile, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from localinfer.engine.llm import LLM
from localinfer.engine.memory import resident
from localinfer.engine.thread import EngineThread, QueueFullError
from localinfer.errors import LocalInferError, MemoryPlanError
from localinfer.server.errors import ApiError
from localinfer.server.registry import ModelInfo, ServedModel, State

LOADING_RETRY_SECONDS = 5


@dataclass(frozen=True)
class ModelSource:
    """A model as `serve` was asked for it.

    load      loads it, in a thread; its argument is the bytes that other models have reserved and do not hold yet.
              LocalInferError if it cannot be loaded
    context   what it will be loaded with, settled before: it does not depend on what else is loaded
    """

    name: str
    path: Path
    context: int
    load: Callable[[int], LLM]
    aliases: tuple[str, ...] = ()


@dataclass(eq=False)
class _Slot:
    """The place of one model. `users` hold it; `waiters` will, as soon as it is loaded."""

    source: ModelSource
    model: ServedModel | None = None
    users: int = 0
    waiters: deque[asyncio.Future[ServedModel]] = field(default_factory=deque)
    loading: asyncio.Task[None] | None = None
    leaving: bool = False  # nobody new gets it: it makes room, or its engine has failed
    last_used: float = 0.0
    problem: str = ""
    unused: asyncio.Event = field(default_factory=asyncio.Event)  # set while nobody holds it
    timer: asyncio.TimerHandle | None = None


class OnDemandModels:
    """A ModelRegistry of any number of models. Make it, and use it, on the event loop."""

    def __init__(self, sources: Sequence[ModelSource], *, parallel: int, queue: int, idle_unload: float = 0.0) -> None:
        """At most `queue` requests wait for a model beyond the `parallel` that it works on at the same time.

        A model that nobody has asked for `idle_unload` seconds is unloaded; 0: never.
        """
        self._slots = [_Slot(source) for source in sources]
        self._names = {name: slot for slot in self._slots for name in (slot.source.name, *slot.source.aliases)}
        self._parallel = parallel
        self._queue = queue
        self._idle_unload = idle_unload
        self._memory = asyncio.Lock()  # who loads or unloads
        self._process_bytes = resident()
        self._unloading: set[asyncio.Task[None]] = set()
        self._ready = False
        self._closed = False
        for slot in self._slots:
            slot.unused.set()

    def models(self) -> list[ModelInfo]:
        return [_info(slot) for slot in self._slots]

    def loaded(self) -> list[ServedModel]:
        return [slot.model for slot in self._slots if slot.model is not None]

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def busy(self) -> bool:
        """Whether a thread loads or unloads a model: it cannot be stopped."""
        return self._memory.locked()

    async def load_first(self) -> None:
        """Loads the first model. LocalInferError if that cannot be."""
        slot = self._slots[0]
        async with self._memory:
            await self._load_now(slot)
            self._hand_over(slot)
        self._ready = True

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        slot = self._find(name)
        model = await self._acquire(slot)
        try:
            yield model
        finally:
            self._release(slot)

    async def close(self) -> None:
        """Cancels what runs and unloads. A model that is being loaded is left alone: the process is about to end."""
        self._closed = True
        for slot in self._slots:
            self._refuse_waiters(slot, _stopping())
            self._stop_timer(slot)
        for slot in self._slots:
            if slot.model is not None:
                slot.leaving = True
                await asyncio.to_thread(slot.model.thread.stop, drain=False, timeout=10.0)
        for slot in self._slots:
            if slot.model is not None and not self.busy:
                await self._unload(slot)

    def _find(self, name: str | None) -> _Slot:
        if name is None:
            return self._slots[0]
        if name not in self._names:
            there = ", ".join(slot.source.name for slot in self._slots)
            raise ApiError(
                404, f"the model {name!r} is not served here; there is: {there}", code="model_not_found", param="model"
            )
        return self._names[name]

    async def _acquire(self, slot: _Slot) -> ServedModel:
        if self._closed:
            raise _stopping()
        if slot.model is not None and not slot.model.thread.healthy:
            slot.leaving = True  # it ends with its users, and is loaded again
        if slot.model is not None and not slot.leaving:
            self._take(slot)
            return slot.model
        if len(slot.waiters) >= self._parallel + self._queue:
            raise QueueFullError(len(slot.waiters) - self._parallel, LOADING_RETRY_SECONDS)
        waiter: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        if slot.loading is None:
            slot.loading = asyncio.create_task(self._load(slot))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(slot)
            elif waiter in slot.waiters:
                slot.waiters.remove(waiter)
            raise

    def _take(self, slot: _Slot) -> None:
        slot.users += 1
        slot.unused.clear()
        self._stop_timer(slot)

    def _release(self, slot: _Slot) -> None:
        slot.users -= 1
        slot.last_used = time.monotonic()
        if slot.users == 0:
            slot.unused.set()
            self._start_timer(slot)

    def _stop_timer(self, slot: _Slot) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None

    def _start_timer(self, slot: _Slot) -> None:
        self._stop_timer(slot)
        if self._idle_unload > 0 and not self._closed:
            slot.timer = asyncio.get_running_loop().call_later(self._idle_unload, self._idle, slot)

    def _idle(self, slot: _Slot) -> None:
        """Nobody has asked for it long enough."""
        slot.timer = None
        task = asyncio.create_task(self._unload_idle(slot))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload_idle(self, slot: _Slot) -> None:
        async with self._memory:
            if slot.model is not None and slot.users == 0 and slot.timer is None:
                await self._unload(slot)

    async def _load(self, slot: _Slot) -> None:
        """Loads a model for those who wait for it, or tells them why not."""
        try:
            async with self._memory:
                await self._load_now(slot)
                self._hand_over(slot)
        except MemoryPlanError as error:
            self._refuse_waiters(slot, _not_loaded(slot, error, "model_does_not_fit"))
        except LocalInferError as error:
            self._refuse_waiters(slot, _not_loaded(slot, error, "model_not_loaded"))
        except Exception as error:
            self._refuse_waiters(slot, error)
        finally:
            slot.loading = None

    async def _load_now(self, slot: _Slot) -> None:
        """Loads it, and unloads others as long as it does not fit. Holds `_memory`."""
        if slot.model is not None and slot.leaving:
            await slot.unused.wait()
            await self._unload(slot)
        while slot.model is None:
            try:
                llm = await asyncio.to_thread(slot.source.load, self._promised())
            except MemoryPlanError as error:
                slot.problem = error.message
                if not await self._make_room(slot):
                    raise
            except LocalInferError as error:
                slot.problem = error.message
                raise
            else:
                thread = EngineThread(
                    llm.engine, asyncio.get_running_loop(), queue=self._queue, name=f"engine {slot.source.name}"
                )
                slot.model, slot.leaving, slot.problem = ServedModel(slot.source.name, llm, thread), False, ""
                slot.last_used = time.monotonic()

    def _hand_over(self, slot: _Slot) -> None:
        """Everybody who waited holds the model from now on, so that it cannot go before they come to use it."""
        assert slot.model is not None
        for waiter in slot.waiters:
            if not waiter.done():
                self._take(slot)
                waiter.set_result(slot.model)
        slot.waiters.clear()
        if slot.users == 0:
            self._start_timer(slot)

    def _refuse_waiters(self, slot: _Slot, error: Exception) -> None:
        for waiter in slot.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        slot.waiters.clear()

    async def _make_room(self, wanted: _Slot) -> bool:
        """Unloads one other model, an unused one if there is one, the least recently used first. False if none is left.

        If all are in use, the one that was asked for the longest ago takes nobody new, and is waited for.
        """
        others = [slot for slot in self._slots if slot.model is not None and slot is not wanted]
        if not others:
            return False
        slot = min(others, key=lambda slot: (slot.users > 0, slot.last_used))
        slot.leaving = True
        await slot.unused.wait()
        await self._unload(slot)
        return True

    async def _unload(self, slot: _Slot) -> None:
        model, slot.model = slot.model, None
        slot.leaving = False
        if model is not None:
            await asyncio.to_thread(_end, model)

    def _promised(self) -> int:
        """Bytes that the plans of loaded models count and that this process does not hold yet."""
        planned = sum(model.llm.plan.needed for model in self.loaded())
        return max(0, self._process_bytes + planned - resident())


def _end(model: ServedModel) -> None:
    model.thread.stop(drain=False)
    model.llm.close()


def _info(slot: _Slot) -> ModelInfo:
    source, created = slot.source, 0
    with contextlib.suppress(OSError):  # the file may be gone
        created = int(source.path.stat().st_mtime)
    state: State = "loaded" if slot.model is not None else "loading" if slot.loading is not None else "unloaded"
    return ModelInfo(source.name, source.aliases, source.path, source.context, created, state, slot.problem)


def _not_loaded(slot: _Slot, error: LocalInferError, code: str) -> ApiError:
    hint = f" ({error.hint})" if error.hint else ""
    return ApiError(
        503,
        f"the model {slot.source.name} could not be loaded: {error.message}{hint}",
        type="server_error",
        code=code,
        param="model",
    )


def _stopping() -> ApiError:
    return ApiError(503, "the server is about to stop", type="server_error", code="shutting_down")
