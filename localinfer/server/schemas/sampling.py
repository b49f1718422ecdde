"""The fields that chat and text completions share: how tokens are drawn, and how the answer is sent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MOST_CHOICES = 128
MOST_ALTERNATIVES = 20
MOST_STOPS = 64

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Budget = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # -1: no limit
AtLeastOne = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Temperature = Annotated[float, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Chance = Annotated[float, Meta(ge=0, le=1)]
Tokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # of the text so far; -1: all
Surprise = Annotated[float, Meta(ge=0, le=1000)]  # bits
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
DryBase = Annotated[float, Meta(ge=1, le=1e9)]
Sigmas = Annotated[float, Meta(ge=-1, le=1e9)]
Breakers = Annotated[list[Annotated[str, Meta(max_length=40)]], Meta(max_length=32)]
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


class LlamaSamplers(msgspec.Struct, kw_only=True):
    """Sampling parameters by the names that llama.cpp and Ollama know them by.

    dry_… (0 tokens of dry_penalty_last_n are none, -1 all), xtc_…, top_n_sigma (-1 is off, as is 0), dynatemp_… and
    mirostat_… mean what engine/sampling.py says. repeat_penalty is repetition_penalty, but with a repeat_last_n of 64
    unless that is given: how many tokens the penalties look at (-1: all, 0: the penalties are off).
    """

    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    repeat_last_n: Tokens | None = None
    dry_multiplier: NotNegative | None = None
    dry_base: DryBase | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Tokens | None = None
    dry_sequence_breakers: Breakers | None = None
    xtc_probability: Chance | None = None
    xtc_threshold: Chance | None = None
    top_n_sigma: Sigmas | None = None
    dynatemp_range: NotNegative | None = None
    dynatemp_exponent: NotNegative | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Surprise | None = None
    mirostat_eta: Surprise | None = None


class SamplingFields(LlamaSamplers, kw_only=True):
    """None stands for "not given", as in the JSON of many clients.

    Beyond OpenAI's: top_k, min_p, typical_p, repetition_penalty, min_tokens, stop_token_ids, ignore_eos,
    skip_special_tokens, use_beam_search, length_penalty and priority as in vLLM (of a lower priority number comes
    first), and loop_detection, which ends an answer that repeats itself with the finish reason "loop".

    LlamaSamplers has the parameters that llama.cpp's server has beside OpenAI's.

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
