"""A model of the Hugging Face hub, into the hub's own cache; the store's record refers to it there."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from localinfer.errors import LocalInferError
from localinfer.hub import huggingface, store
from localinfer.hub.cache import place_of, write_ref
from localinfer.hub.choice import Choice, choose
from localinfer.hub.estimate import Estimate, estimate_by_config
from localinfer.hub.listing import Listing, Unreachable, host, list_cached, list_repository
from localinfer.hub.reference import Reference, parse_reference
from localinfer.hub.report import Report, in_words
from localinfer.hub.store import INCOMING, REPLACED, Installed, StoredFile, folder_of, read_record, write_record
from localinfer.hub.workspace import disk_errors, now, publish, unused_folder, working

PROVENANCE = ".provenance.json"
LARGEST_PROVENANCE = 64_000_000


class HubPlan(NamedTuple):
    """What pulling a repository of the hub would do.

    name     what the model will be called
    missing  bytes that are still to come
    quality  what the maker of a quantized file measured on it, by name; empty if nothing is said
    """

    name: str
    listing: Listing
    choice: Choice
    missing: int
    quality: dict[str, float]


def plan_reference(reference: Reference, memory: int | None, report: Report, listing: Listing | None = None) -> HubPlan:
    """What pulling a reference would do; the hub is asked, unless its listing is given.

    LocalInferError if it cannot be done.
    """
    listing = listing or list_repository(reference, report)
    choice = choose(listing, reference.choice, memory)
    label = "" if choice.candidate.is_folder else choice.candidate.label
    name = str(Reference(listing.repository, label, reference.revision))
    if choice.candidate.is_folder:
        choice = choice._replace(estimate=_estimate_folder(listing, choice, report))
    quality = _quality(listing, choice, report)
    missing = huggingface.missing_bytes(listing.repository, listing.commit, choice.candidate.files)
    return HubPlan(name, listing, choice, missing, quality)


def _estimate_folder(listing: Listing, choice: Choice, report: Report) -> Estimate:
    """What the model's own config.json says of its keys and values."""
    wanted = [file for file in choice.candidate.files if file.path == "config.json"]
    text = huggingface.read_small(listing.repository, listing.commit, wanted[0], report)
    try:
        config: Any = json.loads(text)
        return estimate_by_config(choice.estimate, config)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return choice.estimate  # of another form: whoever opens the model will say so


def _quality(listing: Listing, choice: Choice, report: Report) -> dict[str, float]:
    """The numbers of the quality report that lies beside a file quantized by localinfer."""
    sidecars = [file for file in choice.candidate.files if file.path.endswith(PROVENANCE)]
    if not sidecars or sidecars[0].size > LARGEST_PROVENANCE:
        return {}
    text = huggingface.read_small(listing.repository, listing.commit, sidecars[0], report)
    try:
        found: Any = json.loads(text)["quality"]
        return {str(key): float(value) for key, value in found.items() if isinstance(value, int | float)}
    except (ValueError, KeyError, TypeError, AttributeError):  # somebody else's file of that name
        return {}


def describe(plan: HubPlan, memory: int | None, runs: Collection[str] | None = None) -> list[str]:
    """What people should know before it begins: what is taken and why, how much of it, its licence, its memory.

    `runs` are the architectures (of GGUF files) and classes (of config.json) that can be run; None is not known.
    """
    listing, choice, missing = plan.listing, plan.choice, plan.missing
    size = choice.candidate.size
    count = len(choice.candidate.files)
    fetch = "all of it is here" if not missing else f"{in_words(missing)} to fetch"
    if 0 < missing < size:
        fetch += f", {in_words(size - missing)} are here already"
    lines = [
        f"{plan.name}: {in_words(size)} in {count} file{'s' if count > 1 else ''}, {fetch} ({choice.why})",
        f"licence: {listing.licence or 'the repository does not say'}; revision {listing.commit[:12]}",
    ]
    free = "" if memory is None else f"; {in_words(memory)} are free"
    verdict = "" if memory is None or choice.estimate.total <= memory else ": it does not fit now"
    lines.append(f"memory: {choice.estimate}{free}{verdict}")
    kind = listing.model_class if choice.candidate.is_folder else listing.architecture
    if runs is not None and kind and kind not in runs:
        lines.append(f"{kind} models cannot be run by this version of localinfer")
    if plan.quality:
        lines.append(f"quality, as its maker measured it: {', '.join(f'{k} {v:.4g}' for k, v in plan.quality.items())}")
    return lines


