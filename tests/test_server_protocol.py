"""How long the head of a request may take."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from localinfer.server.process import _uvicorn_config
from localinfer.server.protocol import HEAD_SECONDS, Protocol
from localinfer.server.settings import ServerSettings

REQUEST = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"


class Hasty(Protocol):
    head_seconds = 0.3


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.6)  # longer than a head may take
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def talk(*pieces: bytes, ends: bytes) -> bytes:
    """What comes back for these pieces, sent one after the other, up to `ends` or the end of the connection."""
    config = uvicorn.Config(answer, ws="none", log_config=None, lifespan="off")
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Hasty(config=config, server_state=ServerState(), app_state={}, _loop=loop), "127.0.0.1", 0
    )
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        got = b""
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.05)
        while not (ends and got.endswith(ends)) and (data := await asyncio.wait_for(reader.read(1000), 30)):
            got += data
        writer.close()
        return got
    finally:
        server.close()


def test_a_head_that_does_not_end_loses_its_connection() -> None:
    assert asyncio.run(talk(b"", ends=b"")) == b""
    assert asyncio.run(talk(*[b"GET / HTTP/1.1\r\n", *[b"x: y\r\n"] * 3], ends=b"")) == b""


def test_an_answer_may_take_longer_than_a_head() -> None:
    assert asyncio.run(talk(REQUEST, ends=b"ok")).endswith(b"ok")


def test_the_head_of_a_later_request_has_to_end_too() -> None:
    got = asyncio.run(talk(REQUEST + b"GET / HTTP/1.1\r\n", ends=b""))
    assert got.count(b"200 OK") <= 1


def test_the_server_uses_it() -> None:
    assert _uvicorn_config(answer, ServerSettings()).http is Protocol
    assert Protocol.head_seconds == HEAD_SECONDS
