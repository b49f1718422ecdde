"""POST /v1/rerank: documents ordered by how much they have to do with a query."""

from __future__ import annotations

import asyncio
import math
import secrets
from array import array
from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.llm import LLM
from localinfer.engine.pooling import POOLING_TYPES, Pooling, unit_length
from localinfer.engine.request import Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Job
from localinfer.server.errors import invalid
from localinfer.server.fields import read_body
from localinfer.server.handling import model_in_use, recorded, while_connected
from localinfer.server.schemas.embeddings import EmbeddingUsage
from localinfer.server.schemas.rerank import (
    RankedDocument,
    RankedText,
    RerankDocument,
    RerankRequest,
    RerankResponse,
)

_NO_POOLING = 0  # of a model's file: it makes no embeddings


async def create(http: HttpRequest) -> Response:
    """The handler."""
    async with recorded(http, "/v1/rerank") as record:
        body = await read_body(http, RerankRequest)
        record.ignored_fields = body.unknown
        async with model_in_use(http, body.fields.model) as model:
            record.model = model.name
            documents = _documents(body.fields)
            jobs = await asyncio.to_thread(_jobs, body.fields, documents, model.llm)
            answers = model.thread.submit(jobs)
            async with while_connected(http, answers):
                for request in await answers.accepted():
                    record.add(request, model.llm.tokenizer)
                while not answers.over:
                    await answers.next()
            of_pairs = model.llm.purpose == "ranking"
            encoded = await asyncio.to_thread(_encoded, body.fields, documents, answers.requests, model.name, of_pairs)
    return Response(encoded, media_type="application/json", headers=body.headers)


def ranks(llm: LLM) -> bool:
    """Whether the model was made for something that documents can be ordered by."""
    return llm.purpose == "ranking" or _pooling(llm) is not None


def _pooling(llm: LLM) -> Pooling | None:
    """How the model makes embeddings, if it was made for that: it is an encoder, or its file says so."""
    if llm.purpose == "embedding":
        return llm.pooling
    kind = llm.metadata.get(f"{llm.metadata.get('general.architecture')}.pooling_type", _NO_POOLING)
    return POOLING_TYPES.get(kind) if isinstance(kind, int) and kind != _NO_POOLING else None


def _documents(fields: RerankRequest) -> list[str]:
    if (fields.documents is None) == (fields.texts is None):
        raise invalid("documents: give them, or texts, and not both", param="documents")
    given = fields.texts if fields.documents is None else fields.documents
    texts = [item if isinstance(item, str) else item.text for item in given or ()]
    for place, text in enumerate(texts):
        if not text:
            raise invalid(f"documents[{place}] is empty: there is nothing to compare", param="documents")
    return texts


def _jobs(fields: RerankRequest, documents: Sequence[str], llm: LLM) -> list[Job]:
    """An embedding of the query, and one of each document. ApiError for what cannot be compared."""
    if llm.purpose == "ranking":
        return _pairs(fields, documents, llm)
    pooling = _pooling(llm)
    if pooling is None:
        raise invalid(
            f"this model orders no documents: its file does not say that it makes embeddings "
            f"({llm.metadata.get('general.architecture')}.pooling_type); models for embeddings can",
            code="unsupported_model",
        )
    texts = [("query", llm.tokenize(fields.query))]
    for place, document in enumerate(documents):
        ids = llm.tokenize(document)
        texts.append((f"documents[{place}]", ids[: fields.max_tokens_per_doc]))
    jobs = []
    for name, ids in texts:
        if not 0 < len(ids) <= llm.context:
            raise invalid(
                f"This model's maximum context length is {llm.context} tokens. However, your {name} resulted in "
                f"{len(ids)} tokens. Please reduce its length, or set max_tokens_per_doc.",
                param=name.partition("[")[0],
                code="context_length_exceeded",
            )
        jobs.append(Job(ids, SamplingParams(), priority=fields.priority or 0, pooling=pooling))
    return jobs


def _pairs(fields: RerankRequest, documents: Sequence[str], llm: LLM) -> list[Job]:
    """The query with each document, for a model that gives such a pair a score."""
    jobs = []
    for place, document in enumerate(documents):
        pair, second = llm.tokenizer.encode_pair(fields.query, document, fields.max_tokens_per_doc)
        if len(pair) > llm.context:
            raise invalid(
                f"This model's maximum context length is {llm.context} tokens. However, your query and "
                f"documents[{place}] resulted in {len(pair)} tokens. Please reduce their length, or set "
                "max_tokens_per_doc.",
                param="documents",
                code="context_length_exceeded",
            )
        jobs.append(Job(pair, SamplingParams(), priority=fields.priority or 0, pooling="cls", second=second))
    return jobs


def _scores(fields: RerankRequest, requests: Sequence[Request], of_pairs: bool) -> list[float]:
    if not of_pairs:
        query, *others = (_vector(request) for request in requests)
        return [sum(x * y for x, y in zip(query, vector, strict=True)) for vector in others]
    numbers = [request.embedding[0] for request in requests if request.embedding is not None]
    return numbers if fields.raw_scores else [1 / (1 + math.exp(-max(number, -700.0))) for number in numbers]


def _encoded(
    fields: RerankRequest, documents: Sequence[str], requests: Sequence[Request], model: str, of_pairs: bool
) -> bytes:
    scores = _scores(fields, requests, of_pairs)
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: fields.top_n]
    if fields.documents is None:
        shown = [
            RankedText(index=i, score=scores[i], text=documents[i] if fields.return_text else msgspec.UNSET)
            for i in order
        ]
        return msgspec.json.encode(shown)
    results = [RankedDocument(index=index, relevance_score=scores[index]) for index in order]
    if fields.return_documents:
        for result in results:
            result.document = RerankDocument(text=documents[result.index])
    tokens = sum(len(request.prompt) for request in requests)
    answer = RerankResponse(
        id=f"rerank-{secrets.token_hex(12)}",
        model=model,
        results=results,
        usage=EmbeddingUsage(tokens, tokens),
        scoring="head" if of_pairs else "cosine",
    )
    return msgspec.json.encode(answer)


def _vector(request: Request) -> array[float]:
    assert request.embedding is not None
    return unit_length(request.embedding)
