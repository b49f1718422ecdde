"""Requests that are refused before a handler sees them: they have a line in the log and count in the metrics, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from localinfer.server.errors import ApiError, error_response
from localinfer.server.record import RequestRecord

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OTHER = "other"  # the endpoint of a path that there is not: the client's own text never becomes a label
_KEPT = "localinfer.refusals"  # in a scope: the ReportRefusals that the request came through
_REFUSED = "localinfer.refused"


class ReportRefusals:
    """Reports what is refused behind it. `endpoints` are the paths that may be named."""

    def __init__(self, app: ASGIApp, report: Callable[[RequestRecord], None], endpoints: Collection[str]) -> None:
        self._app = app
        self._report = report
        self._endpoints = frozenset(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[_KEPT] = (self, time.perf_counter())
        await self._app(scope, receive, send)

    def refused(self, scope: Scope, error: ApiError, arrived: float) -> None:
        endpoint = scope["path"] if scope["path"] in self._endpoints else OTHER
        client = scope.get("client")
        record = RequestRecord(endpoint, client[0] if client else "", self._report, arrived=arrived)
        record.done(error.status, error.message)


def was_refused(scope: Scope) -> bool:
    """Whether the request was refused, and reported, while a handler had it."""
    return bool(scope.get(_REFUSED))


def note_refusal(scope: Scope, error: ApiError) -> None:
    """The request gets this error. Nothing happens where nobody wants to know."""
    scope[_REFUSED] = True
    if (kept := scope.get(_KEPT)) is not None:
        reporter, arrived = kept
        reporter.refused(scope, error, arrived)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the error, and reports it."""
    note_refusal(scope, error)
    await error_response(error, scope["path"])(scope, receive, send)
