"""The life of a serving process: listen, load, serve, drain, end.

Signals: the first SIGINT or SIGTERM lets running requests finish, for at most `drain_seconds`, while new ones get a
503; a second one ends the process at once, as the first does while the first model is still being loaded.

Exit codes: 0 stopped by a signal, and everything that had begun was finished; 1 an error, or requests were cut off when
the time for draining was over; 130 or 143 ended at once, by SIGINT or SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn

from localinfer.server.access import LimitHosts, LimitOrigins, RequireKey
from localinfer.server.app import create_app
from localinfer.server.limits import Gate, LimitBody
from localinfer.server.listen import listen, tls_context, url
from localinfer.server.on_demand import ModelSource, OnDemandModels
from localinfer.server.protocol import Protocol
from localinfer.server.record import RequestRecord
from localinfer.server.refusals import ReportRefusals
from localinfer.server.routes import ENDPOINTS
from localinfer.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Say = Callable[[str], None]  # tells a person
STANDARD_ERROR = 2
CLOSING_SECONDS = 5  # for connections to end after their last answer
LOG_SECONDS = 1.0  # for the last lines of the log to be written, if the process ends at once


def run(settings: ServerSettings, sources: Sequence[ModelSource], say: Say) -> int:
    """Serves until it is told to stop, and returns the exit code. For the main thread.

    LocalInferError if it cannot listen, or if the first model cannot be loaded.
    """
    tls_context(settings)  # only to find out what is wrong before anything else is done
    sockets = listen(settings)
    # A model file that shrinks in the moment in which it is opened ends the process, but not silently.
    if not faulthandler.is_enabled():
        faulthandler.enable(STANDARD_ERROR)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_serve(settings, sources, sockets, say))
    finally:
        for opened in sockets:
            opened.close()


def guarded(
    app: ASGIApp, settings: ServerSettings, report: Callable[[RequestRecord], None] = lambda record: None
) -> tuple[ASGIApp, Gate]:
    """The application behind everything that a request has to pass, and the gate among that.

    `report` is told of requests that do not pass.
    """
    gate = Gate(LimitBody(app, settings.max_body))
    keyed: ASGIApp
    if settings.api_keys:
        keyed = RequireKey(gate, settings.api_keys)
    else:
        keyed = LimitHosts(gate, (settings.host, *settings.allowed_hosts))
    limited = LimitOrigins(keyed, settings.cors_origins, same_origin=bool(settings.api_keys))
    return ReportRefusals(limited, report, {path for endpoint in ENDPOINTS for path in endpoint.paths}), gate


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: this module has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Signals:
    """What signals ask for. Until `graceful` is set, the first one ends the process; `at_end` is called before."""

    def __init__(self, say: Say, at_end: Callable[[], None]) -> None:
        self.graceful = False
        self.stop = asyncio.Event()
        self._say = say
        self._at_end = at_end
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.graceful and not self.stop.is_set():
            self.stop.set()
            return
        self._say("stopped at once" if self.stop.is_set() else "stopped before it was ready")
        self._at_end()
        _end(128 + number)


async def _serve(settings: ServerSettings, sources: Sequence[ModelSource], sockets: Sequence[Any], say: Say) -> int:
    registry = OnDemandModels(
        sources, parallel=settings.parallel, queue=settings.queue, idle_unload=settings.idle_unload
    )
    inner = create_app(registry, settings)
    signals = _Signals(say, lambda: inner.state.log.close(LOG_SECONDS))
    app, gate = guarded(inner, settings, inner.state.report_refusal)
    server = _Server(_uvicorn_config(app, settings))
    serving = asyncio.create_task(server.serve(sockets=list(sockets)))
    try:
        await registry.load_first()
        gc.freeze()  # what is there by now stays: the collector need not look at it again
        gc.enable()
        signals.graceful = True
        _say_ready(say, settings, registry, url(settings, list(sockets)))
        await _first(signals.stop.wait(), serving)
        code, last_word = await _drain(gate, settings.drain_seconds, say)
    finally:
        await registry.close()
        server.should_exit = True
        await serving  # which closes the log: the last word comes behind its lines
    say(last_word)
    if registry.busy:  # a thread loads a model, and would be waited for
        _end(code)
    return code


async def _first(*waiting: Any) -> None:
    await asyncio.wait([asyncio.ensure_future(one) for one in waiting], return_when=asyncio.FIRST_COMPLETED)


async def _drain(gate: Gate, seconds: float, say: Say) -> tuple[int, str]:
    """Waits for what is under way; the exit code, and what to say in the end."""
    gate.close()
    if gate.active:
        say(
            f"stopping: {_counted(gate.active)} may finish first, for at most {seconds:g} s; Ctrl-C again stops at once"
        )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await gate.wait_idle()
    if gate.active:
        return 1, f"stopped: {_counted(gate.active)} cut off, having taken longer than {seconds:g} s"
    return 0, "stopped"


def _counted(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests} requests"


def _say_ready(say: Say, settings: ServerSettings, registry: OnDemandModels, address: str) -> None:
    for number, model in enumerate(registry.models()):
        names = " or ".join((model.name, *model.aliases))
        when = "" if number == 0 else ", loaded when it is asked for"
        say(f"{names}: context of {model.context} tokens{when}")
    keys = "an API key is asked for" if settings.api_keys else "no API key is asked for"
    say(f"a page to chat with, in a browser: {address}/")
    say(f"ready: {address}/v1 ({keys}; Ctrl-C stops)")


def _uvicorn_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    # Requests have lines of their own in our log; of uvicorn's, only what is wrong with itself is of interest.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=settings.tls_certificate or None,
        ssl_keyfile=settings.tls_key or None,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def _end(code: int) -> None:
    """Ends the process without waiting for threads, whose work nobody will look at any more."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
