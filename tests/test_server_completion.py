"""POST /completion, llama.cpp's own protocol, as clients of its server ask it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from localinfer.server.line_limits import LineLimits
from localinfer.server.settings import ServerSettings
from scripted_model import ANSWER
from served_app import Served, served_scripted

CONTEXT = 128
TEXT = "".join(ANSWER)
URL = "/completion"
LINES = ["def f():", "\n    return 1", "\n\n    # more", "\nend"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("completion")
    settings = ServerSettings(log_file=str(folder / "log"))
    with served_scripted(folder, context=CONTEXT, settings=settings, answers={"code": LINES}) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def tokenizer(server: Served) -> Any:
    [model] = server.app.state.registry.loaded()
    return model.llm.tokenizer


def ask(client: httpx.Client, prompt: Any = "abc", **fields: Any) -> Any:
    response = client.post(URL, json={"prompt": prompt, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def events(client: httpx.Client, prompt: Any = "abc", **fields: Any) -> list[Any]:
    response = client.post(URL, json={"prompt": prompt, "temperature": 0, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert "[DONE]" not in response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


def refusal(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"prompt": "abc", **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_a_text_is_continued(client: httpx.Client) -> None:
    answer = ask(client)
    assert (answer["content"], answer["stop"], answer["index"]) == (TEXT, True, 0)
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("eos", "", False)
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (4, len(ANSWER) + 1)
    assert (answer["model"], answer["prompt"], answer["tokens"]) == ("tiny", "<s>abc", [])
    assert answer["has_new_line"] is False
    assert answer["generation_settings"]["temperature"] == 0
    assert answer["generation_settings"]["n_predict"] == -1
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == 4
    assert timings["predicted_n"] == len(ANSWER) + 1
    assert timings["predicted_per_second"] > 0
    assert "completion_probabilities" not in answer


def test_the_older_path_leads_there_too(client: httpx.Client) -> None:
    assert client.post("/completions", json={"prompt": "abc", "temperature": 0}).json()["content"] == TEXT


def test_a_stream_ends_with_everything_that_is_known(client: httpx.Client, tokenizer: Any) -> None:
    *parts, last = events(client)
    assert [part["content"] for part in parts] == ANSWER
    assert [part["stop"] for part in parts] == [False] * len(ANSWER)
    ids = [token for part in parts for token in part["tokens"]]
    assert tokenizer.decode(ids, strip_prefix=False) == TEXT
    assert [part["tokens_predicted"] for part in parts] == [1, 2, 3, 4, 5]
    whole = ask(client)
    varying = ("timings", "content", "tokens", "tokens_cached", "generation_settings")
    assert {key: value for key, value in last.items() if key not in varying} == {
        key: value for key, value in whole.items() if key not in varying
    }
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)
    assert "timings" not in parts[0]
    assert events(client, timings_per_token=True)[1]["timings"]["predicted_n"] == 2


def test_prompts_in_every_form(client: httpx.Client, tokenizer: Any) -> None:
    ids = list(tokenizer.encode("abc", add_special=True, parse_special=False))
    mixed = [tokenizer.bos_id, "ab", *ids[-1:]]
    for prompt in ("abc", ids, mixed, ["ab", *ids[-1:]], {"prompt_string": "abc"}):
        answer = ask(client, prompt)
        assert (answer["content"], answer["tokens_evaluated"]) == (TEXT, 4), prompt
    several = ask(client, ["abc", "x"])
    assert [(each["index"], each["content"], each["tokens_evaluated"]) for each in several] == [
        (0, TEXT, 4),
        (1, TEXT, 2),
    ]
    several = ask(client, [ids, "x", mixed, {"prompt_string": "abc"}])
    assert [each["tokens_evaluated"] for each in several] == [4, 2, 4, 4]
    assert ask(client, ["abc"])["content"] == TEXT
    ends = [event["index"] for event in events(client, ["abc", "x"]) if event["stop"]]
    assert sorted(ends) == [0, 1]


def test_special_tokens_are_found_in_texts(client: httpx.Client) -> None:
    assert ask(client, "<|code|>")["content"] == "".join(LINES)
    assert ask(client, "a<|code|>")["tokens_evaluated"] == 3


def test_several_answers(client: httpx.Client) -> None:
    fields = {"temperature": 100, "seed": 1, "n_predict": 5, "ignore_eos": True}
    for name in ("n", "n_cmpl"):
        answers = ask(client, "a", **fields, **{name: 2})
        assert [each["index"] for each in answers] == [0, 1]
        assert answers[0]["content"] == ask(client, "a", **fields)["content"] != answers[1]["content"]


def test_limits(client: httpx.Client) -> None:
    answer = ask(client, n_predict=2)
    assert (answer["content"], answer["stop_type"], answer["truncated"]) == ("Hello,", "limit", False)
    assert answer["generation_settings"]["n_predict"] == 2
    for limit in (-1, -2, None):
        answer = ask(client, n_predict=limit, ignore_eos=True)
        assert (answer["stop_type"], answer["truncated"]) == ("limit", True)
        assert answer["tokens_predicted"] + answer["tokens_evaluated"] == CONTEXT
    assert ask(client, max_tokens=1)["content"] == "Hello"


def test_a_prompt_alone_is_computed_for_those_who_warm_the_cache(client: httpx.Client) -> None:
    prompt = "a text that is long enough to be kept in whole blocks of the cache"
    answer = ask(client, prompt, n_predict=0, samplers=[], cache_prompt=True)
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")
    assert ask(client, prompt)["tokens_cached"] > 0
    [last] = events(client, prompt, n_predict=0)
    assert (last["stop"], last["content"]) == (True, "")


def test_a_stopping_word_is_named(client: httpx.Client) -> None:
    answer = ask(client, stop=["nothing", " 🌍"])
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("Hello, wide", "word", " 🌍")


def test_tokens_are_returned_without_the_one_that_ended_the_answer(client: httpx.Client, tokenizer: Any) -> None:
    answer = ask(client, return_tokens=True)
    assert tokenizer.decode(answer["tokens"], strip_prefix=False) == TEXT
    assert len(answer["tokens"]) == len(ANSWER)


def test_probabilities(client: httpx.Client) -> None:
    found = ask(client, n_probs=3)["completion_probabilities"]
    assert [each["token"] for each in found] == [*ANSWER, "<|end|>"]
    for each in found:
        assert len(each["top_logprobs"]) == 3
        assert each["top_logprobs"][0]["id"] == each["id"]
        assert bytes(each["bytes"]).decode() == each["token"]
        assert math.isclose(each["logprob"], each["top_logprobs"][0]["logprob"])
    parts = [part for event in events(client, n_probs=3) for part in event.get("completion_probabilities", [])]
    assert parts == found
    assert "completion_probabilities" not in ask(client, n_probs=0)


def test_only_the_fields_that_were_asked_for(client: httpx.Client) -> None:
    answer = ask(
        client, response_fields=["content", "timings/predicted_n", "generation_settings/top_k", "a/b", "nothing"]
    )
    assert answer == {
        "content": TEXT,
        "timings/predicted_n": 6,
        "generation_settings/top_k": answer["generation_settings/top_k"],
    }
    assert events(client, response_fields=["stop"])[-1] == {"stop": True}


def test_samplers_that_are_not_named_are_off(client: httpx.Client) -> None:
    asked = {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "temperature": 0.3, "repeat_penalty": 1.2, "dry_multiplier": 1}
    settings = ask(client, **asked, samplers=["top_k", "top_p"], n_predict=1)["generation_settings"]
    kept = {
        name: settings[name] for name in ("top_k", "top_p", "min_p", "temperature", "repeat_penalty", "dry_multiplier")
    }
    assert kept == {"top_k": 5, "top_p": 0.5, "min_p": 0, "temperature": 1, "repeat_penalty": 1, "dry_multiplier": 0}


@pytest.mark.parametrize(
    ("samplers", "told"),
    [
        (["top_k", "temperature", "top_p"], None),
        (["top_k", "top_p", "infill"], "samplers.infill"),
        (["top_k", "typ_p", "top_p", "min_p", "temperature"], "samplers.order"),
        ([], None),
    ],
)
def test_what_has_no_effect_is_told_in_a_header(client: httpx.Client, samplers: list[str], told: str | None) -> None:
    response = client.post(URL, json={"prompt": "a", "samplers": samplers, "n_predict": 1})
    assert response.status_code == 200
    assert response.headers.get("x-localinfer-unknown-fields") == told


def test_a_bias_in_every_form(client: httpx.Client, tokenizer: Any) -> None:
    hello, comma = (tokenizer.token_id(piece) for piece in ("Hello", ","))
    for bias in ([[hello, False]], {str(hello): -50}, [[hello, -50.5], [comma, 1]]):
        assert not ask(client, logit_bias=bias, n_predict=1)["content"].startswith("Hello"), bias
    assert ask(client, logit_bias={"9" * 5000: 1})["content"] == TEXT, "a text of digits, and no id"
    drawn = ask(client, logit_bias=[["!", 80]], n_predict=2, ignore_eos=True)
    assert drawn["content"] == "!!"


def test_a_random_seed_is_told_and_gives_the_same_again(client: httpx.Client) -> None:
    fields = {"temperature": 100, "n_predict": 5, "ignore_eos": True, "top_k": 0, "top_p": 1}
    first, second = (ask(client, seed=-1, **fields) for _ in range(2))
    assert first["content"] != second["content"]
    again = ask(client, seed=first["generation_settings"]["seed"], **fields)
    assert again["content"] == first["content"]


def test_a_grammar_binds_the_answer(client: httpx.Client) -> None:
    assert ask(client, grammar='root ::= "yes" | "no"')["content"] in ("yes", "no")
    assert json.loads(ask(client, json_schema={"enum": ["a", 5]})["content"]) in ("a", 5)


def test_editors_end_an_answer_at_a_line(client: httpx.Client) -> None:
    whole = ask(client, "<|code|>", n_indent=4)
    assert (whole["content"], whole["stop_type"]) == ("def f():\n    return 1\n\n    # more", "limit")
    assert whole["has_new_line"]
    parts = events(client, "<|code|>", n_indent=4)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert parts[-1]["stop_type"] == "limit"
    assert ask(client, "<|code|>", n_indent=5)["content"] == "def f():"
    assert ask(client, "<|code|>", n_indent=0, t_max_predict_ms=-1)["content"] == "".join(LINES)


def test_limits_that_are_about_lines() -> None:
    now = [0.0]

    def said(limits: LineLimits, *pieces: tuple[float, str]) -> str:
        shown = ""
        for at, piece in pieces:
            now[0] = at
            shown += limits.push(piece)
            if limits.over:
                break
        return shown + limits.finish()

    def new(indent: int = 0, seconds: float = 0.0) -> LineLimits:
        return LineLimits(indent, seconds, lambda: now[0])

    assert said(new(seconds=1), (5, "a\nb"), (6.5, "c"), (7, "d\ne")) == "a\nbcd"
    assert said(new(seconds=1), (5, "a\nb"), (5.9, "c\n")) == "a\nbc\n"
    assert said(new(), (5, "a\n"), (100, "b\n")) == "a\nb\n"
    assert said(new(indent=2), (0, "a\n"), (0, "  "), (0, "b\n \t c\n"), (0, " d")) == "a\n  b\n \t c"
    assert said(new(indent=2), (0, " a\n"), (0, "\n\n  b")) == " a\n\n\n  b"
    assert said(new(indent=2), (0, "a\n ")) == "a\n "


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ["a", ["b"], 5]),
        ("prompt", [10**6]),
        ("prompt", [-1]),
        ("prompt", {"prompt_string": "a", "multimodal_data": ["AAAA"]}),
        ("prompt", ["a"] * 2000),
        ("n_predict", -3),
        ("n_probs", -1),
        ("samplers", ["top_q"]),
        ("logit_bias", [[5, True]]),
        ("logit_bias", {"100000": 1}),
        ("logit_bias", [["a"]]),
        ("id_slot", -2),
        ("post_sampling_probs", True),
        ("return_progress", True),
        ("min_keep", 2),
        ("lora", [{"id": 0, "scale": 1}]),
        ("grammar", "root ::= (("),
        ("stop", [5]),
        ("messages", []),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(client: httpx.Client, field: str, value: Any) -> None:
    for stream in (False, True):
        error = refusal(client, **{"stream": stream, field: value})
        assert field in error["message"]
        assert error["param"].startswith(field)


def test_what_asks_for_nothing_or_changes_nothing_is_taken(client: httpx.Client) -> None:
    neutral = {"min_keep": 0, "lora": [], "return_progress": False, "post_sampling_probs": False, "id_slot": 0}
    harmless = {"n_keep": -1, "n_discard": 5, "n_cache_reuse": 1, "t_max_prompt_ms": 500, "cache_prompt": False}
    response = client.post(URL, json={"prompt": "abc", "temperature": 0, **neutral, **harmless})
    assert response.json()["content"] == TEXT
    assert "x-localinfer-unknown-fields" not in response.headers


def test_a_prompt_that_fills_the_context(client: httpx.Client) -> None:
    error = refusal(client, prompt="x" * CONTEXT)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
