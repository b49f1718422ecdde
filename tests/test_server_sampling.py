"""Samplers by llama.cpp's and Ollama's names: what they become, and which values are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from localinfer import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.server.errors import ApiError
from localinfer.server.fields import UNKNOWN_FIELDS_HEADER
from localinfer.server.parameters import sampling_params
from localinfer.server.schemas.completions import CompletionRequest
from localinfer.server.schemas.sampling import LlamaSamplers
from served_app import Served, served
from tiny_models import by_name, write_gguf

PROMPT = "the cat and the dog and the cat and the"
# As llama.cpp's web page and others send them: everything, whether it is used or not.
OFF: dict[str, Any] = {
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "top_n_sigma": -1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
}
# Each alone changes the answer.
CHANGES: tuple[dict[str, Any], ...] = (
    {"dry_multiplier": 5.0, "dry_base": 1.5, "dry_allowed_length": 0, "dry_penalty_last_n": 50},
    {"dry_multiplier": 5.0, "dry_allowed_length": 0, "dry_sequence_breakers": ["", "zz"]},
    {"xtc_probability": 1.0, "xtc_threshold": 0.001},
    {"top_n_sigma": 0.3},
    {"dynatemp_range": 0.9, "dynatemp_exponent": 3.0},
    {"mirostat": 1, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
    {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
    {"repeat_penalty": 3.0, "repeat_last_n": 5},
)
WRONG: tuple[tuple[str, Any], ...] = (
    ("dry_multiplier", -1),
    ("dry_multiplier", "a lot"),
    ("dry_base", 0.5),
    ("dry_allowed_length", -1),
    ("dry_allowed_length", 1.5),
    ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", "\n"),
    ("dry_sequence_breakers", [1]),
    ("dry_sequence_breakers", ["x" * 41]),
    ("dry_sequence_breakers", ["x"] * 33),
    ("xtc_probability", 1.1),
    ("xtc_probability", -0.1),
    ("xtc_threshold", 2),
    ("top_n_sigma", -2),
    ("dynatemp_range", -0.5),
    ("dynatemp_exponent", -1),
    ("mirostat", 3),
    ("mirostat", True),
    ("mirostat_tau", -1),
    ("mirostat_eta", -0.1),
    ("repeat_penalty", 0),
    ("repeat_last_n", -2),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_gguf(by_name("llama"), tmp_path_factory.mktemp("sampling") / "tiny.gguf")
    with served(LLM(path, max_sequences=2)) as found:
        yield found


def params(base: SamplingParams | None = None, **fields: Any) -> SamplingParams:
    asked = msgspec.convert({"prompt": "a", **fields}, CompletionRequest)
    return sampling_params(asked, base or SamplingParams(), None)


def test_the_names_are_the_engines_and_nothing_is_forgotten() -> None:
    assert params(**OFF) == SamplingParams(penalty_window=64)
    assert set(OFF) == set(LlamaSamplers.__struct_fields__)
    for change in CHANGES[:-1]:
        found = params(**change)
        for name, value in change.items():
            expected = ("zz",) if name == "dry_sequence_breakers" else value
            assert getattr(found, name) == expected


def test_penalties_as_llama_cpp_counts() -> None:
    assert params(repeat_penalty=1.5) == SamplingParams(repetition_penalty=1.5, penalty_window=64)
    assert params(repeat_penalty=1.5, repeat_last_n=7) == SamplingParams(repetition_penalty=1.5, penalty_window=7)
    assert params(repeat_penalty=1.5, repeat_last_n=-1) == SamplingParams(repetition_penalty=1.5)
    assert params(repeat_penalty=1.5, presence_penalty=1, repeat_last_n=0) == SamplingParams()
    assert params(repetition_penalty=1.5) == SamplingParams(repetition_penalty=1.5)
    assert params(presence_penalty=1, repeat_last_n=9) == SamplingParams(presence_penalty=1.0, penalty_window=9)
    recommended = SamplingParams(repetition_penalty=1.2, penalty_window=30)
    assert params(recommended) == recommended
    assert params(recommended, repeat_penalty=1.5).penalty_window == 30
    assert params(recommended, repeat_last_n=0).penalizes is False
    assert params(repeat_penalty=1.5, repetition_penalty=1.5).repetition_penalty == 1.5
    with pytest.raises(ApiError, match="say different things"):
        params(repeat_penalty=1.5, repetition_penalty=1.2)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_every_endpoint_draws_with_them(server: Served, change: dict[str, Any]) -> None:
    how = {"temperature": 1.0, "seed": 3}
    asked = {"prompt": PROMPT, "max_tokens": 12, **how}
    options = {"num_predict": 12, **how}

    def text(**more: Any) -> str:
        response = httpx.post(f"{server.url}/v1/completions", json={**asked, **more}, timeout=60)
        assert response.status_code == 200, response.text
        assert UNKNOWN_FIELDS_HEADER not in response.headers
        return str(response.json()["choices"][0]["text"])

    def through_ollama(**more: Any) -> str:
        body = {"prompt": PROMPT, "raw": True, "stream": False, "options": {**options, **more}}
        response = httpx.post(f"{server.url}/api/generate", json=body, timeout=60)
        assert response.status_code == 200, response.text
        assert UNKNOWN_FIELDS_HEADER not in response.headers
        return str(response.json()["response"])

    changed = text(**change)
    assert changed != text(), "it has no effect"
    assert changed == text(**{**OFF, **change})
    assert changed == text(**change)
    assert through_ollama(**change) != through_ollama()


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_makes_no_sense_is_a_400_that_names_it(server: Served, name: str, value: Any) -> None:
    response = httpx.post(
        f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 1, name: value}, timeout=60
    )
    assert response.status_code == 400
    assert name in response.json()["error"]["message"]
    body = {"prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 1, name: value}}
    response = httpx.post(f"{server.url}/api/generate", json=body, timeout=60)
    assert response.status_code == 400
    assert name in response.json()["error"]


def test_the_properties_say_them_as_llama_cpp_does(server: Served) -> None:
    settings = httpx.get(f"{server.url}/props", timeout=60).json()["default_generation_settings"]["params"]
    assert OFF.keys() <= settings.keys()
    assert {name: settings[name] for name in OFF} == {**OFF, "repeat_last_n": -1}
    assert {"dry", "xtc", "top_n_sigma"} <= set(settings["samplers"])


def test_logits_processors_are_nothing_for_the_server(server: Served) -> None:
    body = {"prompt": "a", "max_tokens": 1, "logits_processors": ["os.system"]}
    response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert response.headers[UNKNOWN_FIELDS_HEADER] == "logits_processors"
