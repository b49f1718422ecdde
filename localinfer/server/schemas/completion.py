"""POST /completion and /infill: llama.cpp's own protocol."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from localinfer.server.schemas.sampling import Alternatives, Choices, Count, SamplingFields
from localinfer.server.schemas.status import GenerationParams

MOST_EXTRA_FILES = 1024

Samplers = Annotated[list[str], Meta(max_length=64)]
TokenBiases = dict[str, float | bool] | list[tuple[int | str, float | bool]]
AnswerFields = Annotated[list[str], Meta(max_length=64)]


class PromptObject(msgspec.Struct, kw_only=True):
    """A prompt to a model that might see or hear; those that are served here read text, so there can be no data."""

    prompt_string: str
    multimodal_data: Annotated[list[str], Meta(max_length=0)] | None = None


class LlamaFields(SamplingFields, kw_only=True):
    """What llama.cpp's endpoints ask beside the sampling parameters of all others, whose names it shares.

    `n_predict` -1 and -2 are no limit; 0 only computes the prompt. `n_probs` adds the log probabilities of the tokens
    and of so many alternatives at each place, those of the model before any sampler. `samplers` switches off those that
    it does not name; their order is fixed, which a header says where another was asked for ("infill" has no effect).
    `logit_bias` is a list of pairs or an object; instead of its id a token can be given by its text, and false instead
    of a number bans it. `seed` -1 is a random one.

    An answer ends before a line that is indented by fewer than `n_indent` characters, and with the first line that ends
    after `t_max_predict_ms`. `response_fields` are the fields that the answer shall have ("timings/prompt_n" is one of
    an object). `id_slot` changes nothing: all slots share one cache.
    """

    n_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    n_probs: Alternatives | None = None
    n_cmpl: Choices | None = None
    n_indent: Count | None = None
    t_max_predict_ms: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    response_fields: AnswerFields | None = None
    samplers: Samplers | None = None
    id_slot: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    logit_bias: TokenBiases | None = None  # type: ignore[assignment]


class LlamaCompletionRequest(LlamaFields, kw_only=True):
    """Continues texts, as llama.cpp's server does.

    `prompt` is a text, a list of token ids, a list of both, which is one prompt, or a list of prompts, whose answer is
    a list. Special tokens are found in its texts, and BOS is put in front where it begins with a text. What is not
    given of the sampling is as /props tells.
    """

    prompt: str | PromptObject | list[str | Count | PromptObject | list[str | Count]]


class ExtraFile(msgspec.Struct, kw_only=True):
    """Another file of the project, or a piece of one."""

    text: str
    filename: str = "tmp"


class InfillRequest(LlamaFields, kw_only=True):
    """Fills the gap between two texts in, with models that have tokens for that.

    `prompt` is what stands in the gap already; it is put behind `input_prefix`. What is too long is cut: of the prefix
    its beginning, of the suffix its end, and of `input_extra`, which gets what the two leave, the first ones.
    """

    input_prefix: str
    input_suffix: str
    prompt: str | None = None
    input_extra: Annotated[list[ExtraFile], Meta(max_length=MOST_EXTRA_FILES)] | None = None


class TokenAlternative(msgspec.Struct, kw_only=True):
    """A token that could have been drawn. `bytes` are its UTF-8, of which `token` may show U+FFFD."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbability(TokenAlternative, kw_only=True):
    """A token that was drawn."""

    top_logprobs: list[TokenAlternative]


class Timings(msgspec.Struct, kw_only=True):
    """`prompt_n` tokens had to be computed, `cache_n` did not. A rate of something that took no time is 0."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class LlamaCompletion(msgspec.Struct, kw_only=True):
    """An answer, or its last event, with all of these; events before have those that are known, and `stop` false.

    With `response_fields` it has only what was asked for. `tokens` are without the one that ended the answer.
    `stop_type` is "eos", "word" (`stopping_word`) or "limit"; `truncated` tells that the limit was the context.
    """

    index: int | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    id_slot: int | UnsetType = UNSET
    stop: bool | UnsetType = UNSET
    model: str | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    generation_settings: GenerationParams | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[TokenProbability] | UnsetType = UNSET
