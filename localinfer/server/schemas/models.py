"""GET /v1/models and /v1/models/{model}"""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that can be asked for. It is loaded with the first request if its `state` is "unloaded".

    `context_length`, `max_model_len` (vLLM's name) and `meta.n_ctx` (llama.cpp's) are the same: the tokens that prompt
    and answer may take together. `problem` says why the model could not be loaded when that was last tried.
    `capabilities` are what it can be asked for, of completion, chat, embedding, rerank, infill, tools and thinking;
    null before it is loaded.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["localinfer"] = "localinfer"
    aliases: list[str]
    context_length: int
    max_model_len: int
    meta: ModelMeta
    state: Literal["loaded", "loading", "unloaded"]
    problem: str | None = None
    capabilities: list[str] | None = None


class ModelMeta(msgspec.Struct):
    """What llama.cpp's clients look for."""

    n_ctx: int


class ModelList(msgspec.Struct, kw_only=True):
    """The first is what a request gets that names no model."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
