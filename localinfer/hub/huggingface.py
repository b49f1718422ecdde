"""Files from the Hugging Face hub, into its cache, which is shared with other programs and used in place.

The hub names a large file's sha256 before it sends it, so a file that is not the wanted one is known before any of it
is fetched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.hub import cache
from localinfer.hub.catalog import Entry, HubFile
from localinfer.hub.listing import RepoFile, Unreachable, endpoint, host, offline, refusal
from localinfer.hub.lock import locked_file
from localinfer.hub.reference import Reference
from localinfer.hub.report import Report
from localinfer.hub.store import StoredFile
from localinfer.hub.transfer import RESPONSE_LIMIT, Remote, TransferError, file_digest, transfer, words

PROBE_SECONDS = 3.0  # per connection attempt
PROBE_LIMIT_SECONDS = 5.0  # for all of it, name look-up included, which no socket timeout covers
PROGRESS_SECONDS = 0.1
SPARE_BYTES = 100_000_000  # left free on the disk beside what is fetched


def fetch_entry(source: HubFile, entry: Entry, report: Report) -> StoredFile:
    """A file of the catalog, in the cache: found there, or fetched.

    Unreachable if there is no answer within seconds, LocalInferError if there is another file.
    """
    file = RepoFile(source.file, entry.size, f"sha256:{entry.sha256}")
    if (found := _cached(source, file, report)) is not None:
        return found
    if offline():
        raise LocalInferError("not asked, because HF_HUB_OFFLINE is set")
    commit = _probe(source, entry)
    check_space(missing_bytes(source.repository, commit, (file,)), entry.name)
    (stored,) = fetch_files(source.repository, commit, (file,), entry.file, report)
    return stored


def fetch_files(
    repository: str, commit: str, files: Sequence[RepoFile], what: str, report: Report, verify: bool = False
) -> list[StoredFile]:
    """The files of a repository at a commit, in the cache, each complete and with the hash that the hub has for it.

    What is there is not fetched; with `verify` it is hashed again, and replaced if it is another. `what` names all of
    it in the report. TransferError or Mismatch (hub/transfer.py) if that fails; what has come stays.
    """
    total = sum(file.size for file in files)
    done = 0
    stored = []
    meter = _Meter(what, total, report)
    for file in files:
        place = cache.place_of(repository, commit, file.path, file.blob_name)
        fetched = False
        if verify and file.digest and _is_there(place.pointer, file):
            _check(place, file, report)
        if not _is_there(place.pointer, file):
            _fetch(repository, commit, file, place, report, meter.after(done))
            fetched = True
        done += file.size
        meter(done)
        stored.append(StoredFile(place.pointer, file.size, file.digest, fetched))
    return stored


def read_small(repository: str, commit: str, file: RepoFile, report: Report) -> bytes:
    """What a small file of a repository holds, from the cache if it is there; it is not put there."""
    place = cache.place_of(repository, commit, file.path, file.blob_name)
    if _is_there(place.pointer, file):
        return place.pointer.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        _transfer(repository, commit, file, path, report, lambda done, total: None)
        return path.read_bytes()


def missing_bytes(repository: str, commit: str, files: Sequence[RepoFile]) -> int:
    """Bytes of the files that are still to come."""
    missing = 0
    for file in files:
        place = cache.place_of(repository, commit, file.path, file.blob_name)
        if not _is_there(place.pointer, file) and not _is_there(place.blob, file):
            here = place.partial.stat().st_size if place.partial.exists() else 0
            missing += max(0, file.size - here)
    return missing


def check_space(missing: int, what: str) -> None:
    """LocalInferError if the disk of the cache has not so many bytes free, and a few beside."""
    folder = cache.cache_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing and free < missing + SPARE_BYTES:
        raise LocalInferError(
            f"{folder} has {free / 1e9:.1f} GB free, but pulling {what} takes {missing / 1e9:.1f} GB and a little more",
            "make room (localinfer list, localinfer gc), or set HF_HUB_CACHE to a folder on another disk",
        )


def _is_there(path: Path, file: RepoFile) -> bool:
    try:
        return path.stat().st_size == file.size
    except OSError:
        return False


def _check(place: cache.Place, file: RepoFile, report: Report) -> None:
    kind = file.digest.partition(":")[0]
    found = file_digest(
        place.pointer, kind, lambda done, size: report.progress(f"checking {file.path}", done, size)
    )  # fmt: skip
    if found == file.digest:
        report.say(f"{place.pointer} has the expected {file.digest.replace(':', ' ')}")
        return
    report.say(f"{place.pointer} is not the file that the hub names; it is replaced")
    Path(os.path.realpath(place.pointer)).unlink()


def _fetch(
    repository: str,
    commit: str,
    file: RepoFile,
    place: cache.Place,
    report: Report,
    progress: Callable[[int, int], None],
) -> None:
    cache.prepare(place)
    with locked_file(place.lock, lambda: report.say(f"another process is fetching {file.path}; waiting for it")):
        if not _is_there(place.blob, file):
            place.blob.unlink(missing_ok=True)
            _transfer(repository, commit, file, place.partial, report, progress)
            place.partial.replace(place.blob)
        cache.publish(place)


def _transfer(
    repository: str,
    commit: str,
    file: RepoFile,
    path: Path,
    report: Report,
    progress: Callable[[int, int], None],
) -> None:
    """Completes `path`, checked; TransferError says what to do about a refusal."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repository, file.path, revision=commit, endpoint=endpoint())
    remote = Remote(url, build_hf_headers(library_name="localinfer"), file.size, file.digest)
    try:
        transfer(remote, path, report, progress)
    except TransferError as error:
        raise _explained(error, repository, file) from error


