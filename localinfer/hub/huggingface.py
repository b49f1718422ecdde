"""One file from the Hugging Face hub, over plain HTTP.

The hub answers a request for a large file with a redirect to its storage, and names the file's sha256 in that
answer (`X-Linked-ETag`). So a file that is not the wanted one is known before any of it is fetched.
"""

from __future__ import annotations

import http.client
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable

from localinfer.errors import LocalInferError
from localinfer.hub.catalog import Entry, HubFile
from localinfer.hub.report import Report

PROBE_SECONDS = 3.0  # per connection attempt
PROBE_LIMIT_SECONDS = 5.0  # for all of it, name look-up included, which no socket timeout covers
STALL_SECONDS = 30.0
CHUNK = 1 << 20
_NETWORK_ERRORS = (OSError, http.client.HTTPException, ValueError)


def fetch(source: HubFile, entry: Entry, write: Callable[[bytes], object], report: Report) -> None:
    """Streams the file into `write`. LocalInferError if the hub cannot be reached or has another file."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise LocalInferError("not asked, because HF_HUB_OFFLINE is set")
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    quoted = (urllib.parse.quote(part) for part in (source.repository, source.revision, source.file))
    url = "{}/{}/resolve/{}/{}".format(endpoint, *quoted)
    offered = _probe(url)
    if offered and offered != entry.sha256:
        raise LocalInferError(f"{url} is another file: sha256 {offered}, expected {entry.sha256}")
    try:
        answer = urllib.request.urlopen(url, timeout=STALL_SECONDS)
    except _NETWORK_ERRORS as error:
        raise _unreachable(url, error) from error
    with answer:
        done = 0
        while True:
            try:
                chunk = answer.read(CHUNK)
            except _NETWORK_ERRORS as error:
                raise LocalInferError(f"the connection broke off after {done} bytes: {error}") from error
            if not chunk:
                return
            write(chunk)
            done += len(chunk)
            report.progress(entry.file, done, entry.size)


def _probe(url: str) -> str:
    """The sha256 that the hub names for the file, "" if it names none; an error within seconds otherwise."""
    result: list[str | Exception] = []

    def ask() -> None:
        headers = _FirstHeaders()
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.build_opener(headers).open(request, timeout=PROBE_SECONDS) as answer:
                result.append(headers.linked_etag or answer.headers.get("X-Linked-ETag", ""))
        except Exception as error:  # handed to the thread that waits
            result.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_LIMIT_SECONDS)
    found = result[0] if result else TimeoutError(f"no answer within {PROBE_LIMIT_SECONDS:.0f} seconds")
    if isinstance(found, Exception):
        raise _unreachable(url, found) from found
    return found.removeprefix("W/").strip('"').lower()


class _FirstHeaders(urllib.request.HTTPRedirectHandler):
    """Follows redirects and keeps the hash, which stands in the answer before the last."""

    linked_etag = ""

    def redirect_request(  # type: ignore[no-untyped-def]
        self, req, fp, code, msg, headers, newurl
    ) -> urllib.request.Request | None:
        self.linked_etag = headers.get("X-Linked-ETag", "") or self.linked_etag
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            request.method = "HEAD"  # urllib turns a redirected HEAD into a GET before Python 3.13
        return request


def _unreachable(url: str, error: Exception) -> LocalInferError:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return LocalInferError(f"{url} answers {error.code} {error.reason}")
    reason = getattr(error, "reason", None) or error
    return LocalInferError(f"{url} cannot be reached: {reason}")
