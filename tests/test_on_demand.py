"""Several models: loaded when asked for, unloaded when idle or when another needs the room, never while in use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localinfer.engine.thread import QueueFullError
from localinfer.errors import FormatError, MemoryPlanError
from localinfer.server.errors import ApiError
from localinfer.server.on_demand import ModelSource, OnDemandModels

PATIENCE = 30.0
SIZE = 1 << 40  # of every model: what a test's process really holds is nothing beside it


class World:
    """Models that load into `room` bytes of make-believe memory, and what happened to them in order."""

    def __init__(self, room: int = 2 * SIZE) -> None:
        self.room = room
        self.events: list[str] = []
        self.failures: list[Exception] = []  # of the next loads
        self.may_load = threading.Event()
        self.may_load.set()
        self.loaded: dict[str, Any] = {}

    def source(self, name: str, *aliases: str) -> ModelSource:
        def load(promised: int) -> Any:
            self.events.append(f"try {name}")
            assert self.may_load.wait(PATIENCE)
            if self.failures:
                raise self.failures.pop(0)
            # A plan takes what is promised for used; the process itself holds next to nothing.
            if promised + SIZE > self.room + (1 << 32):
                raise MemoryPlanError(f"{name} needs {SIZE} but {self.room - promised} are free", "a smaller one")
            self.events.append(f"load {name}")

            def close() -> None:
                self.events.append(f"unload {name}")
                del self.loaded[name]

            engine = SimpleNamespace(config=SimpleNamespace(max_sequences=2), has_work=False)
            llm = SimpleNamespace(name=name, engine=engine, plan=SimpleNamespace(needed=SIZE), close=close)
            self.loaded[name] = llm
            return llm

        return ModelSource(name, Path(f"{name}.gguf"), 100, load, aliases)

    def registry(self, names: str = "abc", **options: Any) -> OnDemandModels:
        settings: dict[str, Any] = {"parallel": 2, "queue": 1} | options
        return OnDemandModels([self.source(name) for name in names], **settings)


def scenario(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await run()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def touch(registry: OnDemandModels, name: str | None) -> None:
    async with registry.use(name):
        pass


def states(registry: OnDemandModels) -> list[str]:
    return [model.state for model in registry.models()]


def test_the_first_is_the_default_and_others_are_loaded_when_asked_for() -> None:
    async def run() -> None:
        world = World()
        registry = world.registry()
        assert not registry.ready
        await registry.load_first()
        assert registry.ready
        assert states(registry) == ["loaded", "unloaded", "unloaded"]
        async with registry.use(None) as model:
            assert model.name == "a"
        async with registry.use("b") as model:
            assert model.name == "b"
            assert [m.name for m in registry.loaded()] == ["a", "b"]
        await registry.close()
        assert world.loaded == {}

    scenario(run)


def test_aliases_and_unknown_names() -> None:
    async def run() -> None:
        world = World()
        registry = OnDemandModels([world.source("a", "gpt-4o"), world.source("b")], parallel=1, queue=1)
        async with registry.use("gpt-4o") as model:
            assert model.name == "a"
        with pytest.raises(ApiError, match=r"'c' is not served here; there is: a, b") as caught:
            await touch(registry, "c")
        assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
        await registry.close()

    scenario(run)


def test_many_who_wait_for_a_model_load_it_once_in_their_order() -> None:
    async def run() -> None:
        world = World()
        world.may_load.clear()
        registry = world.registry(queue=10)
        served: list[int] = []

        async def user(number: int) -> None:
            async with registry.use("a"):
                served.append(number)

        tasks = [asyncio.create_task(user(number)) for number in range(8)]
        await until(lambda: bool(world.events))
        assert states(registry)[0] == "loading"
        world.may_load.set()
        await asyncio.gather(*tasks)
        assert world.events == ["try a", "load a"]
        assert served == list(range(8))
        await registry.close()

    scenario(run)


def test_a_bounded_number_may_wait_for_a_model() -> None:
    async def run() -> None:
        world = World()
        world.may_load.clear()
        registry = world.registry(parallel=2, queue=1)
        tasks = [asyncio.create_task(touch(registry, "a")) for _ in range(3)]
        await until(lambda: bool(world.events))
        with pytest.raises(QueueFullError):
            await touch(registry, "a")
        world.may_load.set()
        await asyncio.gather(*tasks)
        await registry.close()

    scenario(run)


def test_the_least_recently_used_makes_room() -> None:
    async def run() -> None:
        world = World(room=2 * SIZE)
        registry = world.registry()
        await registry.load_first()
        await touch(registry, "b")
        await touch(registry, "a")
        await touch(registry, "c")
        assert states(registry) == ["loaded", "unloaded", "loaded"]
        await touch(registry, "b")
        assert states(registry) == ["unloaded", "loaded", "loaded"]
        await registry.close()

    scenario(run)


def test_what_is_in_use_is_waited_for_and_what_is_not_goes_first() -> None:
    async def run() -> None:
        world = World(room=2 * SIZE)
        registry = world.registry()
        async with AsyncExitStack() as uses:
            await uses.enter_async_context(registry.use("a"))  # the least recently used, but in use
            await touch(registry, "b")
            await touch(registry, "c")
            assert states(registry) == ["loaded", "unloaded", "loaded"]
            held = await uses.enter_async_context(registry.use("c"))
            assert held.name == "c"
            waiting = asyncio.create_task(touch(registry, "b"))
            await until(lambda: world.events[-1] == "try b")
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            assert "unload a" not in world.events
            # Whoever comes now waits behind the one who waits for room, else that one might wait for ever.
            late = asyncio.create_task(touch(registry, "a"))
            await until(lambda: states(registry)[0] == "loaded")
            assert not late.done()
        await waiting
        await late
        await registry.close()
        order = [event for event in world.events if not event.startswith("try")]
        assert order[:5] == ["load a", "load b", "unload b", "load c", "unload a"]
        assert order[5] == "load b"
        assert "load a" in order[6:]

    scenario(run)


def test_two_models_that_do_not_fit_together_take_turns() -> None:
    async def run() -> None:
        world = World(room=SIZE)
        registry = world.registry("ab", queue=100)
        served: list[str] = []

        async def user(name: str) -> None:
            for _ in range(3):
                async with registry.use(name) as model:
                    served.append(model.name)
                    await asyncio.sleep(0)
                    assert list(world.loaded) == [name], "a model in use was unloaded"

        await asyncio.gather(*(user(name) for name in "abababab"))
        assert sorted(served) == ["a"] * 12 + ["b"] * 12
        await registry.close()

    scenario(run)


def test_a_model_that_never_fits_is_an_error_with_both_numbers() -> None:
    async def run() -> None:
        world = World(room=SIZE // 2)
        registry = world.registry()
        with pytest.raises(ApiError) as caught:
            await touch(registry, "b")
        assert (caught.value.status, caught.value.code) == (503, "model_does_not_fit")
        assert str(SIZE) in caught.value.message
        assert str(SIZE // 2) in caught.value.message
        assert "a smaller one" in caught.value.message
        with pytest.raises(MemoryPlanError):
            await registry.load_first()
        assert not registry.ready
        assert registry.models()[0].problem
        await registry.close()

    scenario(run)


def test_a_failed_load_is_tried_again_by_the_next_request() -> None:
    async def run() -> None:
        world = World()
        registry = world.registry()
        world.failures.append(FormatError("b.gguf is truncated", "download it again"))
        with pytest.raises(ApiError, match=r"model b could not be loaded: b.gguf is truncated \(download") as caught:
            await touch(registry, "b")
        assert (caught.value.status, caught.value.code) == (503, "model_not_loaded")
        assert registry.models()[1].problem == "b.gguf is truncated"
        await touch(registry, "b")
        assert registry.models()[1].problem == ""
        world.failures.append(ValueError("a bug"))
        with pytest.raises(ValueError, match="a bug"):
            await touch(registry, "c")
        await registry.close()

    scenario(run)


def test_an_idle_model_is_unloaded_and_comes_back() -> None:
    async def run() -> None:
        world = World()
        registry = world.registry(idle_unload=0.001)
        async with registry.use("a"):
            await asyncio.sleep(0.05)
            assert "unload a" not in world.events
        await until(lambda: states(registry)[0] == "unloaded")
        await touch(registry, "a")
        await registry.close()
        assert world.events.count("load a") == 2

    scenario(run)


def test_who_leaves_while_a_model_is_loaded_holds_nothing() -> None:
    async def run() -> None:
        world = World(room=SIZE)
        world.may_load.clear()
        registry = world.registry()
        leaving = asyncio.create_task(touch(registry, "a"))
        staying = asyncio.create_task(touch(registry, "a"))
        await until(lambda: bool(world.events))
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        world.may_load.set()
        await staying
        await touch(registry, "b")  # would wait for ever if somebody held a
        await registry.close()

    scenario(run)


def test_who_leaves_in_the_moment_of_the_handover_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(room=SIZE)
        registry = world.registry()
        world.may_load.clear()
        leaving = asyncio.create_task(touch(registry, "a"))
        await until(lambda: bool(world.events))
        hand_over = registry._hand_over

        def then_cancel(slot: Any) -> None:
            hand_over(slot)
            leaving.cancel()  # it has the model, and has not run since

        monkeypatch.setattr(registry, "_hand_over", then_cancel)
        world.may_load.set()
        await asyncio.gather(leaving, return_exceptions=True)
        await touch(registry, "b")
        await registry.close()

    scenario(run)


def test_a_model_whose_engine_failed_is_loaded_again() -> None:
    async def run() -> None:
        world = World()
        registry = world.registry()
        await registry.load_first()
        thread = registry.loaded()[0].thread
        thread.failure = RuntimeError("the engine broke")
        async with registry.use("a") as model:
            assert model.thread is not thread
            assert model.thread.healthy
        assert world.events.count("load a") == 2
        await registry.close()

    scenario(run)


def test_after_closing_there_is_nothing() -> None:
    async def run() -> None:
        world = World()
        registry = world.registry()
        await registry.load_first()
        world.may_load.clear()
        waiting = asyncio.create_task(touch(registry, "b"))
        await until(lambda: world.events[-1] == "try b")
        await registry.close()
        assert registry.busy
        with pytest.raises(ApiError, match="about to stop"):
            await waiting
        with pytest.raises(ApiError, match="about to stop"):
            await touch(registry, "a")
        world.may_load.set()

    scenario(run)