def pull_reference(
    reference: Reference, verify: bool, memory: int | None, report: Report, runs: Collection[str] | None = None
) -> Installed:
    """Installs the model that a reference means; the rest is as `pull` has it."""
    have = _installed_already(reference)
    if have is not None and have.revision == reference.revision and not verify:
        return have  # a commit cannot change
    try:
        plan = plan_reference(reference, memory, report)
    except Unreachable as error:
        if have is not None and not verify:
            report.say(f"{error.message}; {have.name} is installed, and may not be the latest")
            return have
        plan = _plan_of_cached(reference, memory, report, error)
    listing, choice = plan.listing, plan.choice
    for line in describe(plan, memory, runs):
        report.say(line)
    folder = folder_of(plan.name)
    with disk_errors(folder), working(folder, report) as work:
        huggingface.check_space(plan.missing, plan.name)
        files = choice.candidate.files
        ours = store.fetched_paths()
        _note_progress(work, plan, ours)
        stored = [
            each._replace(fetched=each.fetched or each.path in ours)
            for each in huggingface.fetch_files(listing.repository, listing.commit, files, plan.name, report, verify)
        ]
        write_ref(listing.repository, listing.revision, listing.commit)
        write_record(work, _record(plan, stored))
        return publish(work, folder, report)


def _plan_of_cached(reference: Reference, memory: int | None, report: Report, error: Unreachable) -> HubPlan:
    """A plan from what the cache has, where the hub gives no answer; `error` again if that is not a whole model."""
    listing = list_cached(reference)
    if listing is None:
        raise error
    try:
        plan = plan_reference(reference, memory, report, listing)
    except LocalInferError:
        raise error from None
    report.say(f"{error.message}; what the Hugging Face cache has is used, and may not be the latest")
    return plan


def _installed_already(reference: Reference) -> Installed | None:
    """The installed model that a reference means, complete; None if there is none or if several may be meant."""

    def is_meant(model: Installed) -> bool:
        own = parse_reference(model.name)
        return (
            own is not None
            and own.repository.lower() == reference.repository.lower()
            and (not reference.choice or own.choice.lower() == reference.choice.lower())
            and own.revision == reference.revision
        )

    fitting = [model for model in store.installed().models if is_meant(model)]
    return fitting[0] if len(fitting) == 1 else None


def _note_progress(work: Path, plan: HubPlan, ours: set[Path]) -> None:
    """Writes down what is going to be fetched, so that what was is known if this process dies."""
    listing = plan.listing
    stored = []
    for file in plan.choice.candidate.files:
        pointer = place_of(listing.repository, listing.commit, file.path, file.blob_name).pointer
        stored.append(StoredFile(pointer, file.size, file.digest, not pointer.exists() or pointer in ours))
    _keep_account(work, {each.path for each in stored})
    write_record(work, _record(plan, stored))


def _keep_account(work: Path, wanted: set[Path]) -> None:
    """Hands files that an earlier, interrupted pull fetched, and that are no longer wanted, over to `gc`."""
    try:
        before = read_record(work)
    except LocalInferError:
        return
    if any(each.fetched and each.path not in wanted and each.path.exists() for each in before.files):
        account = unused_folder(work.parent, f"{REPLACED}{work.name.removeprefix(INCOMING)}")
        account.mkdir()
        write_record(account, before)


def _record(plan: HubPlan, stored: Sequence[StoredFile]) -> Installed:
    candidate = plan.choice.candidate
    models = [each for each in stored if not each.path.name.endswith(".json")]
    only = len(models) == 1 and not candidate.is_folder and stored[0].digest.startswith("sha256:")
    return Installed(
        name=plan.name,
        path=_snapshot(stored[0].path, candidate.files[0].path) if candidate.is_folder else stored[0].path,
        source=f"{host()} ({plan.listing.repository}@{plan.listing.commit})",
        sha256=stored[0].digest.partition(":")[2] if only else "",
        size=candidate.size,
        time=now(),
        licence=plan.listing.licence,
        revision=plan.listing.commit,
        files=tuple(stored),
    )


def _snapshot(pointer: Path, file: str) -> Path:
    """The folder of the snapshot in which `pointer` is the file of that path."""
    return pointer.parents[file.count("/")]
