"""Python's clients: each streams, calls tools, gets answers of a schema, is told what is wrong, and may leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conversation import CALL, QUESTION, REPORT, TEXT, TOO_LONG, Talking, talking
from python_clients import CLIENTS, connected

# litellm's types, whenever it copies an answer.
pytestmark = pytest.mark.filterwarnings("ignore:Items? '.*' on TypedDict class:UserWarning")
# What is asked -> words that reach whoever asked.
ERRORS = {
    "too long": ({"text": TOO_LONG}, "maximum context length"),
    "no such model": ({"text": QUESTION, "model": "llama9"}, "llama9"),
    "bad field": ({"text": QUESTION, "temperature": -1}, "temperature"),
    "wrong key": ({"text": QUESTION, "key": "another"}, "this API key is none of those"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    with talking(tmp_path_factory.mktemp("clients")) as found:
        yield found


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, server: Talking, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for a list of prices
    with connected(request.param, server.url) as found:
        yield found


def test_an_answer_streams_in_pieces(client: Any) -> None:
    pieces = client.stream()
    assert "".join(pieces) == TEXT
    assert len(pieces) > 2


def test_a_tool_is_called_and_its_result_answered(client: Any) -> None:
    assert client.tool_round() == ([CALL], "".join(REPORT))


def test_an_answer_fits_its_schema(client: Any) -> None:
    pet = client.structured()
    assert pet.kind in ("cat", "dog")
    assert pet.size in (1, 2, 3)


@pytest.mark.parametrize("what", list(ERRORS))
def test_what_is_wrong_reaches_who_asked(client: Any, what: str) -> None:
    asked, words = ERRORS[what]
    with pytest.raises(client.errors[what]) as caught:
        client.ask(**asked)
    assert words in str(caught.value)


def test_a_client_that_leaves_frees_its_place(client: Any, server: Talking) -> None:
    with server.seeing_the_client_leave():
        client.leave()
