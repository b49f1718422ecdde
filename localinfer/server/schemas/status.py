"""GET /, /health, /props and /slots"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from localinfer.server.schemas.errors import ErrorDetail


class Welcome(msgspec.Struct, kw_only=True):
    """What this server is, for whoever looks."""

    name: Literal["localinfer"] = "localinfer"
    version: str
    documentation: str = "/openapi.json"
    endpoints: list[str]


class ModelHealth(msgspec.Struct, kw_only=True):
    """One model. `notes` are what a person should know about how it runs: a fallback, for example."""

    id: str
    state: Literal["loaded", "loading", "unloaded", "failed"]
    backend: str | None = None
    notes: list[str] = []


class Health(msgspec.Struct, kw_only=True):
    """`status` is "ok" with 200. With 503 it is "loading", or "failed" if that will not pass; `error` then says so."""

    status: Literal["ok", "loading", "failed"]
    version: str
    models: list[ModelHealth]
    error: ErrorDetail | UnsetType = UNSET


class GenerationParams(msgspec.Struct, kw_only=True):
    """Sampling parameters under llama.cpp's names: -1 tokens are no limit, a window of -1 all, top_n_sigma -1 off."""

    n_predict: int
    max_tokens: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    top_n_sigma: float
    dynatemp_range: float
    dynatemp_exponent: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    stop: list[str]
    ignore_eos: bool
    n_probs: int
    samplers: list[str]


class NextToken(msgspec.Struct, kw_only=True):
    """How far an answer is; of `n_remain`, -1 is no limit but the context."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(msgspec.Struct, kw_only=True):
    """A place for an answer that is computed. What is not known of an idle one is left out.

    Slots are only counted here: keys and values live in blocks that all requests share, and an answer has no fixed
    place.
    """

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: int | UnsetType = UNSET
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    n_prompt_tokens_cache: int | UnsetType = UNSET
    params: GenerationParams | UnsetType = UNSET
    next_token: list[NextToken] | UnsetType = UNSET


class DefaultSettings(msgspec.Struct, kw_only=True):
    """What a chat does if the request says nothing."""

    n_ctx: int
    params: GenerationParams


class Modalities(msgspec.Struct):
    """What a model reads besides text."""

    vision: bool = False
    audio: bool = False


class Props(msgspec.Struct, kw_only=True):
    """A model and its settings, in llama.cpp's shape."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str
    is_sleeping: bool = False
    capabilities: list[str]
