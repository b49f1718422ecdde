"""What GGUF and safetensors files have in common: tensors by name, in files that are mapped into memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from localinfer.errors import FormatError
from localinfer.formats.closing import Closing


class _InFile(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...


Stored = TypeVar("Stored", bound=_InFile)


class MappedFiles(Closing, Generic[Stored]):
    """The tensors of the files of one model, by name, in file order. `maps` are the files' mappings."""

    def __init__(self, paths: Iterable[Path], maps: Iterable[Any], parts: Iterable[Iterable[Stored]]) -> None:
        """`parts` are the tensors of each of `paths`. FormatError if two have the same name."""
        self.paths = tuple(paths)
        self.tensors: dict[str, Stored] = {}
        self._maps = list(maps)
        for path, part in zip(self.paths, parts, strict=True):
            for tensor in part:
                if tensor.name in self.tensors:
                    raise FormatError(
                        f"{path}: tensor {tensor.name} is also in {self.tensors[tensor.name].path.name}",
                        "the parts may belong to different models: download them again",
                    )
                self.tensors[tensor.name] = tensor

    def tensor(self, name: str) -> Stored:
        """The tensor of that name; FormatError if there is none."""
        if name not in self.tensors:
            raise FormatError(
                f"{self.paths[0]}: there is no tensor {name}", "the file may be incomplete or not a full model"
            )
        return self.tensors[name]

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors

    def drop_pages(self) -> None:
        """Takes the pages that were read so far out of this process's memory; what is read again comes back.

        For one small vector the system maps 64 KiB, so that after looking at all of them a process holds megabytes.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Lets go of the mapped memory; it is given back when the last buffer that was handed out is gone."""
        self.tensors = {}
        self._maps = []
