"""GET /api/version, /api/tags and /api/ps, POST /api/show and /api/embed: what Ollama's clients ask beside chats."""

from __future__ import annotations

import asyncio
import hashlib
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.llm import LLM
from localinfer.engine.pooling import unit_length
from localinfer.server.capabilities import ollama_capabilities
from localinfer.server.embeddings import embedding_jobs, pooling_of
from localinfer.server.errors import invalid
from localinfer.server.fields import read_body
from localinfer.server.handling import model_in_use, recorded, while_connected
from localinfer.server.models import as_json, find
from localinfer.server.ollama import served_name
from localinfer.server.registry import ModelInfo, ModelRegistry
from localinfer.server.schemas.embeddings import EmbeddingRequest
from localinfer.server.schemas.ollama import (
    OllamaEmbedding,
    OllamaEmbedRequest,
    OllamaModel,
    OllamaModels,
    OllamaShowRequest,
    OllamaVersion,
)

# Clients compare it with the version that brought what they need: thinking, tools while streaming.
SPOKEN = "0.12.0"
_LONGEST_LIST = 16  # metadata lists longer than that are left out, as Ollama does


async def version(http: HttpRequest) -> Response:
    """The handler of /api/version."""
    return as_json(OllamaVersion(SPOKEN))


async def tags(http: HttpRequest) -> Response:
    """The handler of /api/tags."""
    registry: ModelRegistry = http.app.state.registry
    return as_json(OllamaModels([_listed(info, registry) for info in registry.models()]))


async def running(http: HttpRequest) -> Response:
    """The handler of /api/ps."""
    registry: ModelRegistry = http.app.state.registry
    loaded = [info for info in registry.models() if info.state == "loaded"]
    forever = "0001-01-01T00:00:00Z"  # how Ollama writes that a model is not going to be unloaded
    models = [{**_listed(info, registry), "expires_at": forever, "size_vram": 0} for info in loaded]
    return as_json(OllamaModels(models))


async def show(http: HttpRequest) -> Response:
    """The handler of /api/show."""
    async with recorded(http, "/api/show") as record:
        body = await read_body(http, OllamaShowRequest)
        record.ignored_fields = body.unknown
        name = served_name(body.fields.model or body.fields.name)
        if name is None:
            raise invalid("model: it is missing", param="model")
        async with model_in_use(http, name) as model:
            record.model = model.name
            info = find(http.app.state.registry, name)
            answer = await asyncio.to_thread(_described, info, model.llm)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=body.headers)


async def embed(http: HttpRequest) -> Response:
    """The handler of /api/embed."""
    async with recorded(http, "/api/embed") as record:
        started = time.perf_counter()
        body = await read_body(http, OllamaEmbedRequest)
        record.ignored_fields = body.unknown
        async with model_in_use(http, served_name(body.fields.model)) as model:
            record.model = model.name
            texts = body.fields.input
            fields = EmbeddingRequest(
                input=texts if isinstance(texts, str) else [*texts], dimensions=body.fields.dimensions
            )
            pooling = pooling_of(model.llm)
            jobs = await asyncio.to_thread(embedding_jobs, fields, model.llm, pooling)
            answers = model.thread.submit(jobs)
            async with while_connected(http, answers):
                for request in await answers.accepted():
                    record.add(request, model.llm.tokenizer)
                while not answers.over:
                    await answers.next()
            vectors = [request.embedding for request in answers.requests if request.embedding is not None]
            answer = OllamaEmbedding(
                model=body.fields.model or model.name,
                embeddings=[[*unit_length(vector)] for vector in vectors],
                total_duration=int(1e9 * (time.perf_counter() - started)),
                load_duration=0,
                prompt_eval_count=sum(len(request.prompt) for request in answers.requests),
            )
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=body.headers)


def _listed(info: ModelInfo, registry: ModelRegistry) -> dict[str, Any]:
    loaded = next((model.llm for model in registry.loaded() if model.name == info.name), None)
    return {
        "name": info.name,
        "model": info.name,
        "modified_at": _time(info.created),
        "size": _size(info),
        # Ollama's is a hash of the contents, which would take seconds here; clients only compare it with itself.
        "digest": hashlib.sha256(f"{info.path}\0{info.created}".encode()).hexdigest(),
        "details": _details(loaded.metadata if loaded is not None else {}),
    }


def _size(info: ModelInfo) -> int:
    files = [info.path] if info.path.is_file() else info.path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files if file.exists())


def _details(metadata: Any) -> dict[str, Any]:
    family = str(metadata.get("general.architecture", ""))
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": str(metadata.get("general.size_label", "")),
        "quantization_level": "",
    }


def _described(info: ModelInfo, llm: LLM) -> OllamaModel:
    return OllamaModel(
        modified_at=_time(info.created),
        license=str(llm.metadata.get("general.license", "")),
        modelfile=f"# served by localinfer\nFROM {info.name}\n",
        parameters=f"num_ctx {llm.context}",
        template=llm.chat_template.source if llm.chat_template is not None else "",
        details=_details(llm.metadata),
        model_info={key: _short(value) for key, value in llm.metadata.items() if not key.startswith("tokenizer.chat")},
        capabilities=ollama_capabilities(llm),
    )


def _short(value: Any) -> Any:
    """A value as JSON has it; null for what is long, which clients do not look at."""
    if isinstance(value, bool | int | float | str):
        return value
    return [*value] if len(value) <= _LONGEST_LIST and all(isinstance(v, int | float) for v in value) else None


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
