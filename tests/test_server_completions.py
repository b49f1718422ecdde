"""POST /v1/completions through the real OpenAI client, and as evaluation harnesses ask it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from localinfer.server.settings import ServerSettings
from scripted_model import ANSWER
from served_app import Served, openai_client, served_scripted

CONTEXT = 128
TEXT = "".join(ANSWER)  # what any text is followed by, before the first "<|end|>"
URL = "/v1/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("completions")
    settings = ServerSettings(log_file=str(folder / "log"))
    with served_scripted(folder, context=CONTEXT, settings=settings) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


@pytest.fixture
def plain(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def tokenizer(server: Served) -> Any:
    [model] = server.app.state.registry.loaded()
    return model.llm.tokenizer


def ask(client: openai.OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(**{"model": "tiny", "prompt": prompt, "temperature": 0, **fields})


def events(plain: httpx.Client, **fields: Any) -> list[Any]:
    response = plain.post(URL, json={"temperature": 0, "stream": True, **fields})
    assert response.status_code == 200, response.text
    found = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert found.pop() == "[DONE]"
    return [json.loads(data) for data in found]


def refusal(plain: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = plain.post(URL, json={"prompt": "a", **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_a_text_is_continued(client: openai.OpenAI) -> None:
    answer = ask(client, "abc")
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (TEXT, "stop", None)
    assert (answer.object, answer.usage.prompt_tokens) == ("text_completion", 4)  # BOS and a token per byte


def test_special_tokens_in_front_can_be_left_out(client: openai.OpenAI) -> None:
    assert ask(client, "abc", extra_body={"add_special_tokens": False}).usage.prompt_tokens == 3


def test_sixteen_tokens_unless_more_are_asked_for(client: openai.OpenAI) -> None:
    assert ask(client, "abc", extra_body={"ignore_eos": True}).usage.completion_tokens == 16
    answer = ask(client, "abc", max_tokens=10**6, extra_body={"ignore_eos": True})
    assert (answer.usage.total_tokens, answer.choices[0].finish_reason) == (CONTEXT, "length")


def test_prompts_come_as_texts_or_tokens_one_or_many(client: openai.OpenAI, tokenizer: Any) -> None:
    ids = list(tokenizer.encode("abc", add_special=True, parse_special=False))
    for prompt, count in (("abc", 1), (["abc", "x"], 2), (ids, 1), ([ids, ids], 2), (["abc", ids], 2)):
        answer = ask(client, prompt)
        assert [choice.index for choice in answer.choices] == list(range(count))
        assert {choice.text for choice in answer.choices} == {TEXT}
        assert answer.usage.completion_tokens == count * (len(ANSWER) + 1)


def test_several_answers_to_several_prompts_are_in_order(plain: httpx.Client) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "temperature": 100, "seed": 1, "max_tokens": 6, "ignore_eos": True}
    choices = plain.post(URL, json=body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in choices]
    alone = plain.post(URL, json={**body, "prompt": "b", "n": 1}).json()
    assert texts[2] == alone["choices"][0]["text"]
    streamed = [""] * 4
    for chunk in events(plain, **body):
        [choice] = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_the_best_of_several(plain: httpx.Client) -> None:
    body = {"prompt": "a", "temperature": 100, "seed": 1, "max_tokens": 3, "ignore_eos": True, "logprobs": 0}

    def likeliness(choice: Any) -> float:
        return sum(choice["logprobs"]["token_logprobs"]) / 3

    every = plain.post(URL, json={**body, "n": 4}).json()["choices"]
    best = plain.post(URL, json={**body, "n": 2, "best_of": 4}).json()["choices"]
    wanted = sorted(every, key=likeliness, reverse=True)[:2]
    assert [choice["text"] for choice in best] == [choice["text"] for choice in wanted]
    assert [choice["index"] for choice in best] == [0, 1]
    streamed = ["", ""]
    for chunk in events(plain, **{**body, "n": 2, "best_of": 4}):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == [choice["text"] for choice in best]
    assert "best_of" in refusal(plain, n=3, best_of=2)["message"]


def test_a_stream(plain: httpx.Client) -> None:
    *chunks, usage = events(plain, prompt="abc", stream_options={"include_usage": True})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == [*ANSWER, ""]
    assert [choice["finish_reason"] for choice in choices] == [None] * len(ANSWER) + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(ANSWER) + 1


def test_log_probabilities(client: openai.OpenAI, plain: httpx.Client) -> None:
    found = ask(client, "abc", logprobs=2).choices[0].logprobs
    assert found.tokens == [*ANSWER, "<|end|>"]
    assert found.text_offset == [0, 5, 6, 11, 13, 14]
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert logprob == max(top.values()) == top[token]
        assert len(top) == 2
    parts = [chunk["choices"][0]["logprobs"] for chunk in events(plain, prompt="abc", logprobs=2)]
    joined = {name: [item for part in parts if part for item in part[name]] for name in parts[0]}
    assert joined == found.model_dump()
    assert ask(client, "abc", logprobs=0).choices[0].logprobs.top_logprobs[0].keys() == {"Hello"}


def test_a_token_that_is_no_text_is_written_in_bytes(client: openai.OpenAI, tokenizer: Any) -> None:
    prompt = [tokenizer.token_id("<0xF0>")]
    answer = ask(client, prompt, max_tokens=0, echo=True, logprobs=0)
    assert answer.choices[0].logprobs.tokens == ["bytes:\\xf0"]
    assert answer.choices[0].text == "\N{REPLACEMENT CHARACTER}"


def test_echo_puts_the_prompt_in_front(client: openai.OpenAI, plain: httpx.Client) -> None:
    assert ask(client, "abc", echo=True).choices[0].text == "abc" + TEXT
    assert ask(client, "abc", echo=True, max_tokens=0).choices[0].text == "abc"
    texts = [chunk["choices"][0]["text"] for chunk in events(plain, prompt="abc", echo=True)]
    assert texts == ["abc", *ANSWER, ""]


@pytest.mark.parametrize("drawn", [0, 1])
def test_log_probabilities_of_the_prompt_as_harnesses_read_them(
    client: openai.OpenAI, plain: httpx.Client, tokenizer: Any, drawn: int
) -> None:
    """lm-evaluation-harness sends token ids, echo, logprobs and max_tokens 1 (older ones: 0), sums the log
    probabilities behind the context, and calls a token greedy if none is likelier."""
    context = list(tokenizer.encode("ab", add_special=True, parse_special=False))
    for continuation, greedy in ((TEXT, True), ("never", False)):
        ids = [*context, *tokenizer.encode(continuation, add_special=False, parse_special=False)]
        if greedy:
            ids = [*context, *(tokenizer.token_id(piece.replace(" ", "▁")) for piece in ANSWER)]
        body: dict[str, Any] = {"max_tokens": drawn, "echo": True, "logprobs": 1, "seed": 7}
        choice = ask(client, ids, **body).choices[0]
        found = choice.logprobs
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(ids) + drawn
        assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
        scored = slice(len(context), len(ids))
        assert all(logprob < 0 for logprob in found.token_logprobs[scored])
        is_greedy = all(
            logprob == max(top.values())
            for logprob, top in zip(found.token_logprobs[scored], found.top_logprobs[scored], strict=True)
        )
        assert is_greedy == greedy
        assert [choice.text[at:][: len(token)] for at, token in zip(found.text_offset, found.tokens, strict=True)][
            scored
        ] == found.tokens[scored]
        parts = [chunk["choices"][0]["logprobs"] for chunk in events(plain, prompt=ids, **body)]
        joined = {name: [item for part in parts if part for item in part[name]] for name in parts[0]}
        assert joined == found.model_dump()


def test_the_probabilities_of_a_prompt_do_not_depend_on_the_cache(client: openai.OpenAI) -> None:
    prompt = "the same words, asked for again and again"
    found = []
    for _ in range(2):
        found.append(ask(client, prompt, echo=True, logprobs=3, max_tokens=1).choices[0].logprobs.model_dump())
        ask(client, prompt)
    assert found[0] == found[1]


def test_nothing_is_counted_that_only_echo_needed(client: openai.OpenAI) -> None:
    usage = ask(client, "abc", echo=True, max_tokens=0).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 0, 4)


def test_a_prompt_that_fills_the_context(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens") as error:
        ask(client, ["a", "x" * CONTEXT])
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", 5),
        ("prompt", ["a", 5]),
        ("prompt", [10**6]),
        ("prompt", [10**12]),
        ("prompt", [-1]),
        ("prompt", ["a"] * 2000),
        ("logprobs", -1),
        ("logprobs", True),
        ("best_of", 0),
        ("echo", "yes"),
        ("max_tokens", -1),
        ("messages", []),
        ("max_completion_tokens", 5),
        ("top_logprobs", 3),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(plain: httpx.Client, field: str, value: Any) -> None:
    for stream in (False, True):
        assert field in refusal(plain, **{"stream": stream, field: value})["message"]
