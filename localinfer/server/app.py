"""The ASGI application: the routes, and how what goes wrong becomes an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localinfer.errors import LocalInferError
from localinfer.server.errors import ApiError, error_response
from localinfer.server.handling import recorded
from localinfer.server.metrics import Metrics
from localinfer.server.openapi import document
from localinfer.server.page import PATH, Page, one
from localinfer.server.record import RequestRecord
from localinfer.server.registry import ModelRegistry
from localinfer.server.request_log import RequestLog
from localinfer.server.routes import ENDPOINTS, Endpoint, Handler
from localinfer.server.settings import ServerSettings


def create_app(registry: ModelRegistry, settings: ServerSettings) -> Starlette:
    """The application. Handlers find what they need in `request.app.state`; closing it closes registry and log.

    LocalInferError if the log file of the settings cannot be written.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await registry.close()
        log.close()

    app = Starlette(
        routes=[
            *(
                Route(path, _guarded(endpoint), methods=[endpoint.method])
                for endpoint in ENDPOINTS
                for path in endpoint.paths
            ),
            Route(PATH, one, methods=["GET"]),
        ],
        exception_handlers={
            ApiError: _on_error,
            LocalInferError: _on_error,
            HTTPException: _on_http_exception,
            Exception: _on_error,
        },
        lifespan=lifespan,
    )
    log = RequestLog.to_file(Path(settings.log_file)) if settings.log_file else RequestLog.to_standard_error()
    metrics = Metrics(registry.loaded, lambda: log.lost)
    asking = {endpoint.path for endpoint in ENDPOINTS if endpoint.asks}

    def report(record: RequestRecord) -> None:
        metrics.request(record)
        if settings.verbose or record.endpoint in asking:
            log.request(record)

    def report_refusal(record: RequestRecord) -> None:
        metrics.request(record)
        log.request(record)  # whatever it asked for: who runs a server wants to know who knocks

    app.state.registry = registry
    app.state.settings = settings
    app.state.report = report
    app.state.report_refusal = report_refusal
    app.state.log = log
    app.state.metrics = metrics
    app.state.page = Page()
    app.state.openapi = msgspec.json.encode(document(ENDPOINTS))
    return app


def _guarded(endpoint: Endpoint) -> Handler:
    """Answers 500 to what nobody foresaw, and logs it. Raised further, it would also close the client's connection."""
    handler = endpoint.handler if endpoint.asks else _recorded(endpoint)

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except (ApiError, LocalInferError, HTTPException):
            raise
        except Exception as error:
            request.app.state.log.failure(f"{request.url.path} failed", error)
            return error_response(error, request.url.path)

    return guarded


def _recorded(endpoint: Endpoint) -> Handler:
    """Keeps the record that handlers of questions to models keep themselves."""

    async def handler(request: Request) -> Response:
        async with recorded(request, endpoint.name) as record:
            response = await endpoint.handler(request)
            record.done(response.status_code)
            return response

    return handler


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path (404), or not by this method (405)."""
    assert isinstance(error, HTTPException)
    meant = f"/v1{request.url.path.rstrip('/')}"
    perhaps = f"; {meant} is there" if any(meant in endpoint.paths for endpoint in ENDPOINTS) else ""
    words = {
        404: f"there is no {request.url.path} here{perhaps}",
        405: f"{request.url.path} does not answer {request.method}",
    }
    message = words.get(error.status_code, error.detail)
    return error_response(ApiError(error.status_code, message, headers=error.headers), request.url.path)
