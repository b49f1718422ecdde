"""The store: one folder per model, with a record and the model's file, or a link to where the model is.

    models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
    models/smollm2-135m/record.json

    models/owner--name--Q4_K_M/model -> ~/.cache/huggingface/hub/models--owner--name/snapshots/COMMIT/name.Q4_K_M.gguf
    models/owner--name--Q4_K_M/record.json

The link leads to the first file of a model, or to the folder of a safetensors one. A model's folder appears under its
final name by one rename, complete and checked, or not at all. Names that begin with a dot are work in progress:

    .incoming-FOLDER    a pull: what it fetches, to be continued, and what it has fetched
    .replaced-FOLDER-N  the record of a version that a newer one has replaced
    .removed-FOLDER-N   a model that is being deleted
    .lock-FOLDER        held by whoever works at the model
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from localinfer.errors import FormatError, LocalInferError
from localinfer.hub.folders import models_folder
from localinfer.hub.lock import locked
from localinfer.hub.names import meant, near
from localinfer.hub.reference import parse_reference

if TYPE_CHECKING:
    from localinfer.hub.catalog import Entry

RECORD = "record.json"
INCOMING, REPLACED, REMOVED = ".incoming-", ".replaced-", ".removed-"
LINK = "model"


class StoredFile(NamedTuple):
    """A file that belongs to a model.

    digest   "sha256:..." or, for small files, git's "git:..." (hub/transfer.py); "" if nothing is known
    fetched  whether localinfer put it there, and so may delete it
    """

    path: Path
    size: int
    digest: str
    fetched: bool


class Installed(NamedTuple):
    """A model in the store; `time` is when it was pulled, ISO 8601 in UTC.

    path      its (first) file, or the folder of a safetensors model
    sha256    of that file; "" for a model of several files, each of which `files` names with its own
    size      bytes of all files
    licence   as the hub says it, "" if it does not
    revision  the commit on the hub, "" for a model from elsewhere
    files     those that lie outside the store's folder
    """

    name: str
    path: Path
    source: str
    sha256: str
    size: int
    time: str
    licence: str = ""
    revision: str = ""
    files: tuple[StoredFile, ...] = ()


def folder_of(name: str) -> Path:
    """The folder that holds, or would hold, the model of that name."""
    # No name leads out of the store; ":" is kept out of paths, where other programs split at it.
    if reference := parse_reference(name):
        plain = "--".join(filter(None, (*reference.repository.split("/"), reference.choice)))
        plain += f"@{quote(reference.revision, safe='')}" if reference.revision else ""
    else:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "-" for c in name)
    if not plain.strip(".") or plain.startswith("."):
        raise LocalInferError(f"{name!r} is no model name", "names look like smollm2:135m, or owner/name:Q4_K_M")
    return models_folder() / plain


def model_file(name: str) -> Path | None:
    """The installed file or folder of that name, or None. Reads no record: this is on the path of every start."""
    folder = folder_of(name)
    try:
        return Path(os.readlink(folder / LINK))
    except OSError:
        pass
    try:
        files = sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith((".gguf", ".safetensors")))
    except OSError:
        return None
    return Path(files[0]) if len(files) == 1 or "-00001-of-" in "".join(files[:1]) else None


class Contents(NamedTuple):
    """What is in the store: models by name, and what is wrong with folders that hold none that can be used."""

    models: list[Installed]
    problems: list[FormatError]


def installed() -> Contents:
    """Everything in the store. A folder that is broken hides no other."""
    try:
        folders = sorted(entry.path for entry in os.scandir(models_folder()) if _is_model(entry))
    except FileNotFoundError:
        folders = []
    found = Contents([], [])
    for folder in folders:
        try:
            model = read_record(Path(folder))
            missing = next((path for path in (model.path, *(f.path for f in model.files)) if not path.exists()), None)
            if missing:
                raise FormatError(f"{missing} is missing", f"localinfer rm {model.name}, and pull it again")
            found.models.append(model)
        except FormatError as error:
            found.problems.append(error)
    found.models.sort(key=lambda model: model.name)
    return found


def unfinished() -> list[str]:
    """Names of models whose pull began and did not end; it may be running."""
    names = {model.name for folder, model in _records() if folder.name.startswith(INCOMING)}
    return sorted(names)


def _is_model(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def read_record(folder: Path) -> Installed:
    """The record in a folder of the store; FormatError if it cannot be read."""
    import json

    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = tuple(
            StoredFile(Path(str(each["path"])), int(each["size"]), str(each["digest"]), bool(each["fetched"]))
            for each in record.get("files", ())
        )
        text = {key: str(record[key]) for key in ("name", "source", "sha256", "time")}
        more = {key: str(record.get(key, "")) for key in ("licence", "revision")}
        return Installed(path=_path(folder, record), size=int(record["size"]), files=files, **text, **more)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{folder / RECORD} cannot be read: {error}", f"move {folder} out of the store and pull the model again"
        ) from error


def _path(folder: Path, record: dict[str, Any]) -> Path:
    if "file" not in record:
        return Path(os.readlink(folder / LINK))
    path = folder / str(record["file"])
    if path.parent != folder:
        raise ValueError(f"file is {record['file']!r}")
    return path


def write_record(folder: Path, model: Installed) -> None:
    """Writes the record of a model, and the link to it if it lies outside `folder`."""
    import json

    record: dict[str, Any] = {"name": model.name}
    if model.path.parent == folder:
        record["file"] = model.path.name
    else:
        (folder / LINK).unlink(missing_ok=True)
        (folder / LINK).symlink_to(model.path.absolute())
    record |= {
        "source": model.source,
        "sha256": model.sha256,
        "size": model.size,
        "time": model.time,
        "licence": model.licence,
        "revision": model.revision,
        "files": [{**each._asdict(), "path": str(each.path)} for each in model.files],
    }
    # A name of its own, then a rename: a record that is written anew is there, the old or the new one, at any moment.
    scratch = folder / f"{RECORD}.new"
    with open(scratch, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(folder / RECORD)


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The model meant by a path or an installed name: a file, or the folder of a safetensors model.

    LocalInferError says what there is otherwise. Nothing but the disk is asked.
    """
    text = os.fspath(name_or_path)
    if not text:
        raise LocalInferError("the name of the model is empty", _alternatives(""))
    path = Path(os.path.expanduser(text))
    if path.is_file():
        return path
    if path.is_dir():
        if is_model_folder(path):
            return path
        raise LocalInferError(
            f"{text} is a folder, not a model file",
            "name the .gguf file in it; a folder that is a model has config.json and .safetensors files",
        )
    if path.exists():
        raise LocalInferError(f"{text} is no regular file", "a model is mapped into memory: copy it to a file first")
    if is_path(text):
        raise LocalInferError(f"there is no file {text}", "check the path; `localinfer list` shows installed models")
    name = full_name(text)
    found = model_file(name)
    if found is None:
        raise LocalInferError(f"{name} is not installed", f"localinfer pull {name}")
    if not found.exists():
        raise LocalInferError(f"{found}, the file of {name}, is missing", f"localinfer pull {name}")
    return found


