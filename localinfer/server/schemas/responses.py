"""POST /v1/responses, without anything that is kept between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from localinfer.server.schemas.sampling import AtLeastOne, Fraction, JsonObject, Temperature


class TextFormat(msgspec.Struct, kw_only=True):
    """Any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: JsonObject | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """What the text of an answer looks like. `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """`effort` reaches the chat template; a header says if that does not read it. `summary` has no effect.

    Thoughts are given as they are.
    """

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """`input` is a text or a list of items: messages, calls of functions, their results, thoughts.

    Nothing is stored: `previous_response_id` and `conversation` are refused, the whole conversation has to be sent.
    Of the tools, functions, custom tools and namespaces of both are shown to the model; those that OpenAI's servers
    would run themselves (web_search, ...) are left out, which a header says.
    """

    input: str | Annotated[list[JsonObject], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    stream: bool | None = None
    tools: Annotated[list[JsonObject], Meta(max_length=512)] | None = None
    tool_choice: Literal["auto", "none", "required"] | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: JsonObject | None = None


class InputTokensDetails(msgspec.Struct):
    """`cached_tokens` did not have to be computed."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """Thoughts are not counted by themselves."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Counts of tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """The answer: thoughts, messages and calls, in the order in which they came."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    incomplete_details: dict[str, str] | None = None
    error: None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    tool_choice: str | JsonObject = "auto"
    tools: list[JsonObject] = []
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    previous_response_id: None = None
    store: bool = False
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
