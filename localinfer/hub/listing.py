"""What the Hugging Face hub says about a repository: its files with sizes and hashes, its licence, its model.

Everything that is asked of the hub's API goes through here, with its own library, and what goes wrong gets words.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from localinfer.errors import LocalInferError
from localinfer.hub import transfer
from localinfer.hub.cache import snapshot
from localinfer.hub.reference import Reference
from localinfer.hub.report import Report
from localinfer.hub.transfer import LONGEST_REQUESTED_WAIT, TRANSIENT, requested_wait, transport_errors, words

TRIES = 5
SHA256_DIGITS, GIT_DIGITS = 64, 40
Answer = TypeVar("Answer")


class Unreachable(LocalInferError):
    """`host` gives no answer, perhaps because this machine has no network."""

    def __init__(self, message: str, host: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.host = host


class RepoFile(NamedTuple):
    """A file of a repository: its path there, its bytes, and its digest as hub/transfer.py writes them.

    Large files have their sha256; small ones, which the hub keeps in git, have git's hash.
    """

    path: str
    size: int
    digest: str

    @property
    def blob_name(self) -> str:
        """How the Hugging Face cache calls the file."""
        return self.digest.partition(":")[2] or "unknown"


class Listing(NamedTuple):
    """A repository at one commit.

    revision       the branch or tag that was asked for; "main" if none was
    licence        as the hub has it ("apache-2.0"); "" if it says none
    gated          whether it asks people to agree to something first
    architecture   general.architecture of its GGUF files, as the hub read it; "" if it did not
    model_class    the class that config.json names, likewise
    parameters     number of weights, 0 if not known
    context        tokens that the model is made for, 0 if not known
    """

    repository: str
    commit: str
    revision: str
    files: tuple[RepoFile, ...]
    licence: str = ""
    gated: bool = False
    architecture: str = ""
    model_class: str = ""
    parameters: int = 0
    context: int = 0


def offline() -> bool:
    """Whether the hub must not be asked: HF_HUB_OFFLINE, as huggingface_hub read it or as it stands now."""
    from huggingface_hub import constants

    switched = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return bool(constants.HF_HUB_OFFLINE) or switched.upper() in ("1", "ON", "YES", "TRUE")


def endpoint() -> str:
    """The address of the hub. Read anew: the library keeps what stood there when it was imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def list_repository(reference: Reference, report: Report) -> Listing:
    """What the hub has under a name. LocalInferError if there is nothing that can be had."""
    info = ask(lambda api: api.model_info(
        reference.repository, revision=reference.revision or None, files_metadata=True
    ), reference, report)  # fmt: skip
    files = tuple(
        RepoFile(each.rfilename, _size(each), _digest(each))
        for each in info.siblings or ()
        if each.blob_id and _size(each) is not None
    )
    card = info.card_data.to_dict() if info.card_data else {}
    gguf = info.gguf if isinstance(info.gguf, dict) else {}
    config = info.config if isinstance(info.config, dict) else {}
    return Listing(
        repository=info.id,
        commit=info.sha,
        revision=reference.revision or "main",
        files=files,
        licence=licence_of(card, info.tags or ()),
        gated=bool(info.gated),
        architecture=str(gguf.get("architecture") or ""),
        model_class=str(next(iter(config.get("architectures") or ()), "")),
        parameters=int(gguf.get("total") or (info.safetensors.total if info.safetensors else 0) or 0),
        context=int(gguf.get("context_length") or 0),
    )


def list_cached(reference: Reference) -> Listing | None:
    """The same of what the cache has, without asking anybody; None if it has nothing of it."""
    revision = reference.revision or "main"
    commit, found = snapshot(reference.repository, revision)
    files = tuple(RepoFile(each.path, each.size, _digest_of_blob(each.blob_name)) for each in found)
    return Listing(reference.repository, commit, revision, files) if files else None


def _digest_of_blob(name: str) -> str:
    kind = {SHA256_DIGITS: "sha256", GIT_DIGITS: "git"}.get(len(name))
    return f"{kind}:{name}" if kind else ""


def _size(file: Any) -> Any:
    return file.lfs.size if file.lfs else file.size


def _digest(file: Any) -> str:
    return f"sha256:{file.lfs.sha256.lower()}" if file.lfs else f"git:{file.blob_id.lower()}"


def licence_of(card: dict[str, Any], tags: Any) -> str:
    """The licence that a model card or the tags of a repository name."""
    named = card.get("license_name") or card.get("license")
    if isinstance(named, list):
        named = ", ".join(map(str, named))
    return str(named or next((tag.partition(":")[2] for tag in tags if tag.startswith("license:")), ""))


def ask(call: Callable[[Any], Answer], reference: Reference | None, report: Report) -> Answer:
    """What `call`, given huggingface_hub's HfApi, returns; asked again where that may help.

    Unreachable if there is no answer; LocalInferError for a refusal, with what to do about it.
    """
    if offline():
        raise Unreachable("the hub is not asked, because HF_HUB_OFFLINE is set", host(), "unset HF_HUB_OFFLINE")
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # It says on standard error what it tries again; we say so ourselves.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    # ValueError: an answer that is no JSON
    failures: tuple[type[Exception], ...] = (ValueError, *transport_errors(get_session()))
    api = HfApi(endpoint=endpoint(), library_name="localinfer")
    for attempt in range(TRIES):
        try:
            return call(api)
        except HfHubHTTPError as error:
            status = error.response.status_code
            wait = requested_wait(error.response.headers)
            if status not in TRANSIENT or attempt == TRIES - 1 or (wait or 0) > LONGEST_REQUESTED_WAIT:
                raise refusal(error, reference) from error
            wait = transfer.FIRST_WAIT * 2**attempt if wait is None else wait
            report.say(f"{host()} answers {status}; trying again in {wait:.0f} s")
            time.sleep(wait)
        except HFValidationError as error:
            raise LocalInferError(f"{reference} is no name of a repository: {error}") from error
        except failures as error:
            if attempt >= 1:
                hint = "check the network and the proxy; what is installed works without (localinfer list)"
                raise Unreachable(f"{host()} cannot be reached: {words(error)}", host(), hint) from error
            time.sleep(transfer.FIRST_WAIT)
    raise AssertionError("unreachable")


def refusal(error: Any, reference: Reference | None) -> LocalInferError:
    """Words for what the hub does not give."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = error.response.status_code
    page = f"{endpoint()}/{reference.repository}" if reference else endpoint()
    if isinstance(error, GatedRepoError):
        return LocalInferError(
            f"{reference} is gated: its owner asks people to agree to something first ({status})",
            f"agree at {page}, then log in: hf auth login (or set HF_TOKEN)",
        )
    if isinstance(error, RevisionNotFoundError):
        return LocalInferError(
            f"{reference and reference.repository} has no revision {reference and reference.revision}",
            f"{page}/commits shows its branches and commits",
        )
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return LocalInferError(
            f"the hub has no repository {reference and reference.repository}, or it is private",
            "localinfer search WORD looks for one; for a private one: hf auth login",
        )
    if status in (401, 403):
        return LocalInferError(
            f"{page} answers {status}: {error.response.headers.get('X-Error-Message') or 'the token is not accepted'}",
            "hf auth login, or check HF_TOKEN",
        )
    return LocalInferError(f"{page} answers {status}", "try again later")


def host() -> str:
    """The hub's address without what goes without saying."""
    return endpoint().removeprefix("https://")