def _explained(error: TransferError, repository: str, file: RepoFile) -> TransferError:
    if error.status in (401, 403):
        hint = f"{endpoint()}/{repository} says who may have it; then: hf auth login (or set HF_TOKEN)"
    elif error.status == 400 and file.size > RESPONSE_LIMIT:
        # https://github.com/huggingface/huggingface_hub/issues/4330
        hint = f"files as large as that may come through Xet only: hf download {repository} {file.path}, and pull again"
    else:
        return error
    return TransferError(error.message, hint, error.status)


class _Meter:
    """Passes progress on, but not more often than anybody can see."""

    def __init__(self, what: str, total: int, report: Report) -> None:
        self._what, self._total, self._report, self._last = what, total, report, 0.0

    def after(self, before: int) -> Callable[[int, int], None]:
        """What a transfer calls, with bytes of its own file; `before` are those of the files before it."""
        return lambda here, _: self(before + here)

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if done == self._total or now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self._report.progress(self._what, done, self._total)


def _cached(source: HubFile, file: RepoFile, report: Report) -> StoredFile | None:
    """The file where any program has put it into the cache; hashed, since nobody may have done that."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repository, source.file, revision=source.revision)
    if not isinstance(found, str) or not _is_there(Path(found), file):
        return None
    digest = file_digest(
        Path(found), "sha256", lambda done, size: report.progress(f"checking {source.file}", done, size)
    )  # fmt: skip
    return StoredFile(Path(found), file.size, digest, fetched=False) if digest == file.digest else None


def _probe(source: HubFile, entry: Entry) -> str:
    """The commit at which the hub has the right file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.repository, source.file, revision=source.revision, endpoint=endpoint())
    asking = _Thread(lambda: get_hf_file_metadata(url, token=None, timeout=PROBE_SECONDS, endpoint=endpoint()))
    if not asking.ended_within(PROBE_LIMIT_SECONDS):
        raise Unreachable(f"{url} cannot be reached: no answer within {PROBE_LIMIT_SECONDS:.0f} seconds", host())
    found = asking.result(url, Reference(source.repository, "", source.revision))
    offered = (found.etag or "").lower()
    if len(offered) == len(entry.sha256) and offered != entry.sha256:
        raise LocalInferError(f"{url} is another file: sha256 {offered}, expected {entry.sha256}")
    return str(found.commit_hash or source.revision)


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

    def result(self, url: str, reference: Reference) -> Any:
        """What the call returned; Unreachable if there was no answer, LocalInferError for a refusal."""
        error = self._error
        if error is None:
            return self._outcome[0]
        if getattr(error, "response", None) is None:
            raise Unreachable(f"{url} cannot be reached: {words(error)}", host()) from error
        raise refusal(error, reference) from error
