"""A GGUF file from an https:// address: resumed where it broke off if the server says that it is still the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.hub.listing import Unreachable, offline
from localinfer.hub.report import Report
from localinfer.hub.transfer import Remote, TransferError, transfer, transport_errors, words

SOURCE = "source.json"
MAGIC = b"GGUF"
PROBE_SECONDS = 10.0
_PART = re.compile(r"-00001-of-(\d{5})(?=\.gguf$)")


class Fetched(NamedTuple):
    """The (first) file, the sha256 of a single one, and the bytes of all."""

    path: Path
    sha256: str
    size: int


def name_of(url: str) -> str:
    """What a model from that address is called: as its file, without the ending."""
    name = _file_name(url)
    return _PART.sub("", name).removesuffix(".gguf")


def fetch(url: str, sha256: str, work: Path, require: Callable[[int], object], report: Report) -> Fetched:
    """Fetches the file, all parts of it if it is the first of several, into `work`.

    `sha256` is what it must be, or "". `require` is called with the bytes that are needed on the disk.
    """
    name = _file_name(url)
    if urlsplit(url).scheme != "https" and not sha256 and not _is_local(url):
        raise UnsupportedError(
            f"{url} is not fetched over plain http: whoever is on the way could change it",
            "use https://, or give the --sha256 that the file must have",
        )
    if offline():
        raise Unreachable("the network is not used, because HF_HUB_OFFLINE is set", urlsplit(url).netloc)
    count = int(found[1]) if (found := _PART.search(name)) else 1
    if sha256 and count > 1:
        raise LocalInferError(f"{name} comes in {count} parts, which one sha256 cannot name")
    size, digest = 0, ""
    for number in range(1, count + 1):
        part = name if count == 1 else _PART.sub(f"-{number:05}-of-{count:05}", name)
        address = url if count == 1 else _with_name(url, part)
        path, digest = _fetch_one(address, work / part, sha256, require, report)
        size += path.stat().st_size
    return Fetched(work / name, digest if count == 1 else "", size)


def _fetch_one(url: str, path: Path, sha256: str, require: Callable[[int], object], report: Report) -> tuple[Path, str]:
    partial = path.with_name(f".{path.name}.partial")
    size, validator = _ask(url)
    source = path.with_name(f".{path.name}.{SOURCE}")
    here = {"url": url, "size": size, "validator": validator}
    if path.exists() and _read(source) == here and (digest := _read(source.with_suffix(".digest"))):
        return path, str(digest)  # an earlier pull of several parts came so far
    if _read(source) != here:
        partial.unlink(missing_ok=True)
        source.write_text(json.dumps(here))
    if size is not None:
        require(size - (partial.stat().st_size if partial.exists() else 0))
    digest = f"sha256:{sha256}" if sha256 else ""
    digest = transfer(
        Remote(url, {}, size, digest, validator),
        partial,
        report,
        lambda done, total: report.progress(path.name, done, total),
    )
    with open(partial, "rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        partial.unlink()
        raise LocalInferError(f"what {url} sends is no GGUF file: it begins with {magic!r}")
    partial.rename(path)
    digest = digest.partition(":")[2]
    source.with_suffix(".digest").write_text(json.dumps(digest))
    return path, digest


def _ask(url: str) -> tuple[int | None, str]:
    """The size that the server announces, None if it does not; and an ETag or a date that tells versions apart."""
    from huggingface_hub import get_session

    client = get_session()
    try:
        answer = client.head(
            url, follow_redirects=True, timeout=PROBE_SECONDS, headers={"Accept-Encoding": "identity"}
        )  # fmt: skip
    except transport_errors(client) as error:
        raise Unreachable(f"{url} cannot be reached: {words(error)}", urlsplit(url).netloc) from error
    if answer.status_code in (405, 501):  # a server that answers GET only
        return None, ""
    if answer.status_code >= 400 and answer.status_code not in (429, 500, 502, 503, 504):
        raise TransferError(f"{url} answers {answer.status_code}", status=answer.status_code)
    if answer.status_code >= 400:
        return None, ""
    length = answer.headers.get("Content-Length", "")
    etag = answer.headers.get("ETag", "")
    # A weak ETag says that the meaning is the same, not the bytes.
    validator = etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified", "")
    return (int(length) if length.isdigit() else None), validator


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _file_name(url: str) -> str:
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    if not name.endswith(".gguf") or "/" in name or name.startswith("."):
        raise UnsupportedError(
            f"{url} is not the address of a .gguf file", "a repository of the Hugging Face hub is named owner/name"
        )
    return name


def _with_name(url: str, part: str) -> str:
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rpartition('/')[0]}/{quote(part)}").geturl()


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
