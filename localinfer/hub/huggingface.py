"""One file from the Hugging Face hub, through its own library: its token, cache, and HF_ENDPOINT hold here too.

The hub names a large file's sha256 before it sends it, so a file that is not the wanted one is known before any of it
is fetched.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.hub.catalog import Entry, HubFile
from localinfer.hub.report import Report, largest_file

PROBE_SECONDS = 3.0  # per connection attempt
PROBE_LIMIT_SECONDS = 5.0  # for all of it, name look-up included, which no socket timeout covers
POLL_SECONDS = 0.1
CHUNK = 1 << 20
ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
SHA256_DIGITS = 64


class Unreachable(LocalInferError):
    """`host` gives no answer, perhaps because this machine has no network."""

    def __init__(self, message: str, host: str) -> None:
        super().__init__(message)
        self.host = host


def fetch(source: HubFile, entry: Entry, folder: Path, write: Callable[[bytes], object], report: Report) -> None:
    """Downloads the file into `folder`, or finds it in the hub's cache, and streams it into `write`.

    Unreachable if there is no answer, LocalInferError if there is another file.
    """
    path = _cached(source) or _download(source, entry, folder, report)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            write(chunk)


def _cached(source: HubFile) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repository, source.file, revision=source.revision)
    return Path(found) if isinstance(found, str) else None


def _download(source: HubFile, entry: Entry, folder: Path, report: Report) -> Path:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise LocalInferError("not asked, because HF_HUB_OFFLINE is set")
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    # Read anew: the library keeps what stood there when it was imported.
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    url = hf_hub_url(source.repository, source.file, revision=source.revision, endpoint=endpoint)
    asking = _Thread(lambda: get_hf_file_metadata(url, token=None, timeout=PROBE_SECONDS, endpoint=endpoint))
    host = endpoint.removeprefix("https://")
    if not asking.ended_within(PROBE_LIMIT_SECONDS):
        raise Unreachable(f"{url} cannot be reached: no answer within {PROBE_LIMIT_SECONDS:.0f} seconds", host)
    offered = asking.result(url, lambda why: Unreachable(f"{url} cannot be reached: {why}", host)).etag or ""
    if len(offered) == SHA256_DIGITS and offered.lower() != entry.sha256:
        raise LocalInferError(f"{url} is another file: sha256 {offered}, expected {entry.sha256}")
    fetching = _Thread(
        lambda: hf_hub_download(
            source.repository,
            source.file,
            revision=source.revision,
            local_dir=folder / "hub",
            endpoint=endpoint,
            etag_timeout=PROBE_SECONDS,
        )
    )
    while not fetching.ended_within(POLL_SECONDS):
        report.progress(entry.file, min(largest_file(folder), entry.size), entry.size)
    path = Path(fetching.result(url, lambda why: LocalInferError(f"{url} broke off: {why}")))
    report.progress(entry.file, entry.size, entry.size)
    return path


class _Thread:
    """Runs a call of the library, which may take longer than we wait, and can then only be left behind."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome.append(call())
        except Exception as error:  # handed to the thread that waits
            self._error = error

    def ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self, url: str, silent: Callable[[str], LocalInferError]) -> Any:
        """What the call returned. What it raised becomes a LocalInferError, that of `silent` if there was no answer,
        unless it is the disk that is full."""
        error = self._error
        if error is None:
            return self._outcome[0]
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
            raise error
        response = getattr(error, "response", None)
        if response is None:
            raise silent(ERROR_NUMBER.sub("", (str(error) or type(error).__name__).splitlines()[0])) from error
        hint = "for a repository that asks for an account: hf auth login" if response.status_code in (401, 403) else ""
        raise LocalInferError(f"{url} answers {response.status_code}", hint) from error
