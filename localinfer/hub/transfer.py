"""One file over HTTP into one file on the disk, however often it breaks off.

What has come stays, under a name that says that it is not all, and only what is missing is asked for again, by this
process or a later one. Every piece is written as soon as it comes, so that a process that is killed loses what is on
its way through the network, and nothing else. The file is hashed while it grows, from the disk, since that is what
will be read; one that turns out to be another is fetched anew, once.

huggingface_hub makes the connection (its proxies, certificates, token and offline switch hold), but does not transfer
the bytes: its 2.4 begins a download that broke off with its process from zero, and collects 10 MB before it writes any.
"""

from __future__ import annotations

import contextlib
import email.utils
import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from localinfer.errors import LocalInferError
from localinfer.hub.report import Report

FRUITLESS_TRIES = 6  # in a row, each without a single byte
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0  # seconds between those
LONGEST_REQUESTED_WAIT = 600.0
MUCH = 1 << 20  # a connection that brought so many bytes is made anew without waiting
RESPONSE_LIMIT = 32 * 10**9  # bytes asked for at once: content delivery networks refuse to send 50 GB in one answer
HASH_CHUNK = 1 << 20
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Remote(NamedTuple):
    """A file to fetch.

    url        where it is
    headers    to send along; they stay on the host of `url`
    size       in bytes; None if it is not known before the first answer
    digest     "sha256:HEX", or "git:HEX" of git's blob hash; "" if nobody has said what is right
    validator  an ETag or a date (for If-Range) without which bytes are not joined; "" if the digest will tell
    """

    url: str
    headers: dict[str, str]
    size: int | None
    digest: str
    validator: str = ""


class Mismatch(LocalInferError):
    """What came is not what was announced."""


class TransferError(LocalInferError):
    """The file could not be had, or only a part of it, which stays; `status` is that of the last answer, or 0."""

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint)
        self.status = status


def transfer(remote: Remote, partial: Path, report: Report, progress: Callable[[int, int], None]) -> str:
    """Completes the file `partial`, and returns its digest ("sha256:..." unless `remote` names another).

    `progress` gets the bytes that are there, and those of the whole, 0 if that is not known. TransferError if it breaks
    off for good, Mismatch if another file comes, twice; OSError is the disk's.
    """
    for attempt in (1, 2):
        try:
            return _Download(remote, partial, report, progress).run()
        except Mismatch as error:
            partial.unlink()
            if attempt == 2:
                raise
            report.say(f"{error.message}; it is fetched anew")
    raise AssertionError("unreachable")


