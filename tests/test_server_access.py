"""Keys, origins, body limits, and the gate that closes before the server ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from localinfer.server.access import LimitOrigins, RequireKey
from localinfer.server.limits import LINGER_BYTES, Gate, LimitBody
from localinfer.server.process import guarded
from localinfer.server.record import RequestRecord
from localinfer.server.settings import ServerSettings

Scope = dict[str, Any]


class Answer(NamedTuple):
    """What came back, and how many bytes of the request's body were read for it."""

    status: int
    headers: dict[str, str]
    body: bytes
    read: int

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


async def echo(scope: Scope, receive: Any, send: Any) -> None:
    """Answers with the number of bytes of the body; nothing if the client left."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def ask(
    app: Any, headers: dict[str, str] | None = None, body: Sequence[bytes] = (), method: str = "POST", path: str = "/v1"
) -> Answer:
    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "client": ("203.0.113.7", 1)}
    pieces, read, sent = list(body) or [b""], 0, []

    async def receive() -> dict[str, Any]:
        nonlocal read
        if not pieces:
            return {"type": "http.disconnect"}
        piece = pieces.pop(0)
        read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, rest = sent[0], sent[1:]
    assert start["type"] == "http.response.start"
    assert not rest[-1].get("more_body"), "the answer was not ended"
    decoded = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], decoded, b"".join(m.get("body", b"") for m in rest), read)


def answer(app: Any, *arguments: Any, **named: Any) -> Answer:
    return asyncio.run(ask(app, *arguments, **named))


# --- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer first"}, 200),
        ({"Authorization": "bearer  second "}, 200),
        ({"x-api-key": "second"}, 200),
        ({"authorization": "Bearer no", "x-api-key": "first"}, 200),
        ({"authorization": "first"}, 401),
        ({"authorization": "Basic first"}, 401),
        ({"authorization": "Bearer firs"}, 401),
        ({"authorization": "Bearer first2"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "\xff"}, 401),
    ],
)
def test_one_of_the_keys_is_needed(headers: dict[str, str], status: int) -> None:
    got = answer(RequireKey(echo, ["first", "second"]), headers)
    assert got.status == status
    if status == 401:
        assert got.error["code"] == "invalid_api_key"
        assert got.headers["www-authenticate"] == "Bearer"
        assert "first" not in got.error["message"]


def test_health_needs_no_key_and_nothing_else_looks_like_it() -> None:
    app = RequireKey(echo, ["key"])
    assert answer(app, path="/health", method="GET").status == 200
    for path in ("/health/", "/healthy", "/v1/../health", "/metrics", "/"):
        assert answer(app, path=path, method="GET").status == 401


# --- hosts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("localhost.:8080", True),
        ("models.localhost:1", True),
        ("127.0.0.1:8080", True),
        ("192.168.1.5", True),
        ("[::1]:8080", True),
        ("[fe80::1%eth0]:80", True),
        ("bound.example:8080", True),
        ("named.example", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("notlocalhost", False),
        ("127.0.0.1.evil.example", False),
        ("127.1", False),
        ("[evil.example]:80", False),
        ("sub.named.example", False),
        ("\xff", False),
    ],
)
def test_without_a_key_only_names_are_answered_that_lead_nowhere_else(host: str, allowed: bool) -> None:
    settings = ServerSettings(host="bound.example", allowed_hosts=("Named.example",))
    got = answer(guarded(echo, settings)[0], {"host": host}, path="/v1/models", method="GET")
    assert (got.status == 200) is allowed
    if not allowed:
        assert (got.status, got.error["code"]) == (403, "host_not_allowed")
        assert "--allowed-host" in got.error["message"]


def test_a_key_or_no_host_at_all_is_enough() -> None:
    keyed = guarded(echo, ServerSettings(api_keys=("key",)))[0]
    assert answer(keyed, {"host": "any.example", "x-api-key": "key"}).status == 200
    assert answer(guarded(echo, ServerSettings())[0]).status == 200


# --- origins -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://localhost", True),
        ("http://127.0.0.1:5173", True),
        ("http://[::1]:80", True),
        ("HTTP://LOCALHOST:1", True),
        ("https://chat.example.org", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost:3000@evil.example", False),
        ("https://evil.example/http://localhost", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("http://server:8080", False),
    ],
)
def test_pages_of_this_machine_may_ask_and_others_by_name(origin: str, allowed: bool) -> None:
    app = LimitOrigins(echo, ["https://chat.example.org/"])
    got = answer(app, {"origin": origin, "host": "server:8080"}, [b"x"])
    assert (got.status == 200) is allowed
    if allowed:
        assert got.headers["access-control-allow-origin"] == origin
        assert got.headers["vary"] == "origin"
    else:
        assert (got.status, got.error["code"]) == (403, "origin_not_allowed")
        assert got.read == 0
        assert "access-control-allow-origin" not in got.headers


def test_without_an_origin_there_are_no_headers() -> None:
    assert answer(LimitOrigins(echo)).headers == {}


def test_every_origin_if_asked_for() -> None:
    assert answer(LimitOrigins(echo, ["*"]), {"origin": "https://any.example"}).status == 200


def test_pages_of_the_server_itself_may_ask_where_a_key_is_needed() -> None:
    headers = {"origin": "http://server:8080", "host": "server:8080"}
    assert answer(LimitOrigins(echo, same_origin=True), headers).status == 200
    assert answer(LimitOrigins(echo, same_origin=True), headers | {"host": "server:80"}).status == 403
    # A page whose name was made to lead here (DNS rebinding) is of the same origin too, so a server without a key
    # takes only names that cannot be made to lead elsewhere.
    assert answer(guarded(echo, ServerSettings())[0], headers).status == 403
    assert answer(guarded(echo, ServerSettings(api_keys=("k",)))[0], headers | {"x-api-key": "k"}).status == 200


def test_a_preflight_is_answered_before_any_key() -> None:
    app, _ = guarded(echo, ServerSettings(api_keys=("key",)))
    asked = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-own",
        "access-control-request-private-network": "true",
    }
    got = answer(app, asked, method="OPTIONS")
    assert got.status == 204
    assert "POST" in got.headers["access-control-allow-methods"]
    assert got.headers["access-control-allow-headers"] == "authorization,x-own"
    assert got.headers["access-control-allow-private-network"] == "true"
    assert answer(app, asked | {"origin": "https://evil.example"}, method="OPTIONS").status == 403


def test_a_refused_key_can_be_read_by_a_local_page() -> None:
    app, _ = guarded(echo, ServerSettings(api_keys=("key",)))
    got = answer(app, {"origin": "http://localhost:3000"})
    assert (got.status, got.headers["access-control-allow-origin"]) == (401, "http://localhost:3000")


# --- bodies ------------------------------------------------------------------------------------------------------


def test_a_body_up_to_the_limit_passes() -> None:
    app = LimitBody(echo, 10)
    assert answer(app, {"content-length": "10"}, [b"x" * 10]).body == b"10"
    assert answer(app, {}, [b"xxxxx", b"xxxxx", b""]).body == b"10"


def test_a_body_that_says_it_is_too_long_is_refused_unread() -> None:
    for size in ("11", "9" * 19):
        got = answer(LimitBody(echo, 10), {"content-length": size}, [b""])
        assert (got.status, got.error["code"]) == (413, "request_too_large")
        assert got.headers["connection"] == "close"
        assert got.read == 0


def test_a_body_that_does_not_say_so_is_read_up_to_the_limit() -> None:
    got = answer(LimitBody(echo, 10), {}, [b"xxxxx"] * 2 + [b"x"] * 3 + [b"y" * 100_000] * 1000)
    assert (got.status, got.error["code"]) == (413, "request_too_large")
    assert "10 bytes" in got.error["message"]
    # What is read beyond the limit is thrown away, and bounded too.
    assert got.read <= LINGER_BYTES + 100_000 + 20


def test_a_body_that_lies_about_its_length_is_refused_too() -> None:
    assert answer(LimitBody(echo, 10), {"content-length": "5"}, [b"x" * 11]).status == 413


# --- the gate ----------------------------------------------------------------------------------------------------


def test_a_closed_gate_lets_go_on_what_has_begun() -> None:
    async def scenario() -> None:
        may_end = asyncio.Event()

        async def slow(scope: Scope, receive: Any, send: Any) -> None:
            await may_end.wait()
            await echo(scope, receive, send)

        gate = Gate(slow)
        first = asyncio.create_task(ask(gate))
        while gate.active == 0:
            await asyncio.sleep(0)
        gate.close()
        refused = await ask(gate)
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert refused.headers["connection"] == "close"
        assert "retry-after" in refused.headers
        waiting = asyncio.create_task(gate.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
        assert (await first).status == 200
        await asyncio.wait_for(waiting, 10)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "body", "path", "told"),
    [
        ({}, (), "/v1/models", ("/v1/models", 401)),
        ({"x-api-key": "key", "origin": "https://evil.example"}, (), "/v1/models", ("/v1/models", 403)),
        ({"x-api-key": "key", "content-length": "11"}, (), "/tokenize", ("/tokenize", 413)),
        ({"x-api-key": "key"}, (b"x" * 6, b"x" * 6), "/tokenize", ("/tokenize", 413)),
        ({}, (), "/made up by a client", ("other", 401)),
        ({"x-api-key": "key"}, (b"x",), "/tokenize", None),
    ],
)
def test_who_is_refused_is_reported(
    headers: dict[str, str], body: Sequence[bytes], path: str, told: tuple[str, int] | None
) -> None:
    records: list[RequestRecord] = []
    app, _ = guarded(echo, ServerSettings(api_keys=("key",), max_body=10), records.append)
    answer(app, headers, body, path=path)
    assert [(r.endpoint, r.status) for r in records] == ([told] if told else [])
    assert all(r.client == "203.0.113.7" and r.error for r in records)


def test_who_comes_while_the_server_stops_is_reported() -> None:
    async def scenario() -> None:
        records: list[RequestRecord] = []
        app, gate = guarded(echo, ServerSettings(), records.append)
        gate.close()
        await ask(app, path="/v1/models")
        assert [(r.endpoint, r.status) for r in records] == [("/v1/models", 503)]

    asyncio.run(scenario())


def test_a_request_that_fails_leaves_the_gate() -> None:
    async def broken(scope: Scope, receive: Any, send: Any) -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        gate = Gate(broken)
        with pytest.raises(ValueError, match="broken"):
            await ask(gate)
        await asyncio.wait_for(gate.wait_idle(), 10)

    asyncio.run(scenario())
