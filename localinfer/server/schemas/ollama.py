"""Ollama's /api endpoints, as its clients write and read them. Durations are nanoseconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from localinfer.server.schemas.sampling import JsonObject, LlamaSamplers


class Options(LlamaSamplers, kw_only=True):
    """Sampling parameters by Ollama's names. Others have no effect, which a header says.

    `num_predict` -1 and -2 are no limit; `num_ctx` cannot change how a model was loaded.
    """

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=64)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-100, le=100)] | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A function that the model calls."""

    name: str
    arguments: JsonObject = {}


class OllamaCall(msgspec.Struct, kw_only=True):
    """A call of a tool."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """A turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(msgspec.Struct, kw_only=True):
    """Streams unless `stream` is false."""

    messages: list[OllamaMessage]
    model: str | None = None
    tools: Annotated[list[JsonObject], Meta(max_length=512)] | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: Options | None = None
    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None


class OllamaGenerateRequest(msgspec.Struct, kw_only=True):
    """One prompt: a conversation of one turn, or with `raw` a text to continue as it is. Streams unless told not to.

    With a `suffix`, the answer is what belongs between the two, from models that fill gaps in.
    """

    prompt: str = ""
    suffix: str | None = None
    model: str | None = None
    system: str | None = None
    raw: bool | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: Options | None = None
    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """An input that is too long is an error, whatever `truncate` says."""

    input: str | list[str]
    model: str | None = None
    dimensions: int | None = None


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """The model to be described; `name` is its older name."""

    model: str | None = None
    name: str | None = None


class OllamaAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of an answer: `message` of a chat, `response` of a generation. The last one has `done` and counts."""

    model: str
    created_at: str
    done: bool = msgspec.field(default=False)
    message: dict[str, Any] | None = None
    response: str | None = None
    thinking: str | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaEmbedding(msgspec.Struct, kw_only=True):
    """Vectors of length 1."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaModels(msgspec.Struct):
    """What is served."""

    models: list[dict[str, Any]]


class OllamaModel(msgspec.Struct, kw_only=True):
    """A model described."""

    modified_at: str
    license: str
    modelfile: str
    parameters: str
    template: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(msgspec.Struct):
    """The version of Ollama's API that is spoken."""

    version: str


class OllamaError(msgspec.Struct):
    """The body of every answer of these endpoints that is an error."""

    error: str
