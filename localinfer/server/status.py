"""GET /, /health, /metrics, /props and /slots: for those who watch, and for clients that adapt to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer import __version__
from localinfer.engine.request import Choice, Request
from localinfer.engine.sampling import SamplingParams
from localinfer.server.capabilities import capabilities
from localinfer.server.errors import ApiError
from localinfer.server.metrics import CONTENT_TYPE, Metrics
from localinfer.server.models import as_json, find
from localinfer.server.page import INDEX, Page, wants_page
from localinfer.server.registry import ModelInfo, ModelRegistry, ServedModel
from localinfer.server.schemas.errors import ErrorDetail
from localinfer.server.schemas.status import (
    DefaultSettings,
    GenerationParams,
    Health,
    Modalities,
    ModelHealth,
    NextToken,
    Props,
    Slot,
    Welcome,
)

RANDOM_SEED = 2**32 - 1  # llama.cpp's way to write that no seed was given
# How tokens are drawn, in order (engine/sampling.py), in llama.cpp's words.
SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "temperature", "typ_p", "top_p", "min_p", "xtc"]


async def welcome(http: HttpRequest) -> Response:
    """The handler of GET and HEAD /: the web page for browsers. Some clients ask to see whether somebody is there."""
    if wants_page(http.headers.get("accept", "")):
        page: Page = http.app.state.page
        return page.answer(http, INDEX)
    paths = [route.path_format for route in http.app.routes]
    response = as_json(Welcome(version=__version__, endpoints=paths))
    response.headers["vary"] = "accept"
    return response


async def health(http: HttpRequest) -> Response:
    """The handler of /health: 503 until the first model is loaded, and when its engine has failed.

    It needs no key, so it tells no paths and no error messages.
    """
    registry: ModelRegistry = http.app.state.registry
    loaded = {model.name: model for model in registry.loaded()}
    models = [_health(info, loaded.get(info.name)) for info in registry.models()]
    first = models[0].state
    if first == "failed":
        detail = ErrorDetail("the model has failed: the log of the server says more", "server_error", None, "failed")
        return as_json(Health(status="failed", version=__version__, models=models, error=detail), 503)
    if not registry.ready:
        detail = ErrorDetail("the model is being loaded", "server_error", None, "loading")
        return as_json(Health(status="loading", version=__version__, models=models, error=detail), 503)
    return as_json(Health(status="ok", version=__version__, models=models))


async def metrics(http: HttpRequest) -> Response:
    """The handler of /metrics."""
    counted: Metrics = http.app.state.metrics
    return Response(counted.render(), headers={"content-type": CONTENT_TYPE})


async def props(http: HttpRequest) -> Response:
    """The handler of /props; `?model=` asks for another than the default model, which is loaded for it."""
    registry: ModelRegistry = http.app.state.registry
    async with registry.use(http.query_params.get("model")) as model:
        llm = model.llm
        template = llm.chat_template
        answer = Props(
            default_generation_settings=DefaultSettings(n_ctx=llm.context, params=generation_params(llm.chat_defaults)),
            total_slots=llm.engine.config.max_sequences,
            model_alias=model.name,
            model_path=str(llm.path),
            chat_template=template.source if template else "",
            bos_token=_special(model, llm.tokenizer.bos_id),
            eos_token=_special(model, llm.tokenizer.eos_id),
            modalities=Modalities(),
            build_info=f"localinfer {__version__}",
            capabilities=await asyncio.to_thread(capabilities, llm),
        )
    return as_json(answer)


async def slots(http: HttpRequest) -> Response:
    """The handler of /slots: none if the model is not loaded. `?fail_on_no_slot=1`: 503 if none is idle."""
    registry: ModelRegistry = http.app.state.registry
    info = find(registry, http.query_params.get("model"))
    model = next((model for model in registry.loaded() if model.name == info.name), None)
    found = list(_slots(model)) if model else []
    if http.query_params.get("fail_on_no_slot") and all(slot.is_processing for slot in found):
        raise ApiError(503, "no slot is idle", type="server_error", code="no_idle_slot")
    return as_json(found)


def _health(info: ModelInfo, model: ServedModel | None) -> ModelHealth:
    if model is None:
        return ModelHealth(id=info.name, state="failed" if info.problem else info.state)
    return ModelHealth(
        id=info.name,
        state="loaded" if model.thread.healthy else "failed",
        backend=model.llm.backend,
        notes=list(model.llm.notes),
    )


def _slots(model: ServedModel) -> Iterator[Slot]:
    """One per sequence that can be computed at the same time; the answers that are computed come first."""
    engine = model.llm.engine
    config, speculative = engine.config, engine.speculation != "off"
    running = [
        (request, choice)
        for request in model.thread.requests
        for choice in request.choices
        if choice.finish_reason is None and choice.sequence.blocks
    ]
    for id in range(config.max_sequences):
        slot = Slot(id=id, n_ctx=config.context, speculative=speculative, is_processing=id < len(running))
        if slot.is_processing:
            _tell_progress(slot, *running[id])
        yield slot


def _tell_progress(slot: Slot, request: Request, choice: Choice) -> None:
    """What is known of an answer that is computed. The engine goes on meanwhile: numbers may be a step apart."""
    limit, decoded = request.params.max_tokens, choice.generated_count
    slot.id_task = request.id
    slot.n_prompt_tokens = len(request.prompt)
    slot.n_prompt_tokens_cache = request.cached or 0
    slot.n_prompt_tokens_processed = max(0, min(choice.sequence.computed, len(request.prompt)) - (request.cached or 0))
    slot.params = generation_params(request.params, request.seed)
    remaining = -1 if limit is None else limit - decoded
    slot.next_token = [NextToken(has_next_token=True, n_remain=remaining, n_decoded=decoded)]


def generation_params(params: SamplingParams, seed: int = RANDOM_SEED) -> GenerationParams:
    """In llama.cpp's words."""
    limit = -1 if params.max_tokens is None else params.max_tokens
    return GenerationParams(
        n_predict=limit,
        max_tokens=limit,
        seed=seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        typical_p=params.typical_p,
        repeat_last_n=params.penalty_window or -1,
        repeat_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        dry_multiplier=params.dry_multiplier,
        dry_base=params.dry_base,
        dry_allowed_length=params.dry_allowed_length,
        dry_penalty_last_n=params.dry_penalty_last_n,
        dry_sequence_breakers=list(params.dry_sequence_breakers),
        top_n_sigma=params.top_n_sigma or -1.0,
        dynatemp_range=params.dynatemp_range,
        dynatemp_exponent=params.dynatemp_exponent,
        xtc_probability=params.xtc_probability,
        xtc_threshold=params.xtc_threshold,
        mirostat=params.mirostat,
        mirostat_tau=params.mirostat_tau,
        mirostat_eta=params.mirostat_eta,
        stop=list(params.stop),
        ignore_eos=params.ignore_eos,
        n_probs=params.top_logprobs,
        samplers=SAMPLERS,
    )


def _special(model: ServedModel, token: int | None) -> str:
    return "" if token is None else model.llm.tokenizer.token_bytes(token).decode("utf-8", "replace")
