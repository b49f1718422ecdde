"""Every endpoint in a table. /openapi.json is made from it, and a test compares it with the README."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server import (
    anthropic,
    chat,
    completion,
    completions,
    embeddings,
    infill,
    models,
    ollama,
    ollama_models,
    openapi,
    rerank,
    responses,
    status,
    tokens,
)
from localinfer.server.schemas.anthropic import (
    AnthropicError,
    AnthropicMessage,
    CountTokensRequest,
    MessagesRequest,
    TokenCount,
)
from localinfer.server.schemas.chat import ChatCompletion, ChatCompletionRequest
from localinfer.server.schemas.completion import InfillRequest, LlamaCompletion, LlamaCompletionRequest
from localinfer.server.schemas.completions import CompletionRequest, TextCompletion
from localinfer.server.schemas.embeddings import EmbeddingRequest, EmbeddingResponse
from localinfer.server.schemas.errors import ErrorBody
from localinfer.server.schemas.models import ModelCard, ModelList
from localinfer.server.schemas.ollama import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedding,
    OllamaEmbedRequest,
    OllamaError,
    OllamaGenerateRequest,
    OllamaModel,
    OllamaModels,
    OllamaShowRequest,
    OllamaVersion,
)
from localinfer.server.schemas.rerank import RankedText, RerankRequest, RerankResponse
from localinfer.server.schemas.responses import ResponseObject, ResponsesRequest
from localinfer.server.schemas.status import Health, Props, Slot, Welcome
from localinfer.server.schemas.tokens import (
    ApplyTemplateRequest,
    ApplyTemplateResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """One row. `request` and `response` are msgspec structs, or None for a body that is none or no JSON.

    `query` are the names of parameters behind the path, each with what it is for.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request: Any = None
    response: Any = None
    streamed_type: str = "text/event-stream"  # of a streamed answer
    streams: bool = False  # whether `"stream": true` makes it answer with server-sent events
    query: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"  # of the answer
    error: Any = ErrorBody  # the body of an answer that is an error
    aliases: tuple[str, ...] = ()  # other paths that lead to it

    @property
    def name(self) -> str:
        """The path as people and OpenAPI write it: {model}, not {model:path}."""
        return self.path.replace(":path}", "}")

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that lead to it."""
        return self.path, *self.aliases

    @property
    def asks(self) -> bool:
        """Whether it asks something of a model, which has a line in the log."""
        return self.request is not None


_MODEL = ("model", "Another than the default model")

ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat.create,
        "Answer a conversation",
        ChatCompletionRequest,
        ChatCompletion,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/completions",
        completions.create,
        "Continue texts",
        CompletionRequest,
        TextCompletion,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/completion",
        completion.create,
        "Continue texts, in llama.cpp's protocol",
        LlamaCompletionRequest,
        LlamaCompletion | list[LlamaCompletion],
        streams=True,
        aliases=("/completions",),
    ),
    Endpoint(
        "POST",
        "/infill",
        infill.create,
        "Fill the gap between two texts in, in llama.cpp's protocol",
        InfillRequest,
        LlamaCompletion | list[LlamaCompletion],
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/embeddings",
        embeddings.create,
        "Make vectors of texts",
        EmbeddingRequest,
        EmbeddingResponse,
    ),
    Endpoint(
        "POST",
        "/v1/rerank",
        rerank.create,
        "Order documents by how much they have to do with a query",
        RerankRequest,
        RerankResponse | list[RankedText],
        aliases=("/rerank", "/v1/reranking", "/reranking"),
    ),
    Endpoint(
        "POST",
        "/v1/responses",
        responses.create,
        "Answer a conversation, in OpenAI's newer protocol",
        ResponsesRequest,
        ResponseObject,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/messages",
        anthropic.create,
        "Answer a conversation, in Anthropic's protocol",
        MessagesRequest,
        AnthropicMessage,
        streams=True,
        error=AnthropicError,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        anthropic.count_tokens,
        "Count the tokens of a conversation",
        CountTokensRequest,
        TokenCount,
        error=AnthropicError,
    ),
    Endpoint("GET", "/v1/models", models.list_all, "List what is served", response=ModelList),
    Endpoint("GET", "/v1/models/{model:path}", models.one, "Describe a model", response=ModelCard),
    Endpoint("POST", "/tokenize", tokens.tokenize, "Turn text into tokens", TokenizeRequest, TokenizeResponse),
    Endpoint("POST", "/detokenize", tokens.detokenize, "Turn tokens into text", DetokenizeRequest, DetokenizeResponse),
    Endpoint(
        "POST",
        "/apply-template",
        tokens.apply_template,
        "Write messages as a prompt",
        ApplyTemplateRequest,
        ApplyTemplateResponse,
    ),
    Endpoint(
        "POST",
        "/api/chat",
        ollama.chat,
        "Answer a conversation, in Ollama's protocol",
        OllamaChatRequest,
        OllamaAnswer,
        streams=True,
        streamed_type=ollama.LINES,
        error=OllamaError,
    ),
    Endpoint(
        "POST",
        "/api/generate",
        ollama.complete,
        "Answer a prompt, in Ollama's protocol",
        OllamaGenerateRequest,
        OllamaAnswer,
        streams=True,
        streamed_type=ollama.LINES,
        error=OllamaError,
    ),
    Endpoint(
        "POST",
        "/api/embed",
        ollama_models.embed,
        "Make vectors of texts, in Ollama's protocol",
        OllamaEmbedRequest,
        OllamaEmbedding,
        error=OllamaError,
    ),
    Endpoint(
        "POST",
        "/api/show",
        ollama_models.show,
        "Describe a model, in Ollama's protocol",
        OllamaShowRequest,
        OllamaModel,
        error=OllamaError,
    ),
    Endpoint("GET", "/api/tags", ollama_models.tags, "List what is served", response=OllamaModels, error=OllamaError),
    Endpoint("GET", "/api/ps", ollama_models.running, "List what is loaded", response=OllamaModels, error=OllamaError),
    Endpoint(
        "GET",
        "/api/version",
        ollama_models.version,
        "Say which version of Ollama's API this is",
        response=OllamaVersion,
        error=OllamaError,
    ),
    Endpoint("GET", "/", status.welcome, "Say what this is", response=Welcome),
    Endpoint("GET", "/health", status.health, "Say whether requests can be answered", response=Health),
    Endpoint("GET", "/metrics", status.metrics, "Count, for Prometheus", media_type="text/plain"),
    Endpoint("GET", "/props", status.props, "Tell how a model is served", response=Props, query=(_MODEL,)),
    Endpoint(
        "GET",
        "/slots",
        status.slots,
        "Tell what is being computed",
        response=list[Slot],
        query=(_MODEL, ("fail_on_no_slot", "1: answer 503 if no slot is idle")),
    ),
    Endpoint("GET", "/openapi.json", openapi.openapi, "Describe this server for programs"),
)
