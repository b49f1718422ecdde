"""POST /v1/embeddings: what the model has in its last layer of a text, pooled to one vector of length 1."""

from __future__ import annotations

import asyncio
import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.admission import MADE_FOR
from localinfer.engine.llm import LLM
from localinfer.engine.pooling import Pooling, own_pooling, unit_length
from localinfer.engine.request import Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Job
from localinfer.errors import UnsupportedError
from localinfer.server.errors import ApiError, invalid
from localinfer.server.fields import read_body
from localinfer.server.handling import model_in_use, recorded, while_connected
from localinfer.server.schemas.embeddings import (
    MOST_INPUTS,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
)


async def create(http: HttpRequest) -> Response:
    """The handler."""
    async with recorded(http, "/v1/embeddings") as record:
        body = await read_body(http, EmbeddingRequest)
        record.ignored_fields = body.unknown
        async with model_in_use(http, body.fields.model) as model:
            record.model = model.name
            llm = model.llm
            pooling = pooling_of(llm)
            jobs = await asyncio.to_thread(embedding_jobs, body.fields, llm, pooling)
            answers = model.thread.submit(jobs)
            async with while_connected(http, answers):
                for request in await answers.accepted():
                    record.add(request, llm.tokenizer)
                while not answers.over:
                    await answers.next()
            encoded = await asyncio.to_thread(_encoded, body.fields, answers.requests, model.name, pooling)
    return Response(encoded, media_type="application/json", headers=body.headers)


def pooling_of(llm: LLM) -> Pooling:
    """How the model makes embeddings. ApiError if it makes none."""
    if llm.purpose == "ranking":
        raise invalid(f"this model makes no embeddings: {MADE_FOR['ranking']}", code="unsupported_model")
    try:
        return own_pooling(llm.metadata)
    except UnsupportedError as error:
        raise invalid(error.message, code="unsupported_model") from error


def embedding_jobs(fields: EmbeddingRequest, llm: LLM, pooling: Pooling) -> list[Job]:
    """What the engine is asked. ApiError for inputs that cannot be embedded."""
    size = llm.metadata.get(f"{llm.metadata.get('general.architecture')}.embedding_length")
    if fields.dimensions is not None and fields.dimensions != size:
        raise invalid(
            f"this model has embeddings of {size} dimensions, not of {fields.dimensions}",
            param="dimensions",
            code="unsupported_parameter",
        )
    jobs = []
    for index, item in enumerate(_inputs(fields.input)):
        ids = llm.tokenize(item) if isinstance(item, str) else array("i", item)
        if not 0 < len(ids) <= llm.context:
            raise _wrong_length(index, len(ids), llm.context)
        jobs.append(Job(ids, SamplingParams(), priority=fields.priority or 0, pooling=pooling))
    return jobs


def _inputs(given: str | Sequence[str | int | list[int]]) -> Sequence[str | list[int]]:
    """One input per text or list of token ids. ApiError if it is a mixture, or too many."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    inputs = [item for item in given if not isinstance(item, int)]
    if len(inputs) < len(given):
        raise invalid("input: a list holds texts, or token ids, or lists of token ids", param="input")
    if len(inputs) > MOST_INPUTS:
        raise invalid(f"input: {len(inputs)} inputs are more than {MOST_INPUTS}", param="input")
    return inputs


def _wrong_length(index: int, tokens: int, context: int) -> ApiError:
    if tokens == 0:
        return invalid(f"input[{index}] is empty: there is no token to make an embedding of", param="input")
    return invalid(
        f"This model's maximum context length is {context} tokens. However, your input[{index}] resulted in {tokens} "
        "tokens. Please reduce the length of the input.",
        param="input",
        code="context_length_exceeded",
    )


def _encoded(fields: EmbeddingRequest, requests: Sequence[Request], model: str, pooling: Pooling) -> bytes:
    data = []
    for index, request in enumerate(requests):
        assert request.embedding is not None
        vector = unit_length(request.embedding)
        data.append(
            Embedding(index=index, embedding=_base64(vector) if fields.encoding_format == "base64" else [*vector])
        )
    tokens = sum(len(request.prompt) for request in requests)
    usage = EmbeddingUsage(tokens, tokens)
    return msgspec.json.encode(EmbeddingResponse(data=data, model=model, usage=usage, pooling=pooling))


def _base64(vector: array[float]) -> str:
    """The numbers as little-endian 32-bit floats."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()
