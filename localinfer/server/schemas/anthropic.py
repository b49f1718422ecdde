"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients write and read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from localinfer.server.schemas.sampling import AtLeastOne, Count, Fraction, JsonObject


class Block(msgspec.Struct, kw_only=True):
    """A piece of a message: text, a thought, a call of a tool or its result. Others cannot be read."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    tool_use_id: str | None = None
    content: str | list[JsonObject] | None = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CustomTool(msgspec.Struct, kw_only=True):
    """A function that the model may call; `input_schema` is the JSON schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=256, pattern="^[a-zA-Z0-9_.-]+$")]
    description: str | None = None
    input_schema: JsonObject | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Which tools may, or have to be, called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Reaches the chat template as `enable_thinking`. After `budget_tokens` of thought the model has to answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(msgspec.Struct, kw_only=True):
    """What an answer has to look like. `effort` reaches the chat template; a header says if that does not read it."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of. `output_format` is the older name of `output_config.format`."""

    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: Annotated[list[CustomTool], Meta(max_length=512)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """What is not given of the sampling is as the model's file recommends."""

    max_tokens: AtLeastOne
    stop_sequences: Annotated[list[str], Meta(max_length=64)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Fraction | None = None
    top_k: Count | None = None


class TokenCount(msgspec.Struct):
    """The tokens of the prompt."""

    input_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    """`input_tokens` had to be computed, `cache_read_input_tokens` did not."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thinks; it is not signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class AnthropicErrorDetail(msgspec.Struct):
    """The kind of error, and what is wrong in words."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """The body of every answer of these endpoints that is an error."""

    error: AnthropicErrorDetail
    type: Literal["error"] = "error"
