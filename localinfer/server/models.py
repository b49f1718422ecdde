"""GET /v1/models and /v1/models/{model}"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from localinfer.engine.llm import LLM
from localinfer.server.capabilities import capabilities
from localinfer.server.errors import ApiError
from localinfer.server.registry import ModelInfo, ModelRegistry
from localinfer.server.schemas.models import ModelCard, ModelList, ModelMeta


async def list_all(http: Request) -> Response:
    """The handler of /v1/models."""
    registry: ModelRegistry = http.app.state.registry
    loaded = {model.name: model.llm for model in registry.loaded()}
    cards = [await asyncio.to_thread(_card, info, loaded.get(info.name)) for info in registry.models()]
    return as_json(ModelList(data=cards))


async def one(http: Request) -> Response:
    """The handler of /v1/models/{model}."""
    registry: ModelRegistry = http.app.state.registry
    info = find(registry, http.path_params["model"])
    llm = next((model.llm for model in registry.loaded() if model.name == info.name), None)
    return as_json(await asyncio.to_thread(_card, info, llm))


def find(registry: ModelRegistry, name: str | None) -> ModelInfo:
    """The model of that name or alias, loaded or not; None is the default model. ApiError 404 if there is none."""
    models = registry.models()
    for info in models:
        if name is None or name == info.name or name in info.aliases:
            return info
    there = ", ".join(info.name for info in models)
    raise ApiError(
        404, f"the model {name!r} is not served here; there is: {there}", code="model_not_found", param="model"
    )


def as_json(answer: msgspec.Struct | Sequence[msgspec.Struct], status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")


def _card(info: ModelInfo, llm: LLM | None) -> ModelCard:
    return ModelCard(
        id=info.name,
        created=info.created,
        aliases=list(info.aliases),
        context_length=info.context,
        max_model_len=info.context,
        meta=ModelMeta(info.context),
        state=info.state,
        problem=info.problem or None,
        capabilities=None if llm is None else capabilities(llm),
    )
