"""Who may ask: API keys, and which web pages.

Pure ASGI, because wrappers that make requests of their own hide it when a client leaves.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from localinfer.server.errors import ApiError
from localinfer.server.page import is_for_page
from localinfer.server.refusals import refuse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL_ORIGIN = re.compile(rb"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"
_PREFLIGHT_SECONDS = b"600"


class RequireKey:
    """Answers 401 to a request without one of `keys`, as `Authorization: Bearer KEY` or `x-api-key: KEY`.

    /health is open, since those who watch a server need to know no secret, and so are the files of the web page, which
    asks for the key itself. How long a comparison takes tells nothing about the keys.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _given_keys(scope) if scope["type"] == "http" else []
        if scope["type"] != "http" or scope["path"] == "/health" or is_for_page(scope) or self._knows(given):
            await self._app(scope, receive, send)
            return
        how = "send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
        error = ApiError(
            401,
            "this API key is none of those that this server takes"
            if given
            else f"this server asks for an API key: {how}",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await refuse(error, scope, receive, send)

    def _knows(self, given: Iterable[bytes]) -> bool:
        found = False
        for key in given:
            digest = _digest(key)
            for known in self._digests:
                found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: bytes) -> bytes:
    """Of one length for keys of any length."""
    return hashlib.sha256(key).digest()


def _given_keys(scope: Scope) -> list[bytes]:
    keys = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip())
        elif name == b"x-api-key":
            keys.append(value.strip())
    return keys


class LimitHosts:
    """Answers 403 to requests for a host that a name of somebody else's could have been made to lead to.

    A foreign page can give its own name this machine's address (DNS rebinding), and to the browser the server is then
    the page's own. So without a key only names are answered that cannot be made to lead elsewhere: localhost and what
    ends with it (RFC 6761, 6.3), IP addresses, and `hosts`. What names no host comes from no browser.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = {host.lower().rstrip(".") for host in hosts if host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"host", b"") if scope["type"] == "http" else b""
        host = _host_name(given.decode("latin-1"))
        if not given or self._allows(host):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            403,
            f"this server is not known as {host}; it can be started with --allowed-host {host}, or with a key",
            code="host_not_allowed",
        )
        await refuse(error, scope, receive, send)

    def _allows(self, host: str) -> bool:
        if host in self._hosts or host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def _host_name(given: str) -> str:
    """Of a Host header, without its port; an IPv6 address without its brackets and zone."""
    if given.startswith("["):
        return given[1:].partition("]")[0].partition("%")[0]
    return given.partition(":")[0].lower().rstrip(".")


class LimitOrigins:
    """Lets web pages of this machine ask, and those of `origins` ("*": all); refuses others with 403.

    A browser sends requests of any page to a server on this machine; to leave out the headers that let the page read
    the answer (the Fetch standard, "CORS protocol") would still do the work. With `same_origin`, pages that this very
    server delivered may ask too: only for servers with a key, since a page can give its own name this machine's address
    (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str] = (), *, same_origin: bool = False) -> None:
        self._app = app
        self._any = "*" in origins
        self._origins = {origin.rstrip("/").lower().encode() for origin in origins}
        self._same_origin = same_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin")
        if origin is None:
            await self._app(scope, receive, send)
        elif not self._allows(origin, headers.get(b"host", b"")):
            name = origin.decode("latin-1")
            error = ApiError(
                403,
                f"web pages of {name} may not ask this server; it can be started with --cors-origin {name}",
                code="origin_not_allowed",
            )
            await refuse(error, scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": _preflight(origin, headers)})
            await send({"type": "http.response.body"})
        else:
            await self._app(scope, receive, _with_headers(send, _cors_headers(origin)))

    def _allows(self, origin: bytes, host: bytes) -> bool:
        if self._any or origin.lower() in self._origins or _LOCAL_ORIGIN.fullmatch(origin):
            return True
        return self._same_origin and origin.lower().partition(b"://")[2] == host.lower()


def _cors_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]


def _preflight(origin: bytes, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    found = [*_cors_headers(origin), (b"access-control-allow-methods", _METHODS)]
    found.append((b"access-control-max-age", _PREFLIGHT_SECONDS))
    if wanted := headers.get(b"access-control-request-headers"):
        found.append((b"access-control-allow-headers", wanted))
    if headers.get(b"access-control-request-private-network") == b"true":
        found.append((b"access-control-allow-private-network", b"true"))
    return found


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_with_headers
