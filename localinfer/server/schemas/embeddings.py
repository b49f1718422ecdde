"""POST /v1/embeddings"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from localinfer.engine.pooling import Pooling
from localinfer.server.schemas.sampling import Count, Priority

MOST_INPUTS = 2048  # OpenAI's


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """`input` is a text, token ids, or a list of either.

    An embedding is made of the hidden states that the model has of the input after its last layer and norm: pooled as
    the model file says, or else their mean, and of length 1. Models that were not trained for it give usable, not good
    embeddings. `dimensions` may only name the size that the model has.
    """

    model: str | None = None
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[str | Count | list[Count]], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    priority: Priority | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """As numbers, or as base64 of little-endian 32-bit floats."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    """Counts of tokens, of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    """One embedding per input, in order. `pooling` says what was made of the hidden states of an input's tokens."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    pooling: Pooling
