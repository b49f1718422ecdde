"""A client that leaves while its model is being loaded."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from localinfer import LLM
from localinfer.server.on_demand import ModelSource, OnDemandModels
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model
from served_app import served


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [("/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": "a"}), ("/tokenize", {"prompt": "a"})],
)
def test_who_leaves_while_a_model_is_loaded_is_not_waited_for(tmp_path: Path, endpoint: str, body: object) -> None:
    path, may_load, log = write_scripted_model(tmp_path / "tiny.gguf"), threading.Event(), tmp_path / "log"

    def load(promised: int) -> LLM:
        assert may_load.wait(60)
        return LLM(path, context=64, threads=1)

    models: list[OnDemandModels] = []

    def registry() -> OnDemandModels:
        models.append(OnDemandModels([ModelSource("tiny", path, 64, load)], parallel=1, queue=4))
        return models[0]

    with served(registry, ServerSettings(log_file=str(log))) as server:
        [slot] = models[0]._slots
        try:
            data = json.dumps(body).encode()
            with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as connection:
                head = f"POST {endpoint} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(data)}\r\n\r\n"
                connection.sendall(head.encode() + data)
                until(lambda: len(slot.waiters) == 1)
            until(lambda: not slot.waiters)
            until(lambda: f"endpoint={endpoint} status=499" in log.read_text())
        finally:
            may_load.set()
        answer = httpx.post(f"{server.url}{endpoint}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        until(lambda: slot.users == 0)


def until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come true")
