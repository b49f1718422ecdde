"""The models that are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from localinfer.engine.llm import LLM
from localinfer.engine.thread import EngineThread
from localinfer.server.errors import ApiError

State = Literal["loaded", "loading", "unloaded"]


@dataclass(frozen=True)
class ServedModel:
    """A loaded model. `thread` alone steps its engine; of `llm`, tokenizer and template may be used anywhere."""

    name: str
    llm: LLM
    thread: EngineThread


@dataclass(frozen=True)
class ModelInfo:
    """A model that can be asked for, loaded or not.

    aliases   other names that it answers to
    context   tokens that prompt and answer may take together
    created   when its file was last changed, in seconds since 1970
    problem   why it could not be loaded when that was last tried
    """

    name: str
    aliases: tuple[str, ...]
    path: Path
    context: int
    created: int
    state: State
    problem: str = ""


class ModelRegistry(Protocol):
    """Finds, loads and unloads models. A model is not unloaded while somebody uses it."""

    def models(self) -> list[ModelInfo]:
        """Everything that is served; the first is the default model."""
        ...

    def loaded(self) -> list[ServedModel]:
        """What is in memory now, for those who only look."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the first model has been loaded, so that questions have been answered or could have been."""
        ...

    def use(self, name: str | None) -> AbstractAsyncContextManager[ServedModel]:
        """The model of that name, loaded first if need be; None is the default model. ApiError 404 if there is none."""
        ...

    async def close(self) -> None:
        """Ends everything that runs, and unloads."""
        ...


class SingleModel:
    """A registry of one model that is loaded already and stays."""

    def __init__(self, llm: LLM, *, queue: int = 64) -> None:
        self._model = ServedModel(llm.name, llm, EngineThread(llm.engine, asyncio.get_running_loop(), queue=queue))

    def models(self) -> list[ModelInfo]:
        llm = self._model.llm
        return [ModelInfo(llm.name, (), llm.path, llm.context, int(llm.path.stat().st_mtime), "loaded")]

    def loaded(self) -> list[ServedModel]:
        return [self._model]

    @property
    def ready(self) -> bool:
        return True

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        if name is not None and name != self._model.name:
            raise ApiError(
                404,
                f"the model {name!r} is not served here; there is {self._model.name!r}",
                code="model_not_found",
                param="model",
            )
        yield self._model

    async def close(self) -> None:
        await asyncio.to_thread(self._model.thread.stop, drain=False)
        self._model.llm.close()
