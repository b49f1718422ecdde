"""A small asyncio client for streamed answers of OpenAI-compatible servers. No dependencies, and little work per token:
it shares the machine with the server that it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What one request brought, and when (seconds of time.perf_counter)."""

    sent: float
    text: str = ""
    times: list[float] = field(default_factory=list)  # of every piece of text
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


class StreamClient:
    """One connection, kept alive; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: dict[str, Any]) -> Answer:
        """Posts a request with "stream": true and reads the answer to its end. RuntimeError says what went wrong."""
        data = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        answer = Answer(time.perf_counter())
        status = await self._send(request) or await self._send(request)  # the server may have closed an idle connection
        assert self._reader is not None
        chunked, length = False, 0
        while (line := await self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().lower().partition(":")
            chunked = chunked or (name == "transfer-encoding" and "chunked" in value)
            length = int(value) if name == "content-length" else length
        if " 200 " not in status or not chunked:
            rest = (await self._reader.readexactly(length)).decode() if length else ""
            raise RuntimeError(f"{path}: {status.strip()} {rest}")
        await self._read_events(answer)
        if not answer.times:
            raise RuntimeError(f"{path}: an answer without text")
        return answer

    async def _send(self, request: bytes) -> str:
        """The status line; empty, and without a connection, if there was one that the server had closed."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        assert self._reader is not None
        try:
            self._writer.write(request)
            status = (await self._reader.readline()).decode()
        except ConnectionError:
            status = ""
        if not status:
            self.close()
        return status

    async def _read_events(self, answer: Answer) -> None:
        assert self._reader is not None
        rest = b""
        while size := int(await self._reader.readline(), 16):
            data = await self._reader.readexactly(size + 2)
            now = time.perf_counter()
            *events, rest = (rest + data[:-2]).split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    _take(answer, json.loads(event[6:]), now)
        await self._reader.readline()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _take(answer: Answer, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        raise RuntimeError(f"the answer broke off: {event['error']}")
    if event.get("usage"):
        answer.usage = event["usage"]
    for choice in event.get("choices") or ():
        piece = choice.get("text") or (choice.get("delta") or {}).get("content")
        if piece:
            answer.text += piece
            answer.times.append(now)
