"""POST /v1/chat/completions"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from localinfer.server.schemas.sampling import Alternatives, AtLeastOne, Budget, JsonObject, SamplingFields, Usage

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ContentPart(msgspec.Struct, kw_only=True):
    """A piece of a message. Only those of type "text" can be read."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """A message of the conversation; further keys reach the chat template. "developer" is read as "system".

    `tokens`, of an assistant's message, are the token ids of an answer (`return_token_ids` gives them). Where they
    spell the content, they stand for it, so that nothing of an earlier turn is computed again.
    """

    role: Role
    content: str | list[ContentPart] | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=2**31 - 1)]] | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """`parameters` is a JSON schema of an object. What of it cannot be enforced is refused if the tool is `strict` or
    has to be called, else named in a header."""

    name: Annotated[str, Meta(min_length=1, max_length=256, pattern="^[a-zA-Z0-9_.-]+$")]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(msgspec.Struct, kw_only=True):
    """The name of one of the tools."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The tool that is to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """`max_completion_tokens` goes before `max_tokens`; both are cut to what the context has room for.

    `chat_template_kwargs` and `reasoning_effort` reach the chat template, the latter only if it reads it (else it is
    refused). What is not given of the sampling is as the model's file recommends. `return_token_ids` adds the tokens of
    an answer to its message (streamed: to the last delta), `tokens`.

    `tools` are shown to the model by its chat template, and its calls come back as `tool_calls`; `tool_choice`
    "required", or a name, forces a call. The arguments of a call fit their schema. What the model thinks before it
    answers comes as `reasoning_content` and as `reasoning`; after `thinking_budget` tokens (also called
    `thinking_token_budget` or `thinking_budget_tokens`; 0: it does not think, -1: no limit) it has to answer.
    """

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    return_token_ids: bool | None = None
    tools: Annotated[list[Tool], Meta(max_length=512)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget_tokens: Budget | None = None


class TopLogprob(msgspec.Struct):
    """A token that could have been drawn. `bytes` are its UTF-8, of which `token` may show U+FFFD."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token that was drawn."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct):
    """One entry per token drawn, the one that ended the answer included."""

    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct):
    """`arguments` are the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The answer. `content` is null if it calls tools and says nothing beside."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One of the `n` answers."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """What is sent without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
