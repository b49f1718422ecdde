"""The application behind a real uvicorn, in a thread of the test's own process, on a port that is free."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
import uvicorn

from localinfer import LLM
from localinfer.server.app import create_app
from localinfer.server.process import guarded
from localinfer.server.registry import ModelRegistry, SingleModel
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model


class Served(NamedTuple):
    """`url` without a slash at the end; what belongs to `loop` must be called there."""

    url: str
    app: Any
    loop: asyncio.AbstractEventLoop


@contextmanager
def served(
    model: LLM | Callable[[], ModelRegistry],
    settings: ServerSettings | None = None,
    *,
    patience: float = 60.0,
    guard: bool = False,
    port: int = 0,
) -> Iterator[Served]:
    """Serves a loaded model (which is closed afterwards), or what a function makes when it is called on the loop.

    With `guard`, requests have to pass what they pass in a serving process: keys, origins, the size of bodies.
    """
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def main() -> None:
        registry = SingleModel(model) if isinstance(model, LLM) else model()
        found["app"] = create_app(registry, settings or ServerSettings())
        found["loop"] = asyncio.get_running_loop()
        app = guarded(found["app"], settings or ServerSettings())[0] if guard else found["app"]
        config = uvicorn.Config(app, ws="none", log_config=None, lifespan="on")
        found["server"] = _Server(config, ready)
        await found["server"].serve(sockets=[listener])

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            found["error"] = error
        finally:
            ready.set()

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=run, name="served-app", daemon=True)
        thread.start()
        try:
            assert ready.wait(patience), "the server does not start"
            if "error" in found:
                raise found["error"]
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", found["app"], found["loop"])
        finally:
            if "server" in found:
                found["server"].should_exit = True
            thread.join(patience)
            assert not thread.is_alive(), "the server does not stop"


@contextmanager
def served_scripted(
    folder: Path, *, context: int, settings: ServerSettings | None = None, **model: Any
) -> Iterator[Served]:
    """Serves a scripted model (`model` are options of write_scripted_model) as "tiny", with room for four answers."""
    llm = LLM(write_scripted_model(folder / "tiny.gguf", **model), context=context, max_sequences=4, threads=1)
    llm.name = "tiny"
    with served(llm, settings) as found:
        yield found


def openai_client(server: Served) -> openai.OpenAI:
    """OpenAI's own client of a server; to be closed."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


class _Server(uvicorn.Server):
    """Sets an event once it answers."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()
