"""A model with some tensors in another type, without writing the model again."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from localinfer.errors import LocalInferError
from localinfer.formats.closing import Closing
from localinfer.formats.metadata import Metadata
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Progress, Tensor
from localinfer.kernels.types import TYPES, TensorType
from localinfer.quantize.stream import Bytes


class Overlay(Closing):
    """A model file whose tensors are those of `model`, except those in `replaced`. It closes nothing."""

    def __init__(self, model: ModelFile, replaced: Mapping[str, Tensor]) -> None:
        self._model = model
        self.metadata: Metadata = model.metadata
        self.tensors: dict[str, Tensor] = {name: replaced.get(name, tensor) for name, tensor in model.tensors.items()}
        self.paths = model.paths
        self.notes = model.notes
        self.file_size = sum(tensor.nbytes for tensor in self.tensors.values())

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name] if name in self.tensors else self._model.tensor(name)

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors

    def prepare(self, progress: Progress | None = None) -> None:
        self._model.prepare(progress)

    def drop_pages(self) -> None:
        self._model.drop_pages()

    def detach(self) -> None:
        self._model.detach()

    def close(self) -> None:
        self.tensors = {}


class Scratch:
    """Tensors in a file that nobody sees and that goes with this object. Use it in a `with` statement."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="localinfer-quantize-")  # noqa: SIM115
        self._maps: list[mmap.mmap] = []

    def keep(self, name: str, kind: str, shape: tuple[int, ...], data: Bytes) -> Tensor:
        """Writes a tensor; what comes back can be loaded by a backend. LocalInferError if there is no room."""
        page = mmap.ALLOCATIONGRANULARITY
        try:
            offset = -(-os.fstat(self._file.fileno()).st_size // page) * page
            view = memoryview(data).cast("B")
            written = 0
            while written < len(view):
                written += os.pwrite(self._file.fileno(), view[written:], offset + written)
        except OSError as error:
            raise LocalInferError(
                f"cannot write to {tempfile.gettempdir()}: {error.strerror}", "TMPDIR names another folder"
            ) from error
        tensor_type: TensorType = TYPES[kind]
        count = math.prod(shape[:-1]) * tensor_type.row_bytes(shape[-1])
        mapped = mmap.mmap(self._file.fileno(), count, prot=mmap.PROT_READ, offset=offset)
        self._maps.append(mapped)
        path = Path(f"/dev/fd/{self._file.fileno()}")
        return Tensor(name, tensor_type, shape, path, offset, count, memoryview(mapped))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._maps = []
        self._file.close()
