"""Anthropic's protocol through its own client, and over plain HTTP where that would hide something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from localinfer.server.fields import UNKNOWN_FIELDS_HEADER
from served_app import Served, served_scripted
from test_server_tools import CALLING, TEMPLATE

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "name": "weather",
        "description": "Tells the weather.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_scripted(
        tmp_path_factory.mktemp("anthropic"), context=2048, template=TEMPLATE, answer=CALLING
    ) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 900, **fields}
    return client.messages.create(**asked, extra_body={"temperature": 0})  # newer clients do not know it by name


def test_an_answer_in_blocks(client: anthropic.Anthropic) -> None:
    answer = ask(client, tools=TOOLS)
    thinking, text, weather, clock = answer.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Which city?")
    assert (text.type, text.text) == ("text", "I look.")
    assert (weather.type, weather.name, weather.input) == ("tool_use", "weather", {"city": "Oslo"})
    assert (clock.name, clock.input) == ("clock", {})
    assert weather.id != clock.id
    assert (answer.stop_reason, answer.stop_sequence, answer.model, answer.role) == (
        "tool_use",
        None,
        "tiny",
        "assistant",
    )
    assert answer.id.startswith("msg")
    again = ask(client, tools=TOOLS).usage
    assert again.cache_read_input_tokens > 0
    assert again.input_tokens + again.cache_read_input_tokens == answer.usage.input_tokens
    assert again.output_tokens == answer.usage.output_tokens == len(CALLING) + 1


def test_the_clients_own_stream_adds_up_to_the_same(client: anthropic.Anthropic) -> None:
    kinds = []
    with client.messages.stream(
        model="tiny", messages=HELLO, max_tokens=900, tools=TOOLS, extra_body={"temperature": 0}
    ) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_message()
    whole = ask(client, tools=TOOLS)
    same = [block.model_dump(exclude={"id"}, exclude_none=True) for block in whole.content]
    assert [block.model_dump(exclude={"id"}, exclude_none=True) for block in final.content] == same
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", len(CALLING) + 1)
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


def test_why_an_answer_ended(client: anthropic.Anthropic) -> None:
    assert ask(client).stop_reason == "end_turn"
    assert ask(client, max_tokens=3).stop_reason == "max_tokens"
    stopped = ask(client, stop_sequences=["city", "look"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "city")


def test_calls_can_be_forced_and_forbidden(client: anthropic.Anthropic) -> None:
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        thought, block = ask(client, tools=TOOLS[:1], tool_choice=choice).content
        assert thought.type == "thinking"
        assert (block.type, block.name) == ("tool_use", "weather")
        assert block.input["city"] in ("Oslo", "Rome")
    blocks = ask(client, tools=TOOLS, tool_choice={"type": "none"}).content
    assert [block.type for block in blocks] == ["thinking", "text"]


def test_a_conversation_with_results_goes_on(client: anthropic.Anthropic) -> None:
    answer = ask(client, tools=TOOLS)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": content}
        for block, content in zip(answer.content[2:], ["rain", [{"type": "text", "text": "noon"}]], strict=True)
    ]
    turns = [*HELLO, {"role": "assistant", "content": answer.content}]
    turns.append({"role": "user", "content": [*results, {"type": "text", "text": "forever"}]})
    final = ask(client, messages=turns, tools=TOOLS, max_tokens=4, system=[{"type": "text", "text": "Be brief."}])
    assert final.content[0].text == " tick" * 4


def test_tokens_are_counted_as_they_are_asked(client: anthropic.Anthropic) -> None:
    usage = ask(client, system="Be brief.", tools=TOOLS).usage
    count = client.messages.count_tokens(model="tiny", messages=HELLO, system="Be brief.", tools=TOOLS)
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_billing_header_is_left_out_and_that_is_told(server: Served) -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"}
    body = {"messages": HELLO, "max_tokens": 2, "system": [billing, {"type": "text", "text": "Be brief."}]}
    response = httpx.post(
        f"{server.url}/v1/messages?beta=true", json={**body, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    )
    assert response.status_code == 200
    told = response.headers[UNKNOWN_FIELDS_HEADER]
    assert "billing" in told
    plain = httpx.post(f"{server.url}/v1/messages/count_tokens", json={"messages": HELLO, "system": "Be brief."}).json()
    counted = httpx.post(
        f"{server.url}/v1/messages/count_tokens", json={"messages": HELLO, "system": body["system"]}
    ).json()
    assert counted == plain


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}  # which no grammar keeps


def test_thoughts_that_nobody_here_can_read_are_named(server: Served) -> None:
    turns = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "hi"}]},
        *HELLO,
    ]
    body = {"model": "tiny", "max_tokens": 4, "messages": turns}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 200
    assert "messages.redacted_thinking" in answer.headers[UNKNOWN_FIELDS_HEADER].split(", ")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tool_choice": {"type": "tool", "name": "other"}}, "no tool other"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tools": [{"name": "a", "strict": True, "input_schema": UNIQUE}]}, "uniqueItems"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "maximum context length"),
    ],
)
def test_errors_have_anthropics_form(client: anthropic.Anthropic, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, **{"tools": TOOLS, **fields})
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"]


def test_a_model_that_is_not_there_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="claude")
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


def test_events_are_named(server: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "stream": True, "temperature": 0}
    text = httpx.post(f"{server.url}/v1/messages", json=body).text
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
