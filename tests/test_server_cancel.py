"""Clients that leave, queues that are full, and engines that fail: while requests wait, in prefill and in decode."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gated_steps import PATIENCE, Gate, wait_until
from localinfer import LLM
from localinfer.engine.thread import EngineThread
from localinfer.errors import LocalInferError
from localinfer.server.registry import ModelRegistry, SingleModel
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model
from served_app import Served, served

FOREVER = {"messages": [{"role": "user", "content": "forever"}], "temperature": 0}
HELLO = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
URL = "/v1/chat/completions"


class Busy:
    """A server of one answer at a time whose steps wait at a gate."""

    def __init__(self, server: Served, gate: Gate, log: Path) -> None:
        self.server, self.gate, self._log = server, gate, log
        self._seen = 0

    @property
    def thread(self) -> EngineThread:
        [model] = self.server.app.state.registry.loaded()
        thread: EngineThread = model.thread
        return thread

    @property
    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, timeout=PATIENCE)

    def send(self, body: dict[str, Any]) -> socket.socket:
        """Sends a request and does not wait for its answer."""
        address = urlsplit(self.server.url)
        data = json.dumps(body).encode()
        head = f"POST {URL} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        connection = socket.create_connection((address.hostname or "", address.port or 0), timeout=PATIENCE)
        connection.sendall(head + data)
        return connection

    def log_line(self) -> str:
        """The next line of the log, once it is there."""
        lines: list[str] = []

        def there() -> bool:
            lines[:] = self._log.read_text().splitlines()
            return len(lines) > self._seen

        wait_until(there)
        self._seen += 1
        return lines[self._seen - 1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("busy") / "tiny.gguf")


@pytest.fixture
def busy(path: Path, tmp_path: Path) -> Iterator[Busy]:
    with serve(path, tmp_path) as found:
        yield found


@contextmanager
def serve(path: Path, folder: Path, **settings: Any) -> Iterator[Busy]:
    llm = LLM(path, context=512, threads=1)
    gate = Gate(llm)

    def registry() -> ModelRegistry:
        return SingleModel(llm, queue=1)

    log = folder / "log"
    with served(registry, ServerSettings(log_file=str(log), **settings)) as server:
        try:
            yield Busy(server, gate, log)
        finally:
            gate.fail(None)
            gate.open_gate()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 4])
def test_a_client_that_leaves_ends_its_answer_at_once(busy: Busy, stream: bool, steps: int) -> None:
    """In prefill (no step was done) and in decode; the step that works for it stops early."""
    busy.gate.close_gate(permits=steps)
    connection = busy.send({**FOREVER, "stream": stream})
    wait_until(lambda: busy.gate.steps == steps)
    busy.gate.wait_for_step()
    connection.close()
    line = busy.log_line()
    assert "status=499" in line
    assert "finish=cancelled" in line
    assert busy.gate.steps == steps
    assert busy.thread.active == 0
    wait_until(lambda: busy.thread.engine.statistics.running == 0)


def test_a_client_that_leaves_the_queue_is_never_served(busy: Busy) -> None:
    """Neither one that the engine has taken in, nor one that came during a step."""
    with busy.client as client:
        client.post(URL, json=FOREVER)  # so that the prefix is known, and a step draws a token
    busy.log_line()
    busy.gate.close_gate()
    with busy.send({**FOREVER, "max_tokens": 3}) as first:
        busy.gate.wait_for_step()
        with busy.send(HELLO):
            wait_until(lambda: busy.thread.active == 2)
        assert "status=499" in busy.log_line()
        assert busy.thread.active == 1
        with busy.send(HELLO):
            wait_until(lambda: busy.thread.active == 2)
            steps = busy.gate.steps
            busy.gate.open_gate(1)
            wait_until(lambda: busy.gate.steps == steps + 1)
            wait_until(lambda: busy.thread.engine.statistics.waiting == 1)
        wait_until(lambda: any(answers.cancelled for answers in list(busy.thread._open)))
        busy.gate.open_gate()
        lines = sorted((busy.log_line(), busy.log_line()), key=lambda line: "status=499" in line)
        assert "finish=length" in lines[0]
        assert "status=499 finish=cancelled" in lines[1]
        assert "tokens=0" in lines[1]
        assert b"200 OK" in first.recv(1000)
    assert busy.gate.steps == steps + 3


def test_a_full_queue_is_429_with_a_time_to_come_back(busy: Busy) -> None:
    busy.gate.close_gate()
    with busy.client as client, busy.send(HELLO) as running:
        busy.gate.wait_for_step()
        with busy.send(HELLO) as waiting:
            wait_until(lambda: busy.thread.active == 2)
            for stream in (False, True):
                response = client.post(URL, json={**HELLO, "stream": stream})
                assert response.status_code == 429
                assert int(response.headers["retry-after"]) >= 1
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            busy.gate.open_gate()
            assert b"200 OK" in waiting.recv(1000)
            assert b"200 OK" in running.recv(1000)
        assert client.post(URL, json=HELLO).status_code == 200


def test_silence_is_filled_with_comments(path: Path, tmp_path: Path) -> None:
    with serve(path, tmp_path, ping_seconds=0.02) as busy, busy.client as client:
        busy.gate.close_gate()
        with client.stream("POST", URL, json={**HELLO, "stream": True}) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            seen = [next(lines) for _ in range(6)]  # during the prefill, which waits
            assert set(seen) == {": ping", ""}
            busy.gate.open_gate()
            rest = [line for line in lines if line and line != ": ping"]
        assert rest[-1] == "data: [DONE]"
        assert all(line.startswith("data: ") for line in rest)


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_before_the_first_token_is_a_500(busy: Busy, stream: bool) -> None:
    with busy.client as client:
        for error, words in (
            (RuntimeError("secret"), "did not foresee"),
            (LocalInferError("no more room"), "no more room"),
        ):
            busy.gate.fail(error)
            response = client.post(URL, json={**HELLO, "stream": stream})
            assert response.status_code == 500
            assert response.json()["error"]["type"] == "server_error"
            assert words in response.json()["error"]["message"]
            assert "secret" not in response.text
        busy.gate.fail(None)
        assert client.post(URL, json=HELLO).status_code == 200


def test_an_engine_that_fails_later_is_an_event_and_nothing_is_done(busy: Busy) -> None:
    busy.gate.close_gate(permits=3)
    with busy.client as client, client.stream("POST", URL, json={**FOREVER, "stream": True}) as response:
        lines = (line for line in response.iter_lines() if line)
        for _ in range(3):  # the role, and two tokens
            assert "error" not in json.loads(next(lines).removeprefix("data: "))
        busy.gate.fail(LocalInferError("a cable came loose"))
        busy.gate.open_gate()
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"] == {
        "message": "a cable came loose",
        "type": "server_error",
        "param": None,
        "code": "engine_failed",
    }
    assert "status=500" in busy.log_line()


def test_a_loop_that_breaks_ends_everybody_and_takes_nobody(
    busy: Busy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(busy.thread.engine, "step", broken)
    with busy.client as client:
        for _ in range(2):
            response = client.post(URL, json=HELLO)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_stopped"
    assert not busy.thread.healthy
    assert "a bug" in caplog.text


def test_a_model_that_is_unloaded_ends_its_streams_with_an_error(busy: Busy) -> None:
    busy.gate.close_gate(permits=2)
    with busy.client as client, client.stream("POST", URL, json={**FOREVER, "stream": True}) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        busy.gate.wait_for_step()
        assert busy.thread.stop(drain=False, timeout=PATIENCE)
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_stopped"


def test_a_model_that_drains_finishes_what_it_began(busy: Busy) -> None:
    busy.gate.close_gate()
    with busy.send({**FOREVER, "max_tokens": 5}) as connection:
        busy.gate.wait_for_step()
        busy.gate.open_gate()
        assert busy.thread.stop(drain=True, timeout=PATIENCE)
        assert b"200 OK" in connection.recv(1000)
    with busy.client as client:
        assert client.post(URL, json=HELLO).status_code == 503
