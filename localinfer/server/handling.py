"""What handlers have in common: the record of a request, and the client that may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request as HttpRequest

from localinfer.engine.thread import Answers
from localinfer.server.errors import as_api_error
from localinfer.server.record import CLIENT_LEFT, RequestRecord
from localinfer.server.refusals import was_refused


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
    while (await http.receive())["type"] != "http.disconnect":
        pass
    http.scope["localinfer.left"] = True
    answers.cancel()
