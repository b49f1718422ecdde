"""A `localinfer serve` in a process of its own, and ways to talk to it that promise nothing about its speed."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

PATIENCE = 120.0  # seconds: the machine may be busy


class Serving:
    """Starts the server, waits until it says that it is ready, and ends it with the `with` block.

    url     where it listens; port is its port
    said    the lines of its standard error so far
    """

    def __init__(
        self, *arguments: str, port: int = 0, environment: dict[str, str] | None = None, ready: bool = True
    ) -> None:
        command = [sys.executable, "-m", "localinfer", "serve", *arguments, "--port", str(port)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.said: list[str] = []
        self.url, self.port = "", port
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if ready:
            try:
                line = self.wait_for(r"^ready: ")
            except BaseException:
                self.close()
                raise
            self.url = line.split()[1].removesuffix("/v1")
            self.port = int(self.url.rsplit(":", 1)[1])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, pattern: str) -> str:
        """The next line on standard error that has the pattern."""
        deadline = time.monotonic() + PATIENCE
        while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            self.said.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"the server ended without a line like {pattern!r}:\n" + "\n".join(self.said))

    def wait(self) -> int:
        """Its exit code, once it ends by itself."""
        code = self.process.wait(PATIENCE)
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            self.said.append(line)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = ""
    ) -> tuple[int, Any]:
        """Status and JSON of one request on a connection of its own."""
        with self.connection() as connection:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method or ("GET" if data is None else "POST"), path, data, headers or {})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text[:1] in (b"{", b"[") else text

    def wait_until(self, path: str, reached: Callable[[Any], bool]) -> None:
        """Asks again and again until the answer is as it should be."""
        deadline = time.monotonic() + PATIENCE
        while not reached(answer := self.ask(path)[1]):
            assert time.monotonic() < deadline, f"{path} still says {answer}"
            time.sleep(0.02)

    def chat(self, text: str, **fields: Any) -> tuple[int, Any]:
        return self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    @contextmanager
    def streaming(self, text: str, **fields: Any) -> Iterator[http.client.HTTPResponse]:
        """A streamed answer that has begun: its status and its first line are there."""
        with self.connection() as connection:
            body = {"messages": [{"role": "user", "content": text}], "stream": True, **fields}
            connection.request("POST", "/v1/chat/completions", json.dumps(body).encode())
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.readline().startswith(b"data: ")
            yield response

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            yield connection
        finally:
            connection.close()

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def close(self) -> None:
        """Kills it if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
