"""Tools and reasoning through the real OpenAI client, and over plain HTTP where that would hide something."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from localinfer import LLM
from localinfer.server.fields import UNKNOWN_FIELDS_HEADER
from scripted_model import write_scripted_model
from served_app import Served, openai_client, served, served_scripted

# The Hermes way of calling; what is rendered for answers matters to find out the format.
TEMPLATE = """\
{%- if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|end|>' }}{% endif %}
{%- for message in messages %}{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' }}
{%- if message['reasoning_content'] %}{{ '<think>\\n' + message['reasoning_content'] + '\\n</think>\\n\\n' }}{% endif %}
{{- message['content'] or '' }}
{%- for call in message['tool_calls'] or [] %}{{ '\\n' if not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{ '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|forever|>' if 'forever' in messages[-1]['content'] else '<|assistant|>' }}{% endif %}"""
CALLING = [
    *("<think>\n", "Which", " city", "?\n</think>", "\n\nI", " look.", "\n<tool_call>\n", '{"name": "weather"', ", "),
    *(
        '"arguments": {"city": "Os',
        'lo"}}',
        "\n</tool_call>",
        "\n<tool_call>\n{",
        '"name": "clock", "arguments": {}}\n</tool_',
        "call>",
    ),
]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock", "description": "Tells the time."}}
TOOLS: Any = [WEATHER, CLOCK]
HELLO: Any = [{"role": "user", "content": "hello"}]
CALLS = [("weather", {"city": "Oslo"}), ("clock", {})]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_scripted(tmp_path_factory.mktemp("tools"), context=2048, template=TEMPLATE, answer=CALLING) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "tiny", "messages": HELLO, "temperature": 0, "tools": TOOLS, "max_tokens": 1000, **fields}
    )


def refusal(server: Served, **fields: Any) -> dict[str, Any]:
    body = {"messages": HELLO, "tools": TOOLS, **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


def test_an_answer_is_told_apart(client: openai.OpenAI) -> None:
    [choice] = ask(client).choices
    message = choice.message
    assert (message.content, message.reasoning_content, message.reasoning) == ("I look.", "Which city?", "Which city?")
    assert calls_of(message) == CALLS
    assert choice.finish_reason == "tool_calls"
    ids = {call.id for call in message.tool_calls}
    assert len(ids) == 2
    assert all(len(call.id) == 9 and call.type == "function" for call in message.tool_calls)


def test_a_stream_has_the_same_parts(client: openai.OpenAI) -> None:
    content, thought, calls, reasons = "", "", [], []
    for chunk in ask(client, stream=True):
        delta: Any = chunk.choices[0].delta
        content += delta.content or ""
        thought += getattr(delta, "reasoning_content", None) or ""
        calls += delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert (content, thought) == ("I look.", "Which city?")
    assert [(call.index, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        (number, *call) for number, call in enumerate(CALLS)
    ]
    assert len({call.id for call in calls} - {None, ""}) == 2
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


def test_without_tools_calls_are_text_and_thoughts_are_not(client: openai.OpenAI) -> None:
    for fields in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}, {"tools": []}):
        [choice] = ask(client, **fields).choices
        assert choice.message.tool_calls is None
        assert choice.message.content.startswith("I look.\n<tool_call>")
        assert choice.message.reasoning_content == "Which city?"
        assert choice.finish_reason == "stop"


def test_a_forced_call_fits_its_schema(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        [answer] = ask(client, tool_choice=choice, parallel_tool_calls=False).choices
        [(name, arguments)] = calls_of(answer.message)
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        if name == "weather":
            assert set(arguments) in ({"city"}, {"city", "days"})
            assert arguments["city"] in ("Oslo", "Rome")
            assert arguments.get("days", 1) in range(1, 8)
    assert name == "weather", "it was asked for by its name"


def test_an_answer_that_is_cut_off_in_a_call_says_so(client: openai.OpenAI) -> None:
    [choice] = ask(client, max_tokens=9).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("I look.")
    assert choice.message.content.endswith('{"name": "weather", ')


def test_results_go_back_to_the_model(client: openai.OpenAI) -> None:
    message = ask(client).choices[0].message
    turns = [*HELLO, message.model_dump(exclude_none=True)]
    turns += [{"role": "tool", "tool_call_id": call.id, "content": "forever"} for call in message.tool_calls]
    [choice] = ask(client, messages=turns, max_tokens=4).choices
    assert choice.message.content == " tick" * 4


def test_several_answers_have_calls_of_their_own(client: openai.OpenAI) -> None:
    choices = ask(client, n=2).choices
    assert [calls_of(choice.message) for choice in choices] == [CALLS] * 2
    assert len({call.id for choice in choices for call in choice.message.tool_calls}) == 4


def test_log_probabilities_come_for_every_token(client: openai.OpenAI) -> None:
    entries = 0
    for chunk in ask(client, stream=True, logprobs=True):
        if chunk.choices[0].logprobs:
            entries += len(chunk.choices[0].logprobs.content)
    assert entries == len(CALLING) + 1


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "no tools", "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "no tool other", "tool_choice"),
        ({"tool_choice": "sometimes"}, "sometimes", "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "same name", "tools"),
        ({"tools": [{"type": "web_search"}]}, "web_search", "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name", "tools[0].function.name"),
        ({"tool_choice": "required", "guided_choice": ["a"]}, "format of its own", "tool_choice"),
    ],
)
def test_what_makes_no_sense_is_a_400(server: Served, fields: dict[str, Any], words: str, param: str) -> None:
    error = refusal(server, **fields)
    assert words in error["message"]
    assert error["param"] == param


def test_a_schema_that_cannot_be_enforced_is_refused_where_it_must_be(server: Served, client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    function = {"name": "weather", "description": "", "parameters": parameters}
    tools: Any = [{"type": "function", "function": function}, CLOCK]
    strict: Any = [{"type": "function", "function": {**function, "strict": True}}, CLOCK]
    for fields in ({"tools": tools, "tool_choice": "required"}, {"tools": strict}):
        error = refusal(server, **fields)
        assert "uniqueItems" in error["message"]
        assert (error["param"], error["code"]) == ("tools[0].function.parameters", "unsupported_grammar")
    told = client.chat.completions.with_raw_response.create(
        model="tiny", messages=HELLO, temperature=0, tools=tools, max_tokens=1000
    )
    assert told.headers[UNKNOWN_FIELDS_HEADER] == "tools.weather.parameters"
    assert calls_of(told.parse().choices[0].message) == CALLS


@pytest.mark.parametrize("days", [3, 9])
def test_arguments_fit_their_schema_though_nobody_asked_for_a_call(client: openai.OpenAI, days: int) -> None:
    """The model would write `{"city": "Oslo"}`: not where that is no city, nor where there must be more."""
    function = {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome"]}, "days": {"const": days}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    }
    [choice] = ask(client, tools=[{"type": "function", "function": function}], parallel_tool_calls=False).choices
    assert calls_of(choice.message) == [("weather", {"city": "Rome", "days": days})]
    assert (choice.message.content, choice.message.reasoning_content) == ("I look.", "Which city?")


def test_one_call_only(client: openai.OpenAI) -> None:
    [choice] = ask(client, parallel_tool_calls=False).choices
    assert calls_of(choice.message) == CALLS[:1]
    assert choice.finish_reason == "tool_calls"


def test_an_answer_of_a_schema_may_call_instead(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"const": 4}}, "required": ["n"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    [choice] = ask(client, response_format=form).choices
    # Behind the thought the model would say "I look.", which is neither: what is left is ranked by its id.
    assert choice.message.reasoning_content == "Which city?"
    assert choice.message.tool_calls or json.loads(choice.message.content) == {"n": 4}


def test_a_grammar_binds_what_follows_the_thought(client: openai.OpenAI) -> None:
    [choice] = ask(client, tools=[], extra_body={"guided_regex": "[0-9]{3}"}).choices
    assert choice.message.reasoning_content == "Which city?"
    assert re.fullmatch("[0-9]{3}", choice.message.content)


@pytest.mark.parametrize("name", ["thinking_budget", "thinking_token_budget", "thinking_budget_tokens"])
@pytest.mark.parametrize(("budget", "thought"), [(-1, "Which city?"), (2, "Which city"), (1, "Which"), (0, None)])
def test_a_thought_ends_where_its_budget_does(
    client: openai.OpenAI, name: str, budget: int, thought: str | None
) -> None:
    choices = ask(client, extra_body={name: budget}, n=2, max_tokens=60).choices
    assert [getattr(choice.message, "reasoning_content", None) for choice in choices] == [thought] * 2


def test_a_budget_and_a_grammar_go_together(client: openai.OpenAI) -> None:
    more = {"guided_regex": "[0-9]{3}", "thinking_budget": 1}
    [choice] = ask(client, tools=[], extra_body=more).choices
    assert choice.message.reasoning_content == "Which"
    assert re.fullmatch("[0-9]{3}", choice.message.content)


def test_budgets_that_contradict_are_a_400(server: Served) -> None:
    assert refusal(server, thinking_budget=1, thinking_token_budget=2)["param"] == "thinking_token_budget"


def test_a_template_without_tools_refuses_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_scripted_model(tmp_path_factory.mktemp("plain") / "tiny.gguf")
    with served(LLM(path, context=512, threads=1)) as found:
        error = refusal(found)
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
