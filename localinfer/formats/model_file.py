"""What engine and commands ask of a model on disk, whatever format it has."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from localinfer.formats.metadata import Metadata
from localinfer.kernels.base import Progress, Tensor


class ModelFile(Protocol):
    """An open model: a TensorSource with metadata. Close it, or use it in a `with` statement.

    metadata   key-value pairs under GGUF's names (general.architecture, llama.block_count, tokenizer.ggml.…)
    tensors    by GGUF's names; shapes are `(rows, cols)`
    paths      the files that make up the model, in order; `file_size` is their size in bytes, all together
    notes      what a person should know before the model is used

    Whatever the format, names and layouts are those that llama.cpp's converter writes: models/ knows no others.
    """

    metadata: Metadata
    tensors: dict[str, Tensor]
    paths: tuple[Path, ...]
    file_size: int
    notes: tuple[str, ...]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name; FormatError if there is none."""
        ...

    def has_tensor(self, name: str) -> bool: ...

    def prepare(self, progress: Progress | None = None) -> None:
        """Computes bytes of tensors that are not in a file as they are, which takes time; with progress.

        Who does not call it waits when `Tensor.buffer` or `Tensor.path` is read. LocalInferError if there is no room.
        """
        ...

    def drop_pages(self) -> None:
        """Takes mapped pages that were read so far out of this process's memory; what is read again comes back."""
        ...

    def detach(self) -> None:
        """Makes metadata independent of the files, which may then change. From now on tensors must not be read."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
