"""Gaps between two texts, as editors ask for them: /infill, and `suffix` of /v1/completions and /api/generate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from localinfer.server.settings import ServerSettings
from served_app import Served, openai_client, served_scripted

CONTEXT = 128
MIDDLE = ["return", " a", " + b"]
FILLED = "".join(MIDDLE)
# The marks of Qwen's models. What follows <|fim_middle|> is written down; the others are only there.
MARKS = {
    "fim_prefix": ["one"],
    "fim_suffix": ["two"],
    "fim_middle": MIDDLE,
    "repo_name": ["three"],
    "file_sep": ["four"],
}
GAP = {"input_prefix": "f(a)=\n", "input_suffix": "\nf(5)\n"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("infill")
    settings = ServerSettings(log_file=str(folder / "log"))
    with served_scripted(folder, context=CONTEXT, settings=settings, answers=MARKS) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(client: httpx.Client, **fields: Any) -> Any:
    response = client.post("/infill", json={"temperature": 0, **GAP, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_gap_is_filled_in(client: httpx.Client) -> None:
    answer = ask(client)
    assert (answer["content"], answer["stop_type"]) == (FILLED, "eos")
    assert answer["prompt"] == "<s><|fim_prefix|>f(a)=\n<|fim_suffix|>\nf(5)\n<|fim_middle|>"
    assert ask(client, prompt="ret")["prompt"].startswith("<s><|fim_prefix|>f(a)=\nret<|fim_suffix|>")


def test_a_gap_is_filled_in_as_a_stream(client: httpx.Client) -> None:
    response = client.post("/infill", json={"temperature": 0, "stream": True, **GAP})
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert [event["content"] for event in events] == [*MIDDLE, ""]
    assert events[-1]["stop"]


def test_other_files_come_first(client: httpx.Client) -> None:
    extra = [{"filename": "a.py", "text": "A=1", "time": 5}, {"text": "B=2"}]
    prompt = ask(client, input_extra=extra)["prompt"]
    assert prompt == (
        "<s><|repo_name|>myproject\n<|file_sep|>a.py\nA=1<|file_sep|>tmp\nB=2<|file_sep|>filename\n"
        "<|fim_prefix|>f(a)=\n<|fim_suffix|>\nf(5)\n<|fim_middle|>"
    )


def test_what_is_too_long_is_cut_on_the_far_side(client: httpx.Client) -> None:
    extra = [{"filename": "far", "text": "1" * 500}, {"filename": "near", "text": "2" * 500}]
    answer = ask(client, input_prefix="x" * 500 + "HERE", input_suffix="THERE" + "y" * 500, n_predict=20)
    assert "HERE<|fim_suffix|>THERE" in answer["prompt"]
    assert answer["tokens_evaluated"] == CONTEXT - 20
    answer = ask(client, input_extra=extra, n_predict=20)
    assert answer["tokens_evaluated"] <= CONTEXT - 20
    assert "far" not in answer["prompt"]
    assert answer["prompt"].count("2") > 16
    assert ask(client, input_prefix="x" * 500)["content"] == FILLED, "there is room for an answer of any length"


def test_what_an_editor_sends(client: httpx.Client) -> None:
    """All fields of llama.vim's request."""
    body = {
        **GAP,
        "input_extra": [{"text": "A=1", "time": [1, 2], "filename": "a.py"}],
        "prompt": "",
        "n_predict": 32,
        "n_indent": 0,
        "top_k": 40,
        "top_p": 0.99,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"],
        "logit_bias": [[0, False]],
        "seed": 1,
    }
    answer = client.post("/infill", json=body)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == set(body["response_fields"])
    warm = {**body, "n_predict": 0, "samplers": [], "response_fields": [""]}
    assert client.post("/infill", json=warm).json() == {}


def test_an_answer_ends_with_a_mark_of_a_gap(client: httpx.Client) -> None:
    bias = [["<|fim_prefix|>", 1000]]
    answer = ask(client, logit_bias=bias)
    assert (answer["content"], answer["stop_type"]) == ("", "eos")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_prefix", None),
        ("input_suffix", 5),
        ("input_extra", [{}]),
        ("input_extra", [{"filename": "ok"}]),
        ("input_extra", [{"filename": 123, "text": "abc"}]),
        ("prompt", ["a"]),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(client: httpx.Client, field: str, value: Any) -> None:
    response = client.post("/infill", json={**GAP, field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


def test_openai_clients_send_a_suffix(server: Served) -> None:
    with openai_client(server) as client:
        answer = client.completions.create(model="tiny", prompt="be", suffix="af", temperature=0)
        assert answer.choices[0].text == FILLED
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 8  # BOS, three marks and four letters
        several = client.completions.create(model="tiny", prompt=["be", "x"], suffix="af", temperature=0)
        assert [choice.text for choice in several.choices] == [FILLED, FILLED]
        stream = client.completions.create(model="tiny", prompt="be", suffix="af", temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == FILLED
        stops = {"stop_token_ids": [3]}
        assert client.completions.create(model="tiny", prompt="be", suffix="af", temperature=0, extra_body=stops)
        for wrong in ({"echo": True}, {"prompt": [5]}, {"prompt": "x" * 200}):
            asked: dict[str, Any] = {"model": "tiny", "prompt": "be", "suffix": "af", **wrong}
            with pytest.raises(openai.BadRequestError) as error:
                client.completions.create(**asked)
            assert error.value.param in ("suffix", "prompt")


def test_ollamas_clients_send_a_suffix(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "be", "suffix": "af", "stream": False, "options": {"temperature": 0}}
    answer = client.post("/api/generate", json=body).json()
    assert (answer["response"], answer["done_reason"], answer["prompt_eval_count"]) == (FILLED, "stop", 8)
    refused = client.post("/api/generate", json={**body, "system": "be kind"})
    assert (refused.status_code, "system" in refused.json()["error"]) == (400, True)


def test_what_a_model_can_do_is_told(client: httpx.Client) -> None:
    [card] = client.get("/v1/models").json()["data"]
    assert card["capabilities"] == ["completion", "chat", "embedding", "infill"]
    assert client.get("/v1/models/tiny").json()["capabilities"] == card["capabilities"]
    assert client.get("/props").json()["capabilities"] == card["capabilities"]
    assert client.post("/api/show", json={"model": "tiny"}).json()["capabilities"] == [
        "completion",
        "embedding",
        "insert",
    ]


def test_a_model_without_the_tokens_says_so(tmp_path: Path) -> None:
    with served_scripted(tmp_path, context=CONTEXT) as server:
        for path, body in (
            ("/infill", GAP),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}),
            ("/api/generate", {"prompt": "a", "suffix": "b"}),
        ):
            response = httpx.post(server.url + path, json=body, timeout=60)
            assert response.status_code == 400
            assert "cannot fill in a gap" in response.text