class _Download:
    def __init__(self, remote: Remote, partial: Path, report: Report, progress: Callable[[int, int], None]) -> None:
        self._remote, self._path, self._report, self._progress = remote, partial, report, progress
        self._size = remote.size
        self._position = self._furthest = 0
        self._fruitless = 0

    def run(self) -> str:
        # Written at our own position and never appended: should a file system grant a lock twice, two processes write
        # the same bytes to the same places.
        with open(self._path, "r+b" if self._path.exists() else "w+b", buffering=0) as file:
            self._position = self._furthest = file.seek(0, os.SEEK_END)
            if self._size is not None and self._position > self._size:
                self._restart(file)
            self._hash = self._new_hash()
            try:
                while not self._done():
                    self._connect(file)
                os.fsync(file.fileno())
                return self._checked()
            finally:
                self._hash.abandon()

    def _done(self) -> bool:
        return self._size is not None and self._position == self._size

    def _new_hash(self) -> _FollowingHash:
        kind = self._remote.digest.partition(":")[0]
        following = _FollowingHash(self._path, kind, self._size or 0)
        following.follow(self._position)
        return following

    def _restart(self, file: Any) -> None:
        file.truncate(0)
        file.seek(0)
        self._position = 0

    def _begin_again(self, file: Any) -> None:
        self._hash.abandon()
        self._restart(file)
        self._hash = self._new_hash()

    def _connect(self, file: Any) -> None:
        """One request, and as many bytes as it brings."""
        from huggingface_hub import get_session

        client = get_session()
        if self._position and not (self._remote.digest or self._remote.validator):
            self._begin_again(file)  # nothing would tell whether the rest belongs to what is here
        status = 0
        wait: float | None = None
        try:
            with client.stream(
                "GET", self._remote.url, headers=self._headers(), timeout=_timeout(), follow_redirects=True
            ) as response:
                status = response.status_code
                if status in (200, 206):
                    self._accept(response, file)
                    for piece in response.iter_raw():
                        self._write(file, piece)
                    reason = "the connection was closed"
                else:
                    wait = requested_wait(response.headers)
                    reason = self._refusal(response, file)
        except transport_errors(client) as error:
            reason = words(error)
        if self._done():
            return
        self._pause(wait, reason, status)

    def _headers(self) -> dict[str, str]:
        headers = {**self._remote.headers, "Accept-Encoding": "identity"}
        end = ""
        if self._size is not None and self._size - self._position > RESPONSE_LIMIT:
            end = str(self._position + RESPONSE_LIMIT - 1)
        if self._position or end:
            headers["Range"] = f"bytes={self._position}-{end}"
            if self._remote.validator and self._position:
                headers["If-Range"] = self._remote.validator
        return headers

    def _accept(self, response: Any, file: Any) -> None:
        """Compares what an answer announces with what is wanted, and goes to where its bytes belong."""
        for each in (*response.history, response):
            announced = each.headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"').lower()
            kind, _, wanted = self._remote.digest.partition(":")
            if kind == "sha256" and len(announced) == len(wanted) and announced != wanted:
                raise TransferError(f"{self._remote.url} is another file: sha256 {announced}, expected {wanted}")
        if not self._remote.digest and self._remote.url.startswith("https:") and response.url.scheme != "https":
            raise TransferError(f"{self._remote.url} leads to {response.url}: whoever is on the way could change it")
        total: int | None = None
        if response.status_code == 200:
            if self._position:  # the server does not send parts, or has another version of the file
                self._begin_again(file)
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
        else:
            found = CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != self._position:
                raise TransferError(f"{self._remote.url} sends other bytes than those that were asked for")
            total = None if found[3] == "*" else int(found[3])
        if total is None:
            if self._size is None:
                raise TransferError(f"{self._remote.url} does not say how long it is")
        elif self._size is None:
            self._size = total
        elif total != self._size:
            raise TransferError(f"{self._remote.url} is another file: {total} bytes, expected {self._size}")

    def _write(self, file: Any, piece: bytes) -> None:
        assert self._size is not None
        if self._position + len(piece) > self._size:
            raise TransferError(f"{self._remote.url} sends more than the {self._size} bytes it announced")
        view = memoryview(piece)
        while view:
            written = file.write(view)
            self._position += written
            view = view[written:]
        self._hash.follow(self._position)
        self._progress(self._position, self._size)

    def _refusal(self, response: Any, file: Any) -> str:
        """Words for an answer without bytes; raised if asking again is of no use."""
        status = response.status_code
        if status == 416 and self._position:  # what is here is longer than the file, or of another version
            self._begin_again(file)
        elif status not in TRANSIENT and not (response.history and status == 403):
            # A storage host says 403 when the address that the hub gave has expired: a new one is asked for.
            raise TransferError(f"{self._remote.url} answers {status}", status=status)
        return f"{urlsplit(str(response.url)).netloc} answers {status}"

    def _pause(self, requested: float | None, reason: str, status: int) -> None:
        """Waits as long as it makes sense before the next request; TransferError if there should be none."""
        # What comes for the second time, from a server that does not send parts, is no gain.
        gained = self._position - self._furthest
        self._furthest = max(self._furthest, self._position)
        self._fruitless = 0 if gained > 0 else self._fruitless + 1
        where = f"{self._position} of {self._size} bytes are here"
        if self._fruitless >= FRUITLESS_TRIES:
            raise TransferError(
                f"{self._remote.url} broke off: {reason} ({where})",
                "try again later: it goes on where it stopped",
                status,
            )
        if requested is not None:
            if requested > LONGEST_REQUESTED_WAIT:
                raise TransferError(
                    f"{urlsplit(self._remote.url).netloc} asks to wait for {requested:.0f} seconds ({where})",
                    "try again later: it goes on where it stopped",
                    status,
                )
            self._report.say(f"{reason}; trying again in {requested:.0f} s, as it asks")
            time.sleep(requested)
        elif gained < MUCH:
            time.sleep(min(FIRST_WAIT * 2**self._fruitless, LONGEST_WAIT))

    def _checked(self) -> str:
        found = self._hash.finish(self._position)
        if self._remote.digest and found != self._remote.digest:
            raise Mismatch(
                f"{self._remote.url} is not what was announced: {found.replace(':', ' ')}, "
                f"expected {self._remote.digest.partition(':')[2]}"
            )
        return found


