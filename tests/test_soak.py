"""The soak test, for seconds instead of minutes, and that it can fail."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripted_model import write_scripted_model

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """scripts/soak.py, imported as it imports its neighbours."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = set(sys.modules)
    yield importlib.import_module("soak")
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == SCRIPTS:
            del sys.modules[name]


def test_a_short_soak(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_scripted_model(tmp_path / "scripted.gguf"))
    found = script.soak(model, minutes=0.02, conversations=4, hostile=4, threads=1)
    table = capsys.readouterr().out
    assert found["answers"] > 0
    assert found["hostile"] > 0
    assert (found["failed"], found["changed"], found["server_errors"], found["blocks_leaked"]) == (0, 0, 0, 0), table
    # Memory of so small a process, after so short a time, says nothing.
    assert -0.5 < found["memory_growth"] < 0.5
    assert "hostile: " in table


class Liar:
    """A server that answers with whatever a test says."""

    def __init__(self, *bodies: bytes, status: int = 200, metrics: str = "") -> None:
        self.bodies, self.status, self.metrics, self.resident, self.port = list(bodies), status, metrics, 1, 0

    async def __call__(self, port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if path == "/metrics":
            return 200, self.metrics.encode()
        return self.status, self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]


def answer(*tokens: int) -> bytes:
    message = {"role": "assistant", "content": "x", "tokens": tokens}
    return json.dumps({"choices": [{"message": message}]}).encode()


def soak_of(script: ModuleType, liar: Liar, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(script, "request", liar)
    monkeypatch.setattr(script, "PAUSE_SECONDS", 1e-6)
    return script.Soak(liar, conversations=1, hostile=0)


def run_once(soak: Any) -> None:
    async def run() -> None:
        await soak.record()
        await soak.run(0.01)

    asyncio.run(run())


def test_it_notices_another_token(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    same = soak_of(script, Liar(answer(1, 2)), monkeypatch)
    run_once(same)
    assert (same.result.changed, same.result.failed) == (0, 0)
    assert same.result.answers > 0
    other = soak_of(script, Liar(*[answer(1, 2)] * 4, answer(1, 3)), monkeypatch)
    run_once(other)
    assert other.result.changed > 0
    assert other.result.failed == 0


def test_it_notices_errors_and_broken_streams(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="500"):
        run_once(soak_of(script, Liar(b"broken", status=500), monkeypatch))
    for stream in (b'data: {"error": {}}\n\n', b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'):
        with pytest.raises(ValueError, match=r"broke off|without its end"):
            script.message_of(stream, streamed=True)
    whole = b'data: {"choices": [{"delta": {"content": "x", "tokens": [7]}}]}\n\ndata: [DONE]\n\n'
    assert script.message_of(whole, streamed=True)["tokens"] == [7]


def test_it_notices_leaked_blocks(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = (
        'vllm:num_requests_running{model_name="m"} 0.0\nvllm:num_requests_waiting{model_name="m"} 0.0\n'
        'vllm:kv_cache_usage_perc{model_name="m"} 0.25\nlocalinfer:kv_blocks{model_name="m"} 8.0\n'
    )
    monkeypatch.setattr(script, "QUIET_SECONDS", 0.01)
    assert asyncio.run(soak_of(script, Liar(b"", metrics=metrics), monkeypatch).quiet()) == 2
    assert asyncio.run(soak_of(script, Liar(b"", metrics=metrics.replace("0.25", "0.0")), monkeypatch).quiet()) == 0
