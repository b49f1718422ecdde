"""OpenAI's newer protocol through the client, and over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from localinfer.server.fields import UNKNOWN_FIELDS_HEADER
from localinfer.server.response_input import Tools
from localinfer.text.answer_reader import Call
from served_app import Served, openai_client, served_scripted
from test_server_tools import CALLING, TEMPLATE

TOOLS: Any = [
    {
        "type": "function",
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_scripted(
        tmp_path_factory.mktemp("responses"), context=2048, template=TEMPLATE, answer=CALLING
    ) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": "tiny", "input": "hello", "temperature": 0, "tools": TOOLS, "max_output_tokens": 900, **fields}
    return client.responses.create(**asked)


def refusal(server: Served, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.url}/v1/responses", json={"input": "hello", **fields}, timeout=60)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_an_answer_in_items(client: openai.OpenAI) -> None:
    response = ask(client)
    thought, message, weather, clock = response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Which city?")
    assert (message.type, message.content[0].text, response.output_text) == ("message", "I look.", "I look.")
    assert (weather.type, weather.name, json.loads(weather.arguments)) == ("function_call", "weather", {"city": "Oslo"})
    assert (clock.name, clock.arguments) == ("clock", "{}")
    assert weather.call_id != clock.call_id
    assert (response.status, response.model, response.error) == ("completed", "tiny", None)
    assert response.usage.output_tokens == len(CALLING) + 1
    assert ask(client).usage.input_tokens_details.cached_tokens > 0


def test_a_stream_tells_the_same_piece_by_piece(client: openai.OpenAI) -> None:
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    whole = [item.model_dump(exclude={"id", "call_id"}) for item in ask(client).output]
    assert [item.model_dump(exclude={"id", "call_id"}) for item in events[-1].response.output] == whole
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump(exclude={"id", "call_id"}) for item in done] == whole
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert (text, thought) == ("I look.", "Which city?")
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [item.id for item in events[-1].response.output]


def test_the_clients_own_stream_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="hello", temperature=0, tools=TOOLS) as stream:
        final = stream.get_final_response()
    assert final.output_text == "I look."
    assert final.output[2].name == "weather"  # type: ignore[union-attr]


def test_a_conversation_goes_on_without_anything_stored(client: openai.OpenAI) -> None:
    response = ask(client)
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    items += [item.model_dump(exclude_none=True) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "forever"} for call in calls]
    final = ask(client, input=items, instructions="You help.", max_output_tokens=4)
    assert final.output_text == " tick" * 4
    assert (final.status, final.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_calls_can_be_forced(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "name": "weather"}):
        thought, call = ask(client, tools=TOOLS[:1], tool_choice=choice, parallel_tool_calls=False).output
        assert thought.type == "reasoning", "it thinks before it calls"
        assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")


def test_text_of_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    assert json.loads(ask(client, tools=[], text=form).output_text)["n"] in (1, 2)


def test_custom_tools_and_namespaces(client: openai.OpenAI) -> None:
    tools = [
        {"type": "custom", "name": "clock", "description": "Takes any text."},
        {"type": "namespace", "name": "sky", "description": "", "tools": [{**TOOLS[0], "name": "weather"}]},
    ]
    choice = {"type": "function", "name": "weather", "namespace": "sky"}
    [_, call] = ask(client, tools=tools, tool_choice=choice).output
    assert (call.type, call.name, call.namespace) == ("function_call", "weather", "sky")
    item = Tools(tools, "auto").called(Call("clock", '{"input": "noon"}'))
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "clock", "noon")


def test_what_is_left_out_is_named(server: Served) -> None:
    body: dict[str, Any] = {
        "input": "hello",
        "tools": [{"type": "web_search"}, *TOOLS],
        "max_output_tokens": 2,
        "store": False,
    }
    body["reasoning"] = {"effort": "high"}
    response = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)
    assert response.status_code == 200
    assert "tools.web_search" in response.headers[UNKNOWN_FIELDS_HEADER]
    assert "reasoning.effort" in response.headers[UNKNOWN_FIELDS_HEADER], "the template does not read it"


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}  # which no grammar keeps


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input_image"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"role": "tool", "content": "x"}]}, "role"),
        ({"tools": [{"type": "teleport"}]}, "teleport"),
        ({"tools": [{"type": "function"}]}, "name"),
        ({"tools": [{"type": "function", "name": "a", "strict": True, "parameters": UNIQUE}]}, "uniqueItems"),
        ({"tool_choice": {"type": "file_search"}}, "file_search"),
        ({"background": True}, "background"),
        ({"input": "x" * 5000}, "maximum context length"),
    ],
)
def test_what_makes_no_sense_is_a_400(server: Served, fields: dict[str, Any], words: str) -> None:
    assert words in refusal(server, **fields)["message"]
