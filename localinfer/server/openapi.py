"""GET /openapi.json: the OpenAPI 3.1 description of this server, made from the table of endpoints and the schemas."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from localinfer import __version__

if TYPE_CHECKING:
    from localinfer.server.routes import Endpoint

_REFERENCE = "#/components/schemas/{name}"


async def openapi(http: Request) -> Response:
    """The handler of /openapi.json."""
    return Response(http.app.state.openapi, media_type="application/json")


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The description as a JSON object."""
    bodies = [(endpoint.request, endpoint.response, endpoint.error) for endpoint in endpoints]
    types = [kind for kinds in bodies for kind in kinds if kind is not None]
    described, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schemas = dict(zip(types, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.name, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "localinfer",
            "version": __version__,
            "description": "Language models on your own machine, over HTTP. Fields that are not described are ignored "
            "and named in the header x-localinfer-unknown-fields; those that are known and not supported get a 400.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # The empty one: a server without keys asks for none.
        "security": [{}, {"bearer": []}, {"apiKey": []}],
    }


def _operation(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    undescribed = {"type": "object" if endpoint.media_type == "application/json" else "string"}
    content: dict[str, Any] = {endpoint.media_type: {"schema": schemas.get(endpoint.response, undescribed)}}
    about = "The answer"
    if endpoint.streams:
        content[endpoint.streamed_type] = {}
        about += "; with `stream`, piece by piece"
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.handler.__module__.rpartition('.')[2]}_{endpoint.handler.__name__}",
        "summary": endpoint.summary,
        "parameters": [*_in_path(endpoint), *_in_query(endpoint)],
        "responses": {
            "200": {"description": about, "content": content},
            "default": {
                "description": "What went wrong",
                "content": {"application/json": {"schema": schemas[endpoint.error]}},
            },
        },
    }
    if endpoint.request is not None:
        operation["description"] = inspect.getdoc(endpoint.request)
        if endpoint.aliases:
            operation["description"] += f"\n\nAlso at {', '.join(endpoint.aliases)}."
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[endpoint.request]}},
        }
    return operation


def _in_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.name)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _in_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
        for name, about in endpoint.query
    ]
