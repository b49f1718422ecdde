"""POST /v1/embeddings. The scripted model's hidden state of a token is one number at the token's place, so an embedding
of a text tells which tokens it has."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from localinfer import LLM
from localinfer.server.embeddings import unit_length
from localinfer.server.schemas.embeddings import MOST_INPUTS
from localinfer.server.settings import ServerSettings
from scripted_model import HIDDEN, write_scripted_model
from served_app import Served, served

CONTEXT = 32
BOS = 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("embeddings") / "tiny.gguf")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests"


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, context=CONTEXT, max_sequences=2, threads=1)


@pytest.fixture(scope="module")
def server(llm: LLM, log: Path) -> Iterator[Served]:
    with served(llm, ServerSettings(log_file=str(log))) as server:
        yield server


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def mean(tokens: list[int]) -> list[float]:
    """The mean of the tokens' hidden states, of length 1."""
    counts = Counter(tokens)
    norm = math.sqrt(sum(count**2 for count in counts.values()))
    return [counts[token] / norm for token in range(HIDDEN)]


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    assert {item["object"] for item in data} == {"embedding"}
    return [item["embedding"] for item in data]


def test_an_embedding_is_the_mean_of_the_hidden_states(client: httpx.Client, llm: LLM) -> None:
    response = client.post("/v1/embeddings", json={"input": "!!,"})
    (vector,) = vectors(response)
    assert vector == pytest.approx(mean(list(llm.tokenize("!!,"))), abs=1e-6)
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-6)
    found = response.json()
    assert found["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert found["model"] == llm.name
    assert found["pooling"] == "mean"
    assert found["object"] == "list"


def test_inputs_are_texts_or_token_ids_or_lists_of_either(client: httpx.Client) -> None:
    def ask(given: Any) -> list[list[float]]:
        return vectors(client.post("/v1/embeddings", json={"input": given}))

    tokens = client.post("/tokenize", json={"prompt": "Hi!"}).json()["tokens"]
    text = ask("Hi!")
    assert ask(["Hi!", ","]) == [*text, *ask(",")]
    assert ask(tokens) == text
    assert ask([tokens, [7]]) == [*text, *ask([7])]
    assert ask(["Hi!", tokens]) == [*text, *text]


def test_base64_holds_the_same_numbers(client: httpx.Client) -> None:
    (numbers,) = vectors(client.post("/v1/embeddings", json={"input": "Hi!", "encoding_format": "float"}))
    response = client.post("/v1/embeddings", json={"input": "Hi!", "encoding_format": "base64"})
    encoded = base64.b64decode(response.json()["data"][0]["embedding"])
    assert list(struct.unpack(f"<{HIDDEN}f", encoded)) == numbers


def test_the_real_client_gets_what_it_asks_for(server: Served, llm: LLM) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        found = client.embeddings.create(model=llm.name, input=["!", ","])
    assert [item.embedding for item in found.data] == [pytest.approx(mean([BOS, token])) for token in (268, 265)]
    assert found.usage.total_tokens == 4


def test_dimensions_may_only_be_those_of_the_model(client: httpx.Client) -> None:
    assert len(vectors(client.post("/v1/embeddings", json={"input": "!", "dimensions": HIDDEN}))[0]) == HIDDEN
    response = client.post("/v1/embeddings", json={"input": "!", "dimensions": 256})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "dimensions"
    assert "512 dimensions, not of 256" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0] is empty"),
        ({"input": ["a", 3]}, "a list holds texts, or token ids"),
        ({"input": [10**6]}, "must be from 0 to"),
        ({"input": [-1]}, "input"),
        ({"input": [2**40]}, "input"),
        ({"input": ["!"] * (MOST_INPUTS + 1)}, "2049 inputs are more than 2048"),
        (
            {"input": "!", "encoding_format": "hex"},
            "encoding_format: Invalid enum value 'hex', expected one of 'float', 'base64'",
        ),
        ({"input": "!", "dimensions": 0}, "dimensions"),
        ({"input": "!", "messages": []}, "messages"),
    ],
)
def test_what_makes_no_sense_is_a_400_that_says_what(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_an_input_that_does_not_fit_is_refused_with_both_numbers(client: httpx.Client) -> None:
    assert vectors(client.post("/v1/embeddings", json={"input": [5] * CONTEXT}))
    response = client.post("/v1/embeddings", json={"input": ["!", "!" * CONTEXT]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 32 tokens" in error["message"]
    assert "input[1] resulted in 33 tokens" in error["message"]


def test_embeddings_do_not_change_what_a_chat_finds_in_the_cache(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "aaaaaaaaaaaa"}], "temperature": 0}
    tokens = client.post("/tokenize", json={"messages": body["messages"]}).json()["tokens"]
    before = vectors(client.post("/v1/embeddings", json={"input": tokens}))
    first = client.post("/v1/chat/completions", json=body).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert vectors(client.post("/v1/embeddings", json={"input": tokens})) == before


@pytest.mark.parametrize(("kind", "pooling", "token"), [(2, "cls", BOS), (3, "last", 268)])
def test_the_file_says_how_to_pool(path: Path, kind: int, pooling: str, token: int) -> None:
    llm = LLM(path, context=CONTEXT, threads=1)
    llm.metadata = {**llm.metadata, "llama.pooling_type": kind}  # type: ignore[assignment]
    with served(llm) as server:
        response = httpx.post(f"{server.url}/v1/embeddings", json={"input": ",,!"}, timeout=60)
    assert response.json()["pooling"] == pooling
    assert vectors(response) == [pytest.approx(mean([token]))]


def test_a_model_for_ranking_makes_no_embeddings(path: Path) -> None:
    llm = LLM(path, context=CONTEXT, threads=1)
    llm.metadata = {**llm.metadata, "llama.pooling_type": 4}  # type: ignore[assignment]
    with served(llm) as server:
        response = httpx.post(f"{server.url}/v1/embeddings", json={"input": "!"}, timeout=60)
    assert response.status_code == 400
    assert "pooling_type 4" in response.json()["error"]["message"]


def test_zeros_stay_zeros() -> None:
    assert list(unit_length(array("f", [0, 0]))) == [0, 0]
    assert list(unit_length(array("f", [3, 4]))) == [pytest.approx(0.6), pytest.approx(0.8)]


def test_a_client_that_leaves_ends_its_request(server: Served, llm: LLM, log: Path) -> None:
    (model,) = server.app.state.registry.loaded()
    may_step, step = threading.Event(), llm.engine.step

    def held_step() -> Any:
        assert may_step.wait(60)
        return step()

    llm.engine.step = held_step  # type: ignore[method-assign]
    try:
        body = json.dumps({"input": ["!"] * 100}).encode()
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as connection:
            head = f"POST /v1/embeddings HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            until(lambda: model.thread.active == 1)
        (answers,) = model.thread._open
        until(lambda: answers.cancelled)
    finally:
        may_step.set()
        llm.engine.step = step  # type: ignore[method-assign]
    until(lambda: model.thread.active == 0)
    until(lambda: "endpoint=/v1/embeddings status=499" in log.read_text())


def until(true: Any) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it does not come true")
