"""A Hugging Face hub for tests, which speaks the real one's API over plain HTTP: listings, redirects to a storage host,
ranges, hashes, and on demand everything that goes wrong.

The hub is at http://127.0.0.1:PORT, its storage at http://localhost:PORT: to a client those are two hosts, so that it
must not send its token to the second.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

Content = bytes | mmap.mmap
PIECE = 1 << 14
LFS_FROM = 1000  # bytes: smaller files are kept in git, as are configuration files on the hub


@dataclass
class Repository:
    """A repository at one commit. `announce` replaces the sha256 that the hub has on record, by path."""

    files: dict[str, Content]
    commit: str = "1" * 40
    revisions: tuple[str, ...] = ("main",)
    licence: str = "apache-2.0"
    gated: bool = False
    private: bool = False
    downloads: int = 10
    gguf: dict[str, Any] | None = None
    safetensors: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    announce: dict[str, str] = field(default_factory=dict)

    def is_lfs(self, path: str) -> bool:
        return len(self.files[path]) >= LFS_FROM or path.endswith((".gguf", ".safetensors", ".bin"))

    def sha256(self, path: str) -> str:
        return self.announce.get(path) or hashlib.sha256(self.files[path]).hexdigest()

    def git_oid(self, path: str) -> str:
        content = self.files[path]
        if self.is_lfs(path):  # of the pointer that git keeps in its place
            content = f"oid sha256:{self.sha256(path)}\nsize {len(content)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Cut(NamedTuple):
    """How an answer with a file ends: orderly ("fin"), by a reset ("rst"), or, with "call", by `HubServer.on_cut`, for
    example with the death of the client. "stall" sends nothing more for a while.

    That happens after so many bytes, of the answer, or of the whole file if `absolute`.
    """

    after: int
    how: str = "fin"
    absolute: bool = False


class Refusal(NamedTuple):
    """An answer with an error, to the next request whose path begins so."""

    path: str
    status: int
    headers: dict[str, str] = {}  # noqa: RUF012


class Request(NamedTuple):
    method: str
    path: str
    range: str
    token: str


class HubServer:
    def __init__(self, repositories: dict[str, Repository] | None = None) -> None:
        self.repositories = repositories or {}
        self.plain: dict[str, Content] = {}  # files outside the hub, by path, with an ETag
        self.cuts: deque[Cut] = deque()
        self.refusals: deque[Refusal] = deque()
        self.on_cut: Callable[[], None] = lambda: None
        self.ranges = True  # whether the storage sends parts
        self.validators = True  # whether plain files have an ETag
        self.once: deque[bytes] = deque()  # what the storage sends instead of the file, each one time
        self.always: bytes | None = None  # what it sends at all times after that
        self.requests: list[Request] = []
        self.connections: list[socket.socket] = []
        self.sent = 0  # bytes of files that went out
        self.rate = 0  # bytes per second that an answer is sent at, 0 for as fast as possible
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                _Answer(hub, self).write()

            def do_GET(self) -> None:
                _Answer(hub, self).write()

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, Any]:
                connection, address = super().get_request()
                hub.connections.append(connection)
                return connection, address

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that left

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, part: str) -> list[Request]:
        return [each for each in self.requests if part in each.path]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        for connection in self.connections:  # which clients keep open, and threads wait for
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def running(hub: HubServer) -> Iterator[HubServer]:
    try:
        yield hub
    finally:
        hub.close()


class _Answer:
    """One answer to one request."""

    def __init__(self, hub: HubServer, handler: BaseHTTPRequestHandler) -> None:
        self.hub, self.handler = hub, handler
        parts = urlsplit(handler.path)
        self.path, self.query = unquote(parts.path), parse_qs(parts.query)
        self.token = handler.headers.get("Authorization", "")
        self.range = handler.headers.get("Range", "")
        hub.requests.append(Request(handler.command, self.path, self.range, self.token))

    def write(self) -> None:
        hub = self.hub
        if hub.refusals and self.path.startswith(hub.refusals[0].path):
            refusal = hub.refusals.popleft()
            self.send(refusal.status, refusal.headers)
        elif self.path == "/api/models":
            self.search()
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+?)|/tree/(.+?))?", self.path):
            self.describe(found[1], found[2] or found[3] or "main", tree=bool(found[3]))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            self.resolve(found[1], found[2], found[3])
        elif self.path.startswith("/storage/"):
            self.store(self.path.removeprefix("/storage/"))
        elif self.path in hub.plain:
            content = hub.plain[self.path]
            etag = hashlib.md5(content).hexdigest()
            self.file(content, {"ETag": f'"{etag}"'} if hub.validators else {}, etag)
        else:
            self.send(404, {"X-Error-Code": "RepoNotFound"})

    def repository(self, name: str, revision: str) -> Repository | None:
        """What was asked for; None if it has been refused already."""
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self.token):
            self.send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        if revision not in (*repository.revisions, repository.commit):
            self.send(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
            return None
        return repository

    def describe(self, name: str, revision: str, tree: bool) -> None:
        repository = self.repository(name, revision)
        if repository is None:
            return
        if tree:
            self.json([_entry(repository, path) for path in sorted(repository.files)])
            return
        files = []
        for path in sorted(repository.files):
            file: dict[str, Any] = {"rfilename": path}
            if self.query.get("blobs") == ["true"] or self.query.get("blobs") == ["True"]:
                entry = _entry(repository, path)
                file |= {"size": entry["size"], "blobId": entry["oid"]}
                if "lfs" in entry:
                    lfs = entry["lfs"]
                    file["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
            files.append(file)
        self.json({**_summary(name, repository), "sha": repository.commit, "siblings": files})

    def search(self) -> None:
        words = self.query.get("search", [""])[0].lower().split()
        wanted = self.query.get("filter", [])
        found = [
            _summary(name, repository) | {"siblings": [{"rfilename": path} for path in repository.files]}
            for name, repository in self.hub.repositories.items()
            if all(word in name.lower() for word in words) and all(tag in repository.tags for tag in wanted)
        ]
        found.sort(key=lambda each: -each["downloads"])
        self.json(found[: int(self.query.get("limit", ["1000"])[0])])

    def resolve(self, name: str, revision: str, path: str) -> None:
        repository = self.repository(name, revision)
        if repository is None:
            return
        if repository.gated and self.token != "Bearer good":
            status = 403 if self.token else 401
            self.send(status, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {name} is restricted"})
            return
        if path not in repository.files:
            self.send(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return
        content = repository.files[path]
        commit = {"X-Repo-Commit": repository.commit}
        if not repository.is_lfs(path):
            self.file(content, {**commit, "ETag": f'"{repository.git_oid(path)}"'}, repository.git_oid(path))
            return
        sha256 = repository.sha256(path)
        linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        location = f"http://localhost:{self.hub.port}/storage/{name}/{path}?signature=x"
        self.send(302, {**commit, **linked, "Location": location, "X-Xet-Hash": sha256, "Accept-Ranges": "bytes"})

    def store(self, rest: str) -> None:
        owner, name, path = rest.split("/", 2)
        repository = self.hub.repositories[f"{owner}/{name}"]
        content = self.hub.once.popleft() if self.hub.once else self.hub.always or repository.files[path]
        self.file(content, {"ETag": f'"{repository.sha256(path)}"'}, repository.sha256(path))

    def file(self, content: Content, headers: dict[str, str], etag: str) -> None:
        """The bytes, or those of a range, as far as the next cut lets them."""
        start, end = 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.range) if self.hub.ranges else None
        if_range = self.handler.headers.get("If-Range")
        if if_range is not None and if_range.strip('"') != etag:
            asked = None
        if asked:
            start = int(asked[1])
            end = min(end, int(asked[2]) + 1) if asked[2] else end
            if start >= len(content):
                self.send(416, {"Content-Range": f"bytes */{len(content)}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        headers = {**headers, "Content-Length": str(end - start), "Accept-Ranges": "bytes"}
        self.send(206 if asked else 200, headers)
        if self.handler.command == "HEAD":
            return
        cut = self.hub.cuts.popleft() if self.hub.cuts else Cut(end - start, "")
        stop = max(start, min(cut.after if cut.absolute else start + cut.after, end))
        begin = time.monotonic()
        for position in range(start, stop, PIECE):
            piece = content[position : min(position + PIECE, stop)]
            self.handler.wfile.write(piece)
            self.hub.sent += len(piece)
            if self.hub.rate:
                time.sleep(max(0.0, begin + (position - start) / self.hub.rate - time.monotonic()))
        if cut.how:
            self.cut(cut.how)

    def cut(self, how: str) -> None:
        connection = self.handler.connection
        self.handler.close_connection = True
        if how == "call":
            self.hub.on_cut()
        elif how == "stall":
            connection.settimeout(10)
            connection.recv(1)  # until the client has had enough
        elif how == "rst":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    def json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.handler.wfile.write(body)

    def send(self, status: int, headers: dict[str, str]) -> None:
        self.handler.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.handler.send_header(name, value)
        self.handler.end_headers()


def _summary(name: str, repository: Repository) -> dict[str, Any]:
    return {
        "_id": "0" * 24,
        "id": name,
        "modelId": name,
        "private": repository.private,
        "gated": "manual" if repository.gated else False,
        "downloads": repository.downloads,
        "likes": 1,
        "tags": [*repository.tags, f"license:{repository.licence}"],
        "cardData": {"license": repository.licence},
        "lastModified": "2026-01-02T03:04:05.000Z",
        "gguf": repository.gguf,
        "safetensors": repository.safetensors,
        "config": repository.config,
    }


def _entry(repository: Repository, path: str) -> dict[str, Any]:
    size = len(repository.files[path])
    entry: dict[str, Any] = {"type": "file", "oid": repository.git_oid(path), "size": size, "path": path}
    if repository.is_lfs(path):
        entry["lfs"] = {"oid": repository.sha256(path), "size": size, "pointerSize": 130}
    return entry


def in_seconds(seconds: float) -> str:
    """The time as HTTP writes it, for Retry-After."""
    return formatdate(time.time() + seconds, usegmt=True)
