"""Ollama's protocol through its own client, and over plain HTTP where that would hide something."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from localinfer.server.fields import UNKNOWN_FIELDS_HEADER
from served_app import Served, served_scripted
from test_server_tools import CALLING, TEMPLATE, TOOLS

HELLO: Any = [{"role": "user", "content": "hello"}]
ZERO = {"temperature": 0, "num_predict": 300}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_scripted(tmp_path_factory.mktemp("ollama"), context=2048, template=TEMPLATE, answer=CALLING) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[ollama.Client]:
    with ollama.Client(server.url, timeout=60) as client:
        yield client


def test_a_chat_told_apart(client: ollama.Client) -> None:
    answer = client.chat("tiny", HELLO, tools=TOOLS, options=ZERO)
    message = answer.message
    assert (message.content, message.thinking) == ("I look.", "Which city?")
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert calls == [("weather", {"city": "Oslo"}), ("clock", {})]
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", len(CALLING) + 1)
    assert answer.prompt_eval_count is not None
    assert answer.total_duration is not None
    assert answer.total_duration >= (answer.eval_duration or 0) > 0


def test_a_stream_of_lines(client: ollama.Client, server: Served) -> None:
    parts = list(client.chat("tiny:latest", HELLO, tools=TOOLS, options=ZERO, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == "Which city?"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len([call for part in parts for call in part.message.tool_calls or ()]) == 2
    # Without "stream" an answer streams; every line says whether it is the last.
    response = httpx.post(f"{server.url}/api/chat", json={"messages": HELLO, "options": ZERO}, timeout=60)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert all("done" in line and line["message"]["role"] == "assistant" for line in lines)


def test_a_prompt(client: ollama.Client) -> None:
    answer = client.generate("tiny", "hello", options=ZERO)
    assert answer.response.startswith("I look.\n<tool_call>")
    assert (answer.thinking, answer.done_reason) == ("Which city?", "stop")
    raw = client.generate("tiny", "x", raw=True, options={**ZERO, "num_predict": 2})
    assert (raw.response, raw.thinking, raw.done_reason) == ("", "Which", "length")


def test_an_answer_in_json(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    answer = client.chat("tiny", HELLO, format=schema, options={**ZERO, "num_predict": 900})
    assert json.loads(answer.message.content or "")["n"] in (1, 2)


def test_results_of_tools(client: ollama.Client) -> None:
    first = client.chat("tiny", HELLO, tools=TOOLS, options=ZERO).message
    turns = [*HELLO, first, {"role": "tool", "tool_name": "weather", "content": "forever"}]
    answer = client.chat("tiny", turns, tools=TOOLS, options={**ZERO, "num_predict": 3})
    assert answer.message.content == " tick" * 3


def test_vectors(client: ollama.Client) -> None:
    answer = client.embed("tiny", ["one", "two words"])
    assert len(answer.embeddings) == 2
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-5) for vector in answer.embeddings)
    assert client.embed("tiny", "one").embeddings[0] == answer.embeddings[0]


def test_what_there_is(client: ollama.Client, server: Served) -> None:
    [listed] = client.list().models
    assert (listed.model, listed.details.family) == ("tiny", "llama")  # type: ignore[union-attr]
    [loaded] = client.ps().models
    assert loaded.model == "tiny"
    shown = client.show("tiny")
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities or ())
    assert httpx.post(f"{server.url}/api/show", json={"name": "tiny:latest"}).json()["model_info"]
    major, *_ = httpx.get(f"{server.url}/api/version").json()["version"].split(".")
    assert major.isdigit()


def test_what_has_no_effect_is_named(server: Served) -> None:
    body = {"messages": HELLO, "stream": False, "options": {**ZERO, "num_ctx": 4096}}
    response = httpx.post(f"{server.url}/api/chat", json=body, timeout=60)
    assert "options.num_ctx" in response.headers[UNKNOWN_FIELDS_HEADER]


@pytest.mark.parametrize(
    ("fields", "words", "status"),
    [
        ({"messages": []}, "none", 400),
        ({"model": "llama9"}, "llama9", 404),
        ({"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}, "images", 400),
        ({"options": {"top_p": 7}}, "top_p", 400),
        ({"tools": [{"type": "function"}]}, "tools", 400),
        ({"format": {"type": "array", "uniqueItems": True}}, "uniqueItems", 400),
    ],
)
def test_errors_have_ollamas_form(client: ollama.Client, fields: dict[str, Any], words: str, status: int) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(**{"model": "tiny", "messages": HELLO, **fields})
    assert caught.value.status_code == status
    assert words in caught.value.error


def test_how_hard_to_think_is_named_where_the_template_does_not_read_it(server: Served) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": False, "think": "low"}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/api/chat", json=body)
    assert answer.status_code == 200
    assert answer.headers[UNKNOWN_FIELDS_HEADER] == "think"
