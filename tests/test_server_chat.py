"""POST /v1/chat/completions through the real OpenAI client, and over plain HTTP where that would hide something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from localinfer import LLM
from localinfer.server.fields import HARMLESS, REFUSED, UNKNOWN_FIELDS_HEADER
from localinfer.server.schemas.chat import ChatCompletionRequest
from localinfer.server.settings import ServerSettings
from scripted_model import ANSWER, write_scripted_model
from served_app import Served, openai_client, served, served_scripted

HELLO: Any = [{"role": "user", "content": "hello"}]
FOREVER: Any = [{"role": "user", "content": "forever"}]
TEXT = "".join(ANSWER)
CONTEXT = 192
URL = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("chat")
    template = (
        "{%- for message in messages %}{%- if message['content'] == 'refused' %}{{ raise_exception('not this') }}"
        "{%- endif %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
        "{%- if add_generation_prompt %}{%- set last = messages[-1]['content'] %}"
        "{{- '<|forever|>' if 'forever' in last else '<|assistant|>' }}{% endif %}{{ shout }}"
    )
    settings = ServerSettings(log_file=str(folder / "log"))
    with served_scripted(folder, context=CONTEXT, settings=settings, template=template) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


@pytest.fixture
def plain(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any = HELLO, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": messages, "temperature": 0, **fields})


def events(plain: httpx.Client, messages: Any = HELLO, **fields: Any) -> list[Any]:
    """The data of a streamed answer, the end mark included."""
    body = {"messages": messages, "temperature": 0, "stream": True, **fields}
    response = plain.post(URL, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in found]


def refusal(plain: httpx.Client, status: int = 400, **fields: Any) -> dict[str, Any]:
    response = plain.post(URL, json={"messages": HELLO, **fields})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_an_answer(client: openai.OpenAI) -> None:
    answer = ask(client)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert (choice.index, choice.logprobs, answer.model, answer.object) == (0, None, "tiny", "chat.completion")
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.completion_tokens == len(ANSWER) + 1  # and the token that ended it
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_model_may_be_left_out_and_another_is_404(client: openai.OpenAI, plain: httpx.Client) -> None:
    assert plain.post(URL, json={"messages": HELLO, "temperature": 0}).json()["model"] == "tiny"
    with pytest.raises(openai.NotFoundError, match="gpt-4") as error:
        ask(client, model="gpt-4")
    assert error.value.code == "model_not_found"


def test_a_stream_says_the_role_first_then_text_then_why_it_ends(plain: httpx.Client) -> None:
    *chunks, done = events(plain)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"].get("content") for choice in choices[1:-1]] == ANSWER
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", "tiny")
    }
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_is_streamed_only_if_asked_for_and_without_choices(plain: httpx.Client) -> None:
    *chunks, usage, done = events(plain, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(ANSWER) + 1
    assert all("usage" not in chunk for chunk in events(plain, stream_options={})[:-1])


def test_the_client_reads_a_stream(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage.completion_tokens == len(ANSWER) + 1


def test_cached_tokens_are_counted(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "the same words again and again"}]
    first, second = (ask(client, messages).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < 16 <= second.prompt_tokens_details.cached_tokens
    assert second.prompt_tokens_details.cached_tokens < second.prompt_tokens


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_length_is_limited_and_cut_to_what_the_context_holds(client: openai.OpenAI, name: str) -> None:
    answer = ask(client, FOREVER, **{name: 3})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (" tick" * 3, "length")
    answer = ask(client, FOREVER, **{name: 100_000})
    assert (answer.usage.total_tokens, answer.choices[0].finish_reason) == (CONTEXT, "length")


def test_max_completion_tokens_goes_before_max_tokens(client: openai.OpenAI) -> None:
    assert ask(client, FOREVER, max_tokens=9, max_completion_tokens=2).usage.completion_tokens == 2


def test_without_a_limit_an_answer_may_fill_the_context(client: openai.OpenAI) -> None:
    assert ask(client, FOREVER).usage.total_tokens == CONTEXT


def test_a_prompt_that_fills_the_context_is_named_as_agents_expect(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x" * 2 * CONTEXT}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens") as error:
            ask(client, messages, stream=stream)
        assert (error.value.code, error.value.param) == ("context_length_exceeded", "messages")


def test_stops(client: openai.OpenAI) -> None:
    assert ask(client, stop=" wide").choices[0].message.content == "Hello,"
    assert ask(client, stop=["never", "o,"]).choices[0].message.content == "Hell"
    assert ask(client, stop="").choices[0].message.content == TEXT
    assert ask(client, stop=[" wide"], extra_body={"min_tokens": 3}).choices[0].message.content == TEXT


def test_min_tokens_ignore_eos_and_stop_token_ids(client: openai.OpenAI, server: Served) -> None:
    assert ask(client, max_tokens=40, extra_body={"ignore_eos": True}).usage.completion_tokens == 40
    assert ask(client, extra_body={"min_tokens": 12}).usage.completion_tokens >= 12
    token = vocabulary(server).token_id(",")
    answer = ask(client, extra_body={"stop_token_ids": [token]})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello", "stop")


def test_special_tokens_can_be_shown(client: openai.OpenAI) -> None:
    shown = ask(client, max_tokens=7, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert shown.choices[0].message.content.startswith(f"{TEXT}<|end|>")


def test_logit_bias(client: openai.OpenAI, server: Served) -> None:
    token = vocabulary(server).token_id(" tick".replace(" ", "▁"))
    answer = ask(client, max_tokens=2, logit_bias={str(token): 100})
    assert answer.choices[0].message.content == " tick tick"
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        ask(client, logit_bias={"hello": 1})
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        ask(client, logit_bias={"999999": 1})


def test_a_seed_repeats_an_answer_and_another_changes_it(client: openai.OpenAI) -> None:
    def drawn(seed: int) -> str:
        answer = ask(client, temperature=100, seed=seed, max_tokens=20, extra_body={"top_k": -1, "ignore_eos": True})
        return str(answer.choices[0].message.content)

    assert drawn(-5) == drawn(-5)
    assert drawn(1) != drawn(2)


def test_several_answers(client: openai.OpenAI, plain: httpx.Client) -> None:
    sampling = {"temperature": 100, "seed": 3, "max_tokens": 8, "top_k": 0, "top_p": 1.0, "ignore_eos": True}
    response = plain.post(URL, json={"messages": HELLO, "n": 3, **sampling}).json()
    texts = [choice["message"]["content"] for choice in response["choices"]]
    assert [choice["index"] for choice in response["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert response["usage"]["completion_tokens"] == 24
    alone = plain.post(URL, json={"messages": HELLO, **sampling}).json()
    assert alone["choices"][0]["message"]["content"] == texts[0]
    streamed = ["", "", ""]
    for chunk in events(plain, n=3, **sampling)[:-1]:
        [choice] = chunk["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts


def test_beam_search(client: openai.OpenAI) -> None:
    answer = ask(client, n=2, extra_body={"use_beam_search": True, "length_penalty": 0.5}, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content == "Hello, wide 🌍"


def test_log_probabilities(client: openai.OpenAI, plain: httpx.Client) -> None:
    answer = ask(client, logprobs=True, top_logprobs=2)
    found = answer.choices[0].logprobs.content
    assert [entry.token for entry in found] == [*ANSWER, "<|end|>"]
    for entry in found:
        assert bytes(entry.bytes).decode() == entry.token
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[1].logprob <= entry.logprob < 0
    streamed = [
        entry
        for chunk in events(plain, logprobs=True, top_logprobs=2)[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == [entry.model_dump() for entry in found]
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_parts_of_text_are_joined_and_developer_means_system(client: openai.OpenAI, plain: httpx.Client) -> None:
    def tokens(messages: Any) -> int:
        return int(ask(client, messages, max_tokens=1).usage.prompt_tokens)

    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    assert tokens([{"role": "user", "content": parts}]) == tokens([{"role": "user", "content": "ab\nc"}])
    assert tokens([{"role": "developer", "content": "a"}, *HELLO]) == tokens(
        [{"role": "system", "content": "a"}, *HELLO]
    )


@pytest.mark.parametrize("type", ["image_url", "input_audio", "file"])
def test_what_is_no_text_is_refused(plain: httpx.Client, type: str) -> None:
    error = refusal(plain, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": type}]}])
    assert error["param"] == "messages[0].content[1]"
    assert type in error["message"]


def test_what_the_template_raises_is_a_400(plain: httpx.Client) -> None:
    error = refusal(plain, messages=[{"role": "user", "content": "refused"}])
    assert "not this" in error["message"]


def test_a_message_without_content_is_named(plain: httpx.Client) -> None:
    for message in ({"role": "user", "content": None}, {"role": "system"}):
        assert refusal(plain, messages=[message])["param"] == "messages[0].content"


def test_a_body_that_is_compressed_is_a_415(plain: httpx.Client) -> None:
    response = plain.post(URL, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]


def test_variables_of_the_template(plain: httpx.Client, client: openai.OpenAI) -> None:
    def tokens(**fields: Any) -> int:
        return int(ask(client, max_tokens=1, extra_body=fields).usage.prompt_tokens)

    assert tokens(chat_template_kwargs={"shout": "!!!"}) == tokens() + 3
    assert tokens(add_generation_prompt=False) == tokens() - 1
    for name in ("messages", "tools", "self"):
        assert refusal(plain, chat_template_kwargs={name: []})["param"] == f"chat_template_kwargs.{name}"
    assert refusal(plain, reasoning_effort="low")["param"] == "reasoning_effort"


def test_tokens_of_earlier_answers_may_be_sent_back(client: openai.OpenAI, server: Served) -> None:
    first = ask(client, extra_body={"return_token_ids": True}).choices[0].message
    assert vocabulary(server).decode(first.tokens, skip_special=True) == TEXT
    chunks = list(ask(client, stream=True, extra_body={"return_token_ids": True}))
    assert chunks[-1].choices[0].delta.tokens == first.tokens
    messages = [*HELLO, first.model_dump(exclude_none=True), {"role": "user", "content": "more"}]
    answer = ask(client, messages)
    # "Hello" is one token of the answer, and five of a text that is encoded anew by this vocabulary.
    spelled = ask(client, [*HELLO, {"role": "assistant", "content": TEXT}, {"role": "user", "content": "more"}])
    assert answer.usage.prompt_tokens <= spelled.usage.prompt_tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_k", 1.5),
        ("min_p", 1),
        ("typical_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", 1e9),
        ("seed", 1.5),
        ("n", 0),
        ("n", 1000),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("stop", 3),
        ("stop", [3]),
        ("stop", ["x"] * 1000),
        ("stop_token_ids", ["x"]),
        ("stop_token_ids", [10**6]),
        ("logit_bias", []),
        ("logit_bias", {"1": 1000}),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", 1),  # without logprobs
        ("stream", "yes"),
        ("stream_options", {"include_usage": 1}),
        ("messages", []),
        ("messages", None),
        ("messages", [{"content": "no role"}]),
        ("messages", [{"role": "asistant", "content": "a"}]),
        ("messages", [{"role": "user", "content": 7}]),
        ("messages", [{"role": "user", "content": [{"text": "no type"}]}]),
        ("priority", "high"),
        ("use_beam_search", 1),
        ("model", 5),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(plain: httpx.Client, field: str, value: Any) -> None:
    for stream in (False, True):
        error = refusal(plain, **{"stream": stream, field: value})
        assert field in error["message"]
        assert error["type"] == "invalid_request_error"


def test_known_fields_that_are_not_served_are_refused_by_name(plain: httpx.Client) -> None:
    fields = sorted(set(REFUSED) - set(ChatCompletionRequest.__struct_fields__))
    error = refusal(plain, **{field: {"something": 1} for field in fields})
    assert error["message"].endswith(": " + ", ".join(fields))
    for field in ("functions", "suffix", "echo"):
        error = refusal(plain, **{field: {"something": 1}})
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")
        assert field in error["message"]


def test_known_fields_that_ask_for_nothing_are_taken(plain: httpx.Client) -> None:
    asking = {"messages", "max_completion_tokens"}
    nothing: dict[str, tuple[Any, ...]] = {name: values for name, values in REFUSED.items() if name not in asking}
    bodies: list[dict[str, Any]] = [dict.fromkeys(nothing)]
    for place in range(max(map(len, nothing.values()))):
        bodies.append({field: values[place] for field, values in nothing.items() if len(values) > place})
    for body in bodies:
        response = plain.post(URL, json={"messages": HELLO, "max_tokens": 1, **body})
        assert response.status_code == 200, response.text
        assert UNKNOWN_FIELDS_HEADER not in response.headers


def test_harmless_fields_are_ignored_and_unknown_ones_named_in_a_header(plain: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 1, **dict.fromkeys(HARMLESS, "anything")}
    assert UNKNOWN_FIELDS_HEADER not in plain.post(URL, json=body).headers
    for stream in (False, True):
        strange = {"strange": 1, "näme\r\nx: y": 2, "stream_options": {"strange_too": 1}}
        response = plain.post(URL, json={**body, "stream": stream, **strange})
        assert response.status_code == 200
        assert response.headers[UNKNOWN_FIELDS_HEADER] == "strange, n?me??x:?y, stream_options.strange_too"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b"\xff", b"[" * 10**5, b'{"messages": NaN}', b"{}"])
def test_a_body_that_is_no_request_is_a_400(plain: httpx.Client, body: bytes) -> None:
    response = plain.post(URL, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_half_a_character_in_the_json_is_replaced(plain: httpx.Client) -> None:
    body = b'{"temperature": 0, "messages": [{"role": "user", "content": "cut \\ud83d"}], "max_tokens": 1}'
    response = plain.post(URL, content=body)
    assert response.status_code == 200, response.text


def test_other_methods_and_paths_are_errors_in_json(plain: httpx.Client) -> None:
    response = plain.get(URL)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["type"] == "invalid_request_error"
    response = plain.post("/v1/nothing", json={})
    assert response.status_code == 404
    assert "/v1/nothing" in response.json()["error"]["message"]


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    llm = LLM(write_scripted_model(tmp_path / "base.gguf", template=""), context=CONTEXT, threads=1)
    with served(llm, ServerSettings(log_file=str(tmp_path / "log"))) as found:
        response = httpx.post(f"{found.url}{URL}", json={"messages": HELLO}, timeout=60)
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


def vocabulary(server: Served) -> Any:
    [model] = server.app.state.registry.loaded()
    return model.llm.tokenizer
