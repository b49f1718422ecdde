"""Models, tokens, health, metrics, props, slots and the OpenAPI document, asked for over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from prometheus_client.parser import text_string_to_metric_families

from localinfer import LLM, __version__
from localinfer.server.app import create_app
from localinfer.server.registry import ModelInfo, ServedModel
from localinfer.server.routes import ENDPOINTS
from localinfer.server.settings import ServerSettings
from scripted_model import ANSWER, TEMPLATE, write_scripted_model
from served_app import Served, served

HELLO = [{"role": "user", "content": "hello"}]
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com"}}]}
FOREVER = [{"role": "user", "content": "forever"}]
CONTEXT = 256
GARBAGE = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"a": 1e999}', b"\x00")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("status") / "tiny.gguf")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests"


@pytest.fixture(scope="module")
def server(path: Path, log: Path) -> Iterator[Served]:
    llm = LLM(path, context=CONTEXT, max_sequences=2, threads=1)
    llm.name = "tiny"
    with served(llm, ServerSettings(log_file=str(log))) as server:
        yield server


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def error(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def test_models_tell_the_served_context_length(client: httpx.Client, path: Path) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert card["id"] == "tiny"
    assert card["context_length"] == card["max_model_len"] == card["meta"]["n_ctx"] == CONTEXT
    assert card["created"] == int(path.stat().st_mtime)
    assert (card["object"], card["owned_by"], card["state"]) == ("model", "localinfer", "loaded")
    assert client.get("/v1/models/tiny").json() == card


def test_a_model_that_is_not_served_is_404_and_names_what_is(client: httpx.Client) -> None:
    for name in ("gpt-4", "owner/name", "%0a"):
        response = client.get(f"/v1/models/{name}")
        assert response.status_code == 404
        assert error(response)["code"] == "model_not_found"
        assert "tiny" in error(response)["message"]
    bodies = {"/tokenize": {"prompt": ""}, "/detokenize": {"tokens": []}, "/apply-template": {"messages": HELLO}}
    for url, body in bodies.items():
        assert error(client.post(url, json={"model": "gpt-4", **body}))["code"] == "model_not_found"
    for url in ("/props", "/slots"):
        assert client.get(url, params={"model": "gpt-4"}).status_code == 404


def test_the_root_answers_get_and_head(client: httpx.Client) -> None:
    found = client.get("/").json()
    assert found["name"] == "localinfer"
    assert found["version"] == __version__
    assert {"/v1/chat/completions", "/v1/models/{model}"} <= set(found["endpoints"])
    head = client.head("/")
    assert head.status_code == 200
    assert head.content == b""


def test_health_is_ok_when_a_model_is_there(client: httpx.Client) -> None:
    response = client.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "version": __version__,
        "models": [{"id": "tiny", "state": "loaded", "backend": "cpu", "notes": []}],
    }


class Loading:
    """A registry whose model is on its way."""

    ready = False

    def __init__(self, *models: ModelInfo) -> None:
        self.infos = list(models)
        self.there: list[ServedModel] = []

    def models(self) -> list[ModelInfo]:
        return self.infos

    def loaded(self) -> list[ServedModel]:
        return self.there

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        raise AssertionError("nothing here may load a model")
        yield

    async def close(self) -> None:
        pass


@contextmanager
def serving_without_a_model(state: Any, problem: str = "") -> Iterator[httpx.Client]:
    info = ModelInfo("tiny", ("alias",), Path("/secret/tiny.gguf"), 64, 0, state, problem)
    with served(lambda: Loading(info)) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_health_is_503_while_the_model_is_loaded() -> None:
    with serving_without_a_model("loading") as client:
        response = client.get("/health")
        assert response.status_code == 503
        assert response.json()["status"] == "loading"
        assert response.json()["models"][0]["state"] == "loading"
        assert "being loaded" in error(response)["message"]
        assert client.get("/slots").json() == []
        assert client.get("/slots", params={"fail_on_no_slot": 1}).status_code == 503
        assert client.get("/v1/models/alias").json()["state"] == "loading"
        assert client.get("/metrics").status_code == 200


def test_health_tells_strangers_no_paths_and_models_say_what_is_wrong() -> None:
    with serving_without_a_model("unloaded", "/secret/tiny.gguf is truncated") as client:
        response = client.get("/health")
        assert response.status_code == 503
        assert response.json()["status"] == "failed"
        assert "secret" not in response.text
        assert client.get("/v1/models").json()["data"][0]["problem"] == "/secret/tiny.gguf is truncated"


def test_health_names_fallbacks_and_a_failed_engine(path: Path) -> None:
    llm = LLM(path, context=64, threads=1)
    llm.notes = ("using the reference backend: cpu is not usable",)
    with served(llm) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/health").json()["models"][0]["notes"] == list(llm.notes)
        (model,) = server.app.state.registry.loaded()
        model.thread.failure = RuntimeError("made up by the test")
        assert client.get("/health").status_code == 503
        assert client.get("/health").json()["models"][0]["state"] == "failed"
        model.thread.failure = None


def test_tokenize_takes_the_fields_of_vllm(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "!,é", "return_token_strs": True}
    found = client.post("/tokenize", json=body).json()
    assert found["token_strs"] == ["<s>", "!", ",", "<0xC3>", "<0xA9>"]
    assert found["count"] == len(found["tokens"]) == 5
    assert found["max_model_len"] == CONTEXT
    assert found["tokens"][0] == 1
    bare = client.post("/tokenize", json={"prompt": "!", "add_special_tokens": False}).json()
    assert bare["tokens"] == found["tokens"][1:2]
    assert bare["token_strs"] is None


def test_tokenize_takes_the_fields_of_llama_cpp(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"content": "!é<|end|>", "with_pieces": True}).json()
    pieces = [token["piece"] for token in found["tokens"]]
    assert pieces == ["!", [0xC3], [0xA9], "<|end|>"]
    plain = client.post("/tokenize", json={"content": "<|end|>", "parse_special": False, "add_special": True}).json()
    assert plain["tokens"][0] == 1
    assert 2 not in plain["tokens"]


def test_tokenize_counts_what_a_chat_would_have(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"messages": HELLO}).json()
    answer = client.post("/v1/chat/completions", json={"messages": HELLO}).json()
    assert found["count"] == answer["usage"]["prompt_tokens"]
    shorter = client.post("/tokenize", json={"messages": HELLO, "add_generation_prompt": False}).json()
    assert shorter["tokens"] == found["tokens"][:-1]


def test_detokenize_is_the_way_back(client: httpx.Client) -> None:
    text = "wide🌍!\n<|end|>"
    tokens = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text, "content": text}
    assert client.post("/detokenize", json={"tokens": []}).json()["content"] == ""


def test_apply_template_writes_what_a_chat_gives_to_the_model(client: httpx.Client) -> None:
    prompt = client.post("/apply-template", json={"messages": HELLO}).json()
    assert prompt == {"prompt": "<|user|>hello<|end|><|assistant|>"}
    body = {"messages": HELLO, "add_generation_prompt": False}
    assert client.post("/apply-template", json=body).json() == {"prompt": "<|user|>hello<|end|>"}
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert client.post("/apply-template", json={"messages": parts}).json()["prompt"].startswith("<|user|>a\nb<|end|>")


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special": True, "add_special_tokens": False}, "add_special"),
        ("/tokenize", {"messages": HELLO, "tools": [{}]}, "tools"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**40]}, "tokens[0]"),
        ("/apply-template", {"messages": [IMAGE]}, "messages[0].content[0]"),
        ("/apply-template", {"messages": [{"content": "a"}]}, "messages[0]"),
    ],
)
def test_what_makes_no_sense_is_a_400_that_names_the_field(
    client: httpx.Client, url: str, body: dict[str, Any], param: str
) -> None:
    response = client.post(url, json=body)
    assert response.status_code == 400, response.text
    assert error(response)["param"] == param or param in error(response)["message"]


def test_tokens_outside_the_vocabulary_are_a_400(client: httpx.Client) -> None:
    assert client.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_what_a_template_refuses_is_a_400(path: Path, tmp_path: Path) -> None:
    refusing = "{{ raise_exception('roles must alternate') }}"
    with (
        served(LLM(path, context=64, threads=1, chat_template=refusing)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        for url in ("/apply-template", "/tokenize"):
            response = client.post(url, json={"messages": HELLO})
            assert response.status_code == 400
            assert "roles must alternate" in error(response)["message"]


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    llm = LLM(write_scripted_model(tmp_path / "base.gguf", template=""), context=64, threads=1)
    with served(llm) as server, httpx.Client(base_url=server.url) as client:
        for url in ("/apply-template", "/tokenize"):
            response = client.post(url, json={"messages": HELLO})
            assert response.status_code == 400
            assert "no chat template" in error(response)["message"]
        assert client.get("/props").json()["chat_template"] == ""


def test_unknown_fields_are_named_in_a_header_and_in_the_log(client: httpx.Client, log: Path) -> None:
    response = client.post("/tokenize", json={"prompt": "a", "made_up_by_test": 1, "user": "harmless"})
    assert response.headers["x-localinfer-unknown-fields"] == "made_up_by_test"
    assert "endpoint=/tokenize status=200" in line_with(log, "ignored=made_up_by_test")


def line_with(log: Path, text: str) -> str:
    """The line of the log that has a text: a thread writes it, some time after the answer was sent."""
    for _ in range(600):
        for line in log.read_text().splitlines():
            if text in line:
                return line
        time.sleep(0.1)
    raise AssertionError(f"no line with {text}")


def test_props_have_the_shape_that_llama_cpp_gives_them(client: httpx.Client, path: Path) -> None:
    found = client.get("/props", params={"model": "tiny"}).json()
    assert found["total_slots"] == 2
    assert found["model_path"] == str(path)
    assert found["model_alias"] == "tiny"
    assert found["chat_template"] == TEMPLATE
    assert (found["bos_token"], found["eos_token"]) == ("<s>", "<|end|>")
    assert found["modalities"] == {"vision": False, "audio": False}
    settings = found["default_generation_settings"]
    assert settings["n_ctx"] == CONTEXT
    assert settings["params"]["temperature"] == 0.7
    assert settings["params"]["top_k"] == 40
    assert settings["params"]["n_predict"] == -1


def test_slots_show_what_is_computed(client: httpx.Client, server: Served) -> None:
    (model,) = server.app.state.registry.loaded()
    speculative = model.llm.engine.speculation != "off"
    idle = [{"id": id, "n_ctx": CONTEXT, "speculative": speculative, "is_processing": False} for id in range(2)]
    assert client.get("/slots").json() == idle
    body = {"messages": FOREVER, "max_tokens": 200, "seed": 7, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as first:
        events = first.iter_bytes()
        next(events)
        busy = client.get("/slots").json()[0]
        if busy["is_processing"]:  # it may be over by now, on a fast machine
            assert busy["n_prompt_tokens"] == 11
            assert busy["params"]["seed"] == 7
            assert busy["params"]["n_predict"] == 200
            (progress,) = busy["next_token"]
            assert progress["n_decoded"] + progress["n_remain"] == 200
        assert list(events)  # so that it is over when the next test counts


def test_metrics_count_what_was_asked(client: httpx.Client) -> None:
    def read() -> dict[tuple[str, ...], float]:
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        families = text_string_to_metric_families(response.text)
        return {
            (sample.name, *(sample.labels[k] for k in sorted(sample.labels) if k not in ("engine", "le"))): sample.value
            for family in families
            for sample in family.samples
        }

    before = read()
    assert client.post("/v1/chat/completions", json={"messages": HELLO, "temperature": 0}).status_code == 200
    assert client.post("/v1/chat/completions", json={}).status_code == 400
    after = read()
    changes = {key: after[key] - before.get(key, 0) for key in after}
    assert changes["vllm:prompt_tokens_total", "tiny"] == 9
    assert changes["vllm:generation_tokens_total", "tiny"] == len(ANSWER) + 1
    assert changes["vllm:request_success_total", "stop", "tiny"] == 1
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert changes[f"vllm:{name}_seconds_count", "tiny"] == 1
    assert 1 <= changes["vllm:inter_token_latency_seconds_count", "tiny"] <= len(ANSWER)
    assert changes["localinfer:http_requests_total", "/v1/chat/completions", "400"] == 1
    assert after["vllm:num_requests_running", "tiny"] == after["vllm:num_requests_waiting", "tiny"] == 0
    assert after["vllm:kv_cache_usage_perc", "tiny"] <= 1


def test_the_log_has_a_line_for_every_request_to_a_model(client: httpx.Client, log: Path) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": HELLO, "temperature": 0}).json()
    line = line_with(log, f"id={answer['id']}")
    for name in ("queue_ms", "prefill_ms", "cached", "new", "decode_ms", "tokens_per_s", "total_ms"):
        assert re.search(rf" {name}=[\d.]+ ", line), line
    assert " finish=stop " in line
    assert " tokens=6 " in line


def test_other_requests_have_lines_if_that_is_asked_for(path: Path, tmp_path: Path) -> None:
    for verbose in (False, True):
        log = tmp_path / f"log-{verbose}"
        settings = ServerSettings(log_file=str(log), verbose=verbose)
        with served(LLM(path, context=64, threads=1), settings) as server, httpx.Client(base_url=server.url) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models/x").status_code == 404
            assert client.post("/tokenize", json={"prompt": "a"}).status_code == 200
            metrics = client.get("/metrics").text
        found = re.findall(r"endpoint=(\S+) status=(\d+)", log.read_text())
        silent = [("/health", "200"), ("/v1/models/{model}", "404")] if verbose else []
        assert found == [*silent, ("/tokenize", "200"), *([("/metrics", "200")] if verbose else [])]
        assert 'localinfer:http_requests_total{endpoint="/health",status="200"} 1.0' in metrics


def test_the_log_names_the_token_that_broke_the_prefix(client: httpx.Client, log: Path) -> None:
    def ask(text: str) -> str:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0}
        return line_with(log, f"id={client.post('/v1/chat/completions', json=body).json()['id']}")

    ask("It is 12:03 o'clock. " + 50 * "a")
    line = ask("It is 12:04 o'clock. " + 50 * "a")
    # <s><|user|>, then each byte is a token.
    assert f" parted_at={2 + len('It▁is▁12:0'.encode())} cached_token=3 asked_token=4 " in line
    assert " cached=16 " in line  # the block before it was found


def test_the_openapi_document_is_valid_and_complete(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()
    operations = {(method.upper(), path) for path, found in document["paths"].items() for method in found}
    assert operations == {(endpoint.method, endpoint.name) for endpoint in ENDPOINTS}
    ids = [operation["operationId"] for found in document["paths"].values() for operation in found.values()]
    assert len(set(ids)) == len(ids)
    text = json.dumps(document)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert named == set(document["components"]["schemas"])


def test_everything_that_has_a_body_answers_garbage_with_a_400(client: httpx.Client) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.request is None:
            continue
        for body in (*GARBAGE, b'{"messages": 3, "prompt": {}, "input": {}, "tokens": {}}'):
            response = client.post(endpoint.path, content=body)
            assert response.status_code == 400, (endpoint.path, body, response.text)
            assert response.json()["error"], "in whatever form the protocol has"


def test_other_methods_and_paths_are_errors_in_json(client: httpx.Client) -> None:
    assert error(client.get("/v1/nothing"))["message"] == "there is no /v1/nothing here"
    response = client.delete("/health")
    assert response.status_code == 405
    assert "GET" in response.headers["allow"]
    assert error(response)["message"] == "/health does not answer DELETE"


def test_a_log_file_that_cannot_be_written_is_said_before_anything_is_served(tmp_path: Path) -> None:
    async def create() -> None:
        create_app(Loading(), ServerSettings(log_file=str(tmp_path / "missing" / "log")))

    with pytest.raises(Exception, match="cannot be written"):
        asyncio.run(create())