class _FollowingHash:
    """Hashes a file in a thread while it is written, from its beginning, wherever the writing began."""

    def __init__(self, path: Path, kind: str, size: int) -> None:
        self._kind = kind or "sha256"
        self._digest = hashlib.sha1(b"blob %d\0" % size) if kind == "git" else hashlib.sha256()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._change = threading.Condition()
        self._end, self._hashed = 0, 0
        self._complete = self._stopped = False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(self, end: int) -> None:
        """Says that the file has its right bytes up to `end`."""
        with self._change:
            self._end = end
            if end - self._hashed >= HASH_CHUNK:  # waking the thread for every piece would cost more than hashing it
                self._change.notify()

    def finish(self, end: int) -> str:
        """The digest of the file, which is now complete."""
        with self._change:
            self._end, self._complete = end, True
            self._change.notify()
        self._thread.join()
        if self._error:
            raise self._error
        return f"{self._kind}:{self._digest.hexdigest()}"

    def abandon(self) -> None:
        """Ends the thread; afterwards nothing of it is left."""
        with self._change:
            self._stopped = True
            self._change.notify()
        self._thread.join()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _run(self) -> None:
        try:
            while (end := self._next()) is not None:
                piece = os.pread(self._file, min(HASH_CHUNK, end - self._hashed), self._hashed)
                if not piece:
                    raise OSError(errno.EIO, "the file shrinks while it is written")
                self._digest.update(piece)
                self._hashed += len(piece)
        except OSError as error:
            self._error = error

    def _next(self) -> int | None:
        """Waits for enough to hash, and says how far it reaches; None if there will be no more."""
        with self._change:
            self._change.wait_for(
                lambda: self._stopped or self._complete or self._end - self._hashed >= HASH_CHUNK
            )  # fmt: skip
            return None if self._stopped or self._hashed == self._end else self._end


def file_digest(path: Path, kind: str, progress: Callable[[int, int], None] | None = None) -> str:
    """The digest of a file: "sha256:HEX", or "git:HEX" as git names a file that it holds."""
    size, done = path.stat().st_size, 0
    digest = hashlib.sha1(b"blob %d\0" % size) if kind == "git" else hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(HASH_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(done, size)
    return f"{kind}:{digest.hexdigest()}"


def transport_errors(client: Any) -> tuple[type[Exception], ...]:
    """What the library's client raises if the network fails: it comes from httpx or, newer, from its successor."""
    from importlib import import_module

    base = next(kind for kind in type(client).__mro__ if kind.__module__.partition(".")[0].startswith("httpx"))
    return (import_module(base.__module__.partition(".")[0]).HTTPError,)


def words(error: Exception) -> str:
    """What an error of the network says, in one line and without its number."""
    lines = str(error).strip().splitlines()
    return ERROR_NUMBER.sub("", lines[0]) if lines else type(error).__name__


def _timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def requested_wait(headers: Any) -> float | None:
    """Seconds that an answer asks to wait for: Retry-After (RFC 9110), or RateLimit with nothing remaining."""
    text = headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, (email.utils.parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    limit = re.search(r"\br=0\s*;\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(limit[1]) if limit else None
