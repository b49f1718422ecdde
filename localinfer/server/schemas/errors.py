"""The body of every answer that is an error."""

from __future__ import annotations

import msgspec


class ErrorDetail(msgspec.Struct):
    """`param` names the field of the request that is wrong, `code` the case, for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """What OpenAI's clients read."""

    error: ErrorDetail
