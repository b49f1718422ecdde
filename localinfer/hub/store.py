"""The store: one folder per model, holding plain files that any other program can use too.

    models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
    models/smollm2-135m/record.json

A model's folder appears under its final name by one rename, complete and checked, or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localinfer.errors import FormatError, LocalInferError
from localinfer.hub.folders import models_folder
from localinfer.hub.lock import locked
from localinfer.hub.names import meant, near

if TYPE_CHECKING:
    from localinfer.hub.catalog import Entry

RECORD = "record.json"


class Installed(NamedTuple):
    """A model in the store; `time` is when it was pulled, ISO 8601 in UTC."""

    name: str
    path: Path
    source: str
    sha256: str
    size: int
    time: str


def folder_of(name: str) -> Path:
    """The folder that holds, or would hold, the model of that name."""
    # No name leads out of the store; ":" is kept out of paths, where other programs split at it.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "-" for c in name)
    if not plain.strip("."):
        raise LocalInferError(f"{name!r} is no model name", "names look like smollm2:135m")
    return models_folder() / plain


def model_file(name: str) -> Path | None:
    """The installed file of that name, or None. Reads no record: this is on the path of every start."""
    try:
        files = [entry.path for entry in os.scandir(folder_of(name)) if entry.name.endswith(".gguf")]
    except OSError:
        return None
    return Path(files[0]) if len(files) == 1 else None


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
            if not model.path.is_file():
                raise FormatError(f"{model.path} is missing", f"localinfer rm {model.name}, and pull it again")
            found.models.append(model)
        except FormatError as error:
            found.problems.append(error)
    found.models.sort(key=lambda model: model.name)
    return found


def _is_model(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def read_record(folder: Path) -> Installed:
    import json

    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        path = folder / str(record["file"])
        if path.parent != folder:
            raise ValueError(f"file is {record['file']!r}")
        text = {key: str(record[key]) for key in ("name", "source", "sha256", "time")}
        return Installed(path=path, size=int(record["size"]), **text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{folder / RECORD} cannot be read: {error}", f"move {folder} out of the store and pull the model again"
        ) from error


def write_record(folder: Path, model: Installed) -> None:
    import json

    record = {
        "name": model.name,
        "file": model.path.name,
        "source": model.source,
        "sha256": model.sha256,
        "size": model.size,
        "time": model.time,
    }
    with open(folder / RECORD, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The model file meant by a path or an installed name; LocalInferError says what there is otherwise."""
    text = os.fspath(name_or_path)
    if not text:
        raise LocalInferError("the name of the model is empty", _alternatives(""))
    path = Path(os.path.expanduser(text))
    if path.is_file():
        return path
    if path.is_dir():
        raise LocalInferError(f"{text} is a folder, not a model file", "name the .gguf file in it")
    if path.exists():
        raise LocalInferError(f"{text} is no regular file", "a model is mapped into memory: copy it to a file first")
    if is_path(text):
        raise LocalInferError(f"there is no file {text}", "check the path; `localinfer list` shows installed models")
    name = full_name(text)
    if found := model_file(name):
        return found
    raise LocalInferError(f"{name} is not installed", f"localinfer pull {name}")


def is_path(text: str) -> bool:
    """Whether this is meant for a path, and not for the name of a model."""
    return os.sep in text or text.endswith(".gguf") or os.path.exists(text)


def full_name(name: str) -> str:
    """The installed model that a person means by a name, or else the model of the catalog; see hub/names.py.

    LocalInferError if there is none, or if there are several.
    """
    if model_file(name) is not None:
        return name
    from localinfer.hub.catalog import CATALOG

    found = meant(name, _installed_names()) or meant(name, CATALOG)
    if found is None:
        raise LocalInferError(f"there is no model {name}", _alternatives(name))
    return found


def catalog_entry(path: Path) -> Entry | None:
    """The entry of the catalog that an installed file was pulled for."""
    from localinfer.hub.catalog import CATALOG

    return next((entry for entry in CATALOG.values() if path == folder_of(entry.name) / entry.file), None)


class Removed(NamedTuple):
    """A model that is gone, and the bytes that it took."""

    name: str
    freed: int


def remove(name: str) -> Removed:
    """Deletes an installed model. Processes that have it mapped keep their copy."""
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
            doomed = folder.with_name(f".removed-{folder.name}-{os.getpid()}")
            folder.rename(doomed)
            freed = sum(entry.stat().st_size for entry in os.scandir(doomed))
            shutil.rmtree(doomed)
    except OSError as error:
        raise LocalInferError(f"{error.filename or folder} cannot be removed: {error.strerror}") from error
    return Removed(name, freed)


def _installed_names() -> list[str]:
    return [model.name for model in installed().models]


def _alternatives(name: str) -> str:
    from localinfer.hub.catalog import CATALOG

    have = _installed_names()
    if guesses := near(name, dict.fromkeys([*have, *CATALOG])):
        return f"did you mean {' or '.join(guesses)}? `localinfer list` shows what there is"
    return f"installed: {_listed(have)}; can be pulled: {_listed(CATALOG)}; a path to a .gguf file works too"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