def is_model_folder(path: Path) -> bool:
    """Whether a folder is a model as the Hugging Face hub has them: config.json beside .safetensors files."""
    return (path / "config.json").is_file() and any(name.endswith(".safetensors") for name in os.listdir(path))


def is_path(text: str) -> bool:
    """Whether this is meant for a path, and not for the name of a model. owner/name is one if it is on the disk."""
    if os.path.exists(text):
        return True
    return text.endswith(".gguf") or (os.sep in text and parse_reference(text) is None)


def full_name(name: str) -> str:
    """The installed model that a person means by a name, or else the model of the catalog; see hub/names.py.

    The name of a repository on the hub is taken as it is. LocalInferError if there is none, or if there are several.
    """
    if model_file(name) is not None:
        return name
    from localinfer.hub.catalog import CATALOG

    found = meant(name, _installed_names()) or meant(name, CATALOG)
    if found is not None:
        return found
    if parse_reference(name):
        return name
    raise LocalInferError(f"there is no model {name}", _alternatives(name))


def catalog_entry(path: Path) -> Entry | None:
    """The entry of the catalog that an installed file was pulled for."""
    from localinfer.hub.catalog import CATALOG

    return next((entry for entry in CATALOG.values() if path == model_file(entry.name)), None)


class Removed(NamedTuple):
    """A model that is gone, the bytes that this freed, and those that others still use."""

    name: str
    freed: int
    kept: int = 0


