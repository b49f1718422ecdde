"""What handlers have in common: the record of a request, and the client that may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.requests import Request as HttpRequest

from localinfer.engine.thread import Answers
from localinfer.server.errors import ApiError, as_api_error
from localinfer.server.record import CLIENT_LEFT, RequestRecord
from localinfer.server.refusals import was_refused
from localinfer.server.registry import ModelRegistry, ServedModel


@asynccontextmanager
async def recorded(http: HttpRequest, endpoint: str) -> AsyncIterator[RequestRecord]:
    """A record that is done when the block is left: well, with what was raised, or because the client has gone.

    A request that was refused meanwhile, for the size of its body, has been reported already.
    """
    record = RequestRecord(endpoint, http.client.host if http.client else "", http.app.state.report)
    try:
        yield record
    except Exception as error:
        if was_refused(http.scope):
            raise
        found = as_api_error(error)
        record.done(CLIENT_LEFT if has_left(http) else found.status, found.message)
        raise
    record.done()


@asynccontextmanager
async def model_in_use(http: HttpRequest, name: str | None) -> AsyncIterator[ServedModel]:
    """The model of that name, loaded if need be, unless the client leaves before it is there. The body must be read."""
    registry: ModelRegistry = http.app.state.registry
    async with AsyncExitStack() as stack:
        using = asyncio.ensure_future(stack.enter_async_context(registry.use(name)))
        leaving = asyncio.create_task(_note_leaving(http))
        try:
            await asyncio.wait((using, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not using.done():
                using.cancel()
                await asyncio.wait((using,))
        if using.cancelled():
            raise ApiError(CLIENT_LEFT, "the client left while the model was being loaded")
        yield using.result()


@asynccontextmanager
async def while_connected(http: HttpRequest, answers: Answers) -> AsyncIterator[None]:
    """Cancels the answers when the client leaves, and what is left of them with the block.

    The body must have been read: whatever the client sends from now on is thrown away.
    """
    watcher = asyncio.create_task(_cancel_when_left(http, answers))
    try:
        yield
    finally:
        watcher.cancel()
        answers.cancel()


def has_left(http: HttpRequest) -> bool:
    """Whether the client has gone, as far as `while_connected` has noticed."""
    return bool(http.scope.get("localinfer.left"))


async def _cancel_when_left(http: HttpRequest, answers: Answers) -> None:
    await _note_leaving(http)
    answers.cancel()


async def _note_leaving(http: HttpRequest) -> None:
    """Returns when the client has gone; whatever it sends until then is thrown away."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    http.scope["localinfer.left"] = True
