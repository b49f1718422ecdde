"""The fields that chat and text completions share: how tokens are drawn, and how the answer is sent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MOST_CHOICES = 128
MOST_ALTERNATIVES = 20
MOST_STOPS = 64

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Temperature = Annotated[float, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """`include_usage` adds a last chunk with the counts of tokens. `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`schema` is always enforced, whatever `strict` says."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Any text, any JSON object (or one of `schema`), or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's: one of these. A `grammar` may be written in GBNF or for Lark."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """None stands for "not given", as in the JSON of many clients.

    Beyond OpenAI's: top_k, min_p, typical_p, repetition_penalty, min_tokens, stop_token_ids, ignore_eos,
    skip_special_tokens, use_beam_search, length_penalty and priority as in vLLM (of a lower priority number comes
    first), and loop_detection, which ends an answer that repeats itself with the finish reason "loop".

    What an answer has to look like is said by response_format, by vLLM's structured_outputs or its older guided_json,
    guided_regex, guided_choice and guided_grammar, or by llama.cpp's json_schema and grammar (GBNF). It is enforced
    token by token; what cannot be enforced of it is refused.
    """

    model: str | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    typical_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[int, Bias] | None = None
    seed: Seed | None = None
    stop: str | Annotated[list[str], Meta(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=MOST_STOPS)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    loop_detection: bool | None = None
    priority: Priority | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None


class PromptTokensDetails(msgspec.Struct):
    """`cached_tokens` of the prompt did not have to be computed."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Counts of tokens; of all prompts and all answers of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


JsonObject = dict[str, Any]