def remove(name: str) -> Removed:
    """Deletes an installed model. Processes that have it mapped keep their copy.

    In the Hugging Face cache, what localinfer fetched for this model alone is deleted; what was there before stays.
    """
    folder = folder_of(name)
    if not folder.is_dir():
        found = meant(name, _installed_names())
        if found is None:
            raise LocalInferError(f"{name} is not installed", f"installed: {_listed(_installed_names())}")
        name, folder = found, folder_of(found)

    def busy() -> None:
        raise LocalInferError(f"another process is pulling {name}", "wait for it, or end it")

    try:
        with locked(folder, busy):
            # Renamed first: whoever looks meanwhile finds the whole model or none.
            doomed = folder.with_name(f"{REMOVED}{folder.name}-{os.getpid()}")
            folder.rename(doomed)
            return Removed(name, *delete(doomed))
    except OSError as error:
        raise LocalInferError(f"{error.filename or folder} cannot be removed: {error.strerror}") from error


class Freed(NamedTuple):
    """Bytes that deleting something freed, and bytes of files that were left since others use them."""

    freed: int
    kept: int


def delete(folder: Path) -> Freed:
    """Deletes a folder of the store that is out of use, and the files elsewhere that its record alone refers to."""
    from localinfer.hub.cache import discard

    try:
        files = read_record(folder).files
    except FormatError:
        files = ()
    needed = referred_paths(besides=folder)
    freed = kept = 0
    for each in files:
        if each.fetched and each.path not in needed:
            freed += discard(each.path)
        elif each.path.exists():
            kept += each.size
    freed += own_bytes(folder)
    shutil.rmtree(folder)
    return Freed(freed, kept)


def own_bytes(folder: Path) -> int:
    """Bytes of the files in a folder; what its links lead to is not counted."""
    return sum(os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(folder) for name in names)


def referred_paths(besides: Path) -> set[Path]:
    """Paths of the files that models of the store and pulls in progress refer to, `besides` one folder."""
    return {
        each.path
        for folder, record in _records()
        if folder != besides and (not folder.name.startswith(".") or folder.name.startswith(INCOMING))
        for each in record.files
    }


def fetched_paths() -> set[Path]:
    """Paths outside the store of everything that localinfer has put there, for whichever model."""
    return {each.path for _, record in _records() for each in record.files if each.fetched}


def _records() -> Iterator[tuple[Path, Installed]]:
    """Every record that can be read, those of replaced and of unfinished models included."""
    try:
        entries = list(os.scandir(models_folder()))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(FormatError):
                yield Path(entry.path), read_record(Path(entry.path))


def disk_use(model: Installed) -> int:
    """Bytes that a model takes on the disk, each file counted once however many links lead to it."""
    paths = {os.path.realpath(each.path) for each in model.files} or {os.path.realpath(model.path)}
    return sum(os.stat(path).st_blocks * 512 for path in paths if os.path.exists(path))


def _installed_names() -> list[str]:
    return [model.name for model in installed().models]


def _alternatives(name: str) -> str:
    from localinfer.hub.catalog import CATALOG

    have = _installed_names()
    if guesses := near(name, dict.fromkeys([*have, *CATALOG])):
        return f"did you mean {' or '.join(guesses)}? `localinfer list` shows what there is"
    return (
        f"installed: {_listed(have)}; can be pulled: {_listed(CATALOG)}, and owner/name of the Hugging Face hub; "
        "a path to a .gguf file works too"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
