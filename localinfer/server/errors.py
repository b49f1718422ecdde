"""What goes wrong, as OpenAI's clients expect it: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from localinfer.engine.thread import EngineFailedError, EngineStoppedError, QueueFullError
from localinfer.errors import ContextLengthError, LocalInferError
from localinfer.server.schemas.anthropic import AnthropicError, AnthropicErrorDetail
from localinfer.server.schemas.errors import ErrorBody, ErrorDetail
from localinfer.server.schemas.ollama import OllamaError

ANTHROPIC = "/v1/messages"  # paths that begin so speak Anthropic's protocol
OLLAMA = "/api/"  # ... and Ollama's
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """An answer that is an error.

    `type` is one of OpenAI's: "invalid_request_error", "rate_limit_error", "server_error"; `code` names the case for
    programs, `param` the field of the request that is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.message, self.type, self.param, self.code)))


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is at fault: 400."""
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: Exception) -> ApiError:
    """Any exception as an answer. What nobody foresaw is a bug of ours: 500, and its words stay in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return ApiError(
            429,
            error.message,
            type="rate_limit_error",
            code="queue_full",
            headers={"retry-after": str(error.retry_after)},
        )
    if isinstance(error, EngineStoppedError):
        return ApiError(503, error.message, type="server_error", code="engine_stopped")
    if isinstance(error, EngineFailedError):
        return ApiError(500, _words(error), type="server_error", code="engine_failed")
    if isinstance(error, ContextLengthError):
        return invalid(_words(error), code="context_length_exceeded")
    if isinstance(error, LocalInferError):
        return invalid(_words(error), param=_field(error.message))
    return ApiError(500, "the server failed in a way it did not foresee; its log says more", type="server_error")


def error_response(error: Exception, path: str = "") -> Response:
    """The error as an HTTP answer of the endpoint at `path`, whose clients may expect it in a form of their own."""
    found = as_api_error(error)
    body = found.body
    if path.startswith(ANTHROPIC):
        body = anthropic_error(found)
    elif path.startswith(OLLAMA):
        body = ollama_error(found)
    return Response(body, status_code=found.status, media_type="application/json", headers=found.headers)


def ollama_error(error: ApiError) -> bytes:
    """The error as Ollama's clients expect it."""
    return msgspec.json.encode(OllamaError(error.message))


def anthropic_error(error: ApiError) -> bytes:
    """The error as Anthropic's clients expect it: agents know a prompt that is too long by these words, and compact."""
    message = error.message if error.code != "context_length_exceeded" else f"prompt is too long: {error.message}"
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode(AnthropicError(AnthropicErrorDetail(kind, message)))


def _field(message: str) -> str | None:
    """What the engine calls wrong, which is what the field is called: "top_p is 2, but must be in (0, 1]"."""
    found = re.match(r"(?:an? [a-z ]*of |the )?(\w+)(?:\[.*?\])?(?:: | is .*, but must be )", message)
    return found.group(1) if found else None


def _words(error: LocalInferError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
