"""POST /v1/rerank, in the words of Jina, Cohere and Hugging Face's text-embeddings-inference (TEI)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from localinfer.server.schemas.embeddings import EmbeddingUsage
from localinfer.server.schemas.sampling import AtLeastOne, Priority

MOST_DOCUMENTS = 1000

Scoring = Literal["cosine", "head"]


class RerankDocument(msgspec.Struct, kw_only=True):
    """A document as an object; its further keys are not looked at."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """Orders documents by how much they have to do with a query, the likeliest first.

    `documents` are texts, or objects with a `text`. TEI's clients send `texts` instead, and get a list without anything
    around it. `return_documents` (TEI: `return_text`) adds the texts to the answer; documents are cut to
    `max_tokens_per_doc` tokens.

    A model for ranking has a head that gives the query and a document a number; the score is its logistic function,
    from 0 to 1, or with `raw_scores` the number itself. Of a model for embeddings, the score is the cosine of the angle
    between those of query and document, about which `raw_scores` changes nothing. The answer names its `scoring`.
    """

    model: str | None = None
    query: Annotated[str, Meta(min_length=1)]
    documents: (
        Annotated[
            list[Annotated[str, Meta(min_length=1)] | RerankDocument], Meta(min_length=1, max_length=MOST_DOCUMENTS)
        ]
        | None
    ) = None
    texts: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MOST_DOCUMENTS)] | None = (
        None
    )
    top_n: AtLeastOne | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    max_tokens_per_doc: AtLeastOne | None = None
    priority: Priority | None = None


class RankedDocument(msgspec.Struct, kw_only=True):
    """`index` is the document's place in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RankedText(msgspec.Struct, kw_only=True):
    """The same, in TEI's words."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankResponse(msgspec.Struct, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage
    scoring: Scoring
