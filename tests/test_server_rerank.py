"""POST /v1/rerank with a model for embeddings.

The scripted model's hidden state of a token is one number at the token's place: texts are alike as far as they have the
same letters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from localinfer import LLM
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model
from served_app import Served, served

CONTEXT = 32
QUERY = "abc"
DOCUMENTS = ["xyz", "abcabc", "abx"]
ORDER = [1, 2, 0]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("rerank") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    llm = LLM(path, context=CONTEXT, max_sequences=2, threads=1)
    llm.metadata = {**llm.metadata, "llama.pooling_type": 1}  # type: ignore[assignment]
    llm.name = "tiny"
    log = tmp_path_factory.mktemp("log") / "requests"
    with served(llm, ServerSettings(log_file=str(log))) as found:
        yield found


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def rank(client: httpx.Client, endpoint: str = "/v1/rerank", **fields: Any) -> Any:
    response = client.post(endpoint, json={"query": QUERY, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def cosine(first: str, second: str) -> float:
    """Of the counts of their tokens: BOS and letters."""
    one, other = (Counter(["<s>", *text]) for text in (first, second))
    dot = sum(one[token] * other[token] for token in one)
    return dot / math.hypot(*one.values()) / math.hypot(*other.values())


@pytest.mark.parametrize("alias", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_documents_are_ordered(client: httpx.Client, alias: str) -> None:
    answer = rank(client, alias, documents=DOCUMENTS, model="tiny")
    assert [result["index"] for result in answer["results"]] == ORDER
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(cosine(QUERY, DOCUMENTS[result["index"]]), abs=1e-6)
        assert "document" not in result
    assert (answer["object"], answer["model"], answer["scoring"]) == ("list", "tiny", "cosine")
    assert answer["usage"] == {"prompt_tokens": 4 + 4 + 7 + 4, "total_tokens": 19}
    assert answer["id"]


def test_documents_may_be_objects_and_come_back(client: httpx.Client) -> None:
    documents = [{"text": text, "title": "t"} for text in DOCUMENTS[:2]] + DOCUMENTS[2:]
    answer = rank(client, documents=documents, return_documents=True, rank_fields=["text"])
    assert [result["document"] for result in answer["results"]] == [{"text": DOCUMENTS[index]} for index in ORDER]


@pytest.mark.parametrize(("top_n", "count"), [(None, 3), (1, 1), (3, 3), (99, 3)])
def test_only_the_first(client: httpx.Client, top_n: int | None, count: int) -> None:
    assert [each["index"] for each in rank(client, documents=DOCUMENTS, top_n=top_n)["results"]] == ORDER[:count]
    assert [each["index"] for each in rank(client, texts=DOCUMENTS, top_n=top_n)] == ORDER[:count]


def test_the_form_of_text_embeddings_inference(client: httpx.Client) -> None:
    bare = rank(client, "/rerank", texts=DOCUMENTS, raw_scores=False, truncate=False)
    assert [set(each) for each in bare] == [{"index", "score"}] * 3
    assert [each["score"] for each in bare] == pytest.approx([cosine(QUERY, DOCUMENTS[i]) for i in ORDER], abs=1e-6)
    assert [each["text"] for each in rank(client, texts=DOCUMENTS, return_text=True)] == [DOCUMENTS[i] for i in ORDER]


def test_equal_documents_stay_in_order(client: httpx.Client) -> None:
    assert [each["index"] for each in rank(client, documents=["ab", "ba", "ab"])["results"]] == [0, 1, 2]


def test_long_documents_are_cut_where_that_is_asked_for(client: httpx.Client) -> None:
    long = "a" * (2 * CONTEXT)
    response = client.post("/v1/rerank", json={"query": QUERY, "documents": ["a", long]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "documents[1] resulted in 65 tokens" in response.json()["error"]["message"]
    answer = rank(client, documents=["a", long], max_tokens_per_doc=3)
    assert answer["results"][0]["relevance_score"] == pytest.approx(cosine(QUERY, "a"), abs=1e-6)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("documents", {}),
        ("documents", {"documents": []}),
        ("documents", {"documents": None}),
        ("documents", {"documents": 123}),
        ("documents", {"documents": [1, 2]}),
        ("documents", {"documents": [""]}),
        ("documents", {"documents": [{"text": ""}]}),
        ("documents", {"documents": [{}]}),
        ("documents", {"documents": ["a"], "texts": ["a"]}),
        ("documents", {"documents": ["a"] * 1001}),
        ("query", {"query": "", "documents": ["a"]}),
        ("query", {"query": None, "documents": ["a"]}),
        ("top_n", {"documents": ["a"], "top_n": 0}),
        ("rank_fields", {"documents": ["a"], "rank_fields": ["title"]}),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(client: httpx.Client, field: str, body: dict[str, Any]) -> None:
    response = client.post("/v1/rerank", json={"query": QUERY, **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


def test_a_model_that_was_made_for_something_else_says_so(path: Path) -> None:
    with served(LLM(path, context=CONTEXT, threads=1)) as server:
        response = httpx.post(f"{server.url}/v1/rerank", json={"query": "a", "documents": ["b"]}, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_model"
    assert "pooling_type" in response.json()["error"]["message"]


def test_what_the_model_can_do_is_told(client: httpx.Client) -> None:
    assert "rerank" in client.get("/v1/models/tiny").json()["capabilities"]
