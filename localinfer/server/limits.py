"""How much a request may send, and whether new ones are taken at all. Pure ASGI."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from localinfer.server.errors import ApiError, error_response
from localinfer.server.refusals import note_refusal, refuse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What is still read of a body that is refused, and thrown away: a client that is cut off while it sends may lose the
# answer that says why.
LINGER_BYTES = 4 << 20
LINGER_SECONDS = 2.0


class LimitBody:
    """Answers 413 to a request whose body has more than `most` bytes, and reads little more than that of it.

    To the application it then looks as if the client had left.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _content_length(scope) > self._most:
            await self._refuse(scope, receive, send)
        else:
            await self._app(scope, *self._counted(scope, receive, send))

    def _counted(self, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """`receive` and `send` of a client that leaves at the limit: for bodies that do not say their length."""
        received, refused, answered = 0, False, False

        async def counted_receive() -> Message:
            nonlocal received, refused
            if refused:
                return {"type": "http.disconnect"}
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most and not answered:
                refused = True
                await self._refuse(scope, receive, send)
                return {"type": "http.disconnect"}
            return message

        async def send_unless_refused(message: Message) -> None:
            nonlocal answered
            if not refused:
                answered = True
                await send(message)

        return counted_receive, send_unless_refused

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = ApiError(
            413,
            f"the body of the request has more than {self._most} bytes, which is the most that this server takes; "
            "it can be started with a larger --max-body",
            code="request_too_large",
            headers={"connection": "close"},
        )
        note_refusal(scope, error)
        response = error_response(error, scope["path"])
        await send({"type": "http.response.start", "status": 413, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        await send({"type": "http.response.body"})


def _content_length(scope: Scope) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"")
    return int(value) if value.isdigit() and len(value) < 20 else 0


class Gate:
    """Counts the requests that are under way, and once it is closed, answers 503 to new ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = True
        self._idle = asyncio.Event()
        self._idle.set()
        self.active = 0

    def close(self) -> None:
        """From now on only what is under way goes on."""
        self._open = False

    async def wait_idle(self) -> None:
        """Returns when nothing is under way."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._open:
            error = ApiError(
                503,
                "the server is about to stop: it finishes what it has begun and takes nothing new",
                type="server_error",
                code="shutting_down",
                headers={"connection": "close", "retry-after": "5"},
            )
            await refuse(error, scope, receive, send)
            return
        self.active += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self.active -= 1
            if self.active == 0:
                self._idle.set()
