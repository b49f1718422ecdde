"""Answers that have to look like something: in the words of OpenAI's client, vLLM's and llama.cpp's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from served_app import Served, openai_client, served_scripted

SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 9}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["size", "kind"],
    "additionalProperties": False,
}
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_scripted(tmp_path_factory.mktemp("structured"), context=1024) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def answer(server: Served, path: str = "/v1/chat/completions", **fields: Any) -> str:
    asked = {"messages": HELLO} if "chat" in path else {"prompt": "x"}
    response = httpx.post(server.url + path, json={**asked, "max_tokens": 400, "temperature": 0, **fields}, timeout=60)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"] if "chat" in path else choice["text"]
    return text


def refusal(server: Served, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": HELLO, **fields}, timeout=60)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


SCHEMAS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"structured_outputs": {"json": SCHEMA}},
    {"json_schema": SCHEMA},
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("fields", SCHEMAS)
def test_a_schema_in_every_spelling(server: Served, path: str, fields: dict[str, Any]) -> None:
    found = json.loads(answer(server, path, **fields))
    assert set(found) == {"size", "kind"}
    assert found["size"] in range(1, 10)
    assert found["kind"] in ("cat", "dog")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[xy]{3}"}, "[xy]{3}"),
        ({"structured_outputs": {"regex": "[xy]{3}"}}, "[xy]{3}"),
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, "red|blue"),
        ({"grammar": 'root ::= "on" | "off"'}, "on|off"),
        ({"guided_grammar": 'start: "on" | "off"'}, "on|off"),
        ({"structured_outputs": {"grammar": 'root ::= "on" | "off"'}}, "on|off"),
        ({"response_format": {"type": "text"}}, "Hello, wide .*"),
        ({"guided_choice": None, "grammar": "", "structured_outputs": {}}, "Hello, wide .*"),
    ],
)
def test_other_grammars(server: Served, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, answer(server, **fields))


def test_any_json_object(server: Served) -> None:
    text = answer(server, response_format={"type": "json_object"}, logit_bias={"133": 50})  # the byte "}"
    assert isinstance(json.loads(text), dict)


def test_a_stream_adds_up_to_what_fits(client: openai.OpenAI) -> None:
    form: Any = SCHEMAS[0]["response_format"]
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=3.0, seed=2, stream=True, response_format=form
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert json.loads(text)["kind"] in ("cat", "dog")


def test_the_clients_own_models_are_parsed(client: openai.OpenAI) -> None:
    class Pet(pydantic.BaseModel):
        kind: str = pydantic.Field(pattern="^(cat|dog)$")
        size: int = pydantic.Field(ge=1, le=9)

    found = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Pet, temperature=0)
    pet = found.choices[0].message.parsed
    assert isinstance(pet, Pet)


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "uniqueItems", "guided_json"),
        ({"guided_regex": "(a"}, "regular expression", "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex, guided_choice", "guided_choice"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is missing", "response_format"),
        ({"response_format": {"type": "xml"}}, "xml", "response_format.type"),
        ({"guided_choice": []}, "at least one", "guided_choice"),
        ({"guided_json": "{"}, "no JSON", "guided_json"),
        ({"guided_regex": "a", "use_beam_search": True, "n": 2}, "beam search", "grammar"),
    ],
)
def test_what_cannot_be_kept_is_a_400(server: Served, fields: dict[str, Any], words: str, param: str | None) -> None:
    error = refusal(server, **fields)
    assert words in error["message"]
    assert error["param"] == param


def test_an_answer_does_not_end_in_its_thought(tmp_path: Path) -> None:
    """Where what follows a thought is bound, the model cannot end before it has said it."""
    from test_server_tools import TEMPLATE

    with served_scripted(tmp_path, context=256, template=TEMPLATE) as found:
        body = {"messages": HELLO, "temperature": 0, **SCHEMAS[0], "max_tokens": 40}
        choice = httpx.post(f"{found.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]
        assert choice["message"]["reasoning_content"]
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("root ::= root", "no answer fits the grammar"),
        ("root ::= x\nx ::= x x", "no answer fits the grammar"),
        ('root ::= "a" root', "the answer cannot go on by its grammar: parser error: Too many items"),
    ],
)
def test_a_grammar_that_leads_nowhere_is_a_400(server: Served, grammar: str, words: str) -> None:
    message = refusal(server, grammar=grammar)["message"]
    assert words in message
    assert "<state>" not in message
