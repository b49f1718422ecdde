"""Server-sent events, written as raw ASGI messages.

At a thousand tokens a second every microsecond of Python counts, since the engine wants the same cores: an event is
its constant beginning, the text as JSON, and its constant end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment, which clients skip


class EventStream(Response):
    """Sends what `events` yields as it comes, and closes `stack` when it is over, well or badly."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        stack: AsyncExitStack,
        headers: Mapping[str, str],
        media_type: str = media_type,
    ) -> None:
        # Proxies such as nginx would collect events otherwise.
        more = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        super().__init__(headers=more, media_type=media_type)
        del self.headers["content-length"]
        self._events = events
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack, aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def event(data: bytes, name: str = "") -> bytes:
    """One event with JSON as its data, named where the protocol names its events."""
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: " + data + b"\n\n"
