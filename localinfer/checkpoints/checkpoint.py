"""A folder as the Hugging Face hub has them, as a model file.

Weights that GGUF holds with the same bytes stay where they are mapped; the others (q and k with their rows in another
order, Gemma's norms, everything that is quantized while it is opened) come from a spool.
"""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path

from localinfer.checkpoints.config import Description, describe
from localinfer.checkpoints.names import Change, change_of, gguf_name, is_constant, is_other_sense, text_name
from localinfer.checkpoints.quantize import RowQuantizer
from localinfer.checkpoints.quantized import Quantized, QuantizedReader, reader_for
from localinfer.checkpoints.rows import Rows
from localinfer.checkpoints.spool import Spool, SpooledTensor
from localinfer.checkpoints.vocabulary import read_vocabulary
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.closing import Closing
from localinfer.formats.json_file import read_json_object
from localinfer.formats.metadata import Metadata, Value
from localinfer.formats.safetensors import SafetensorsFolder, StoredTensor, open_safetensors
from localinfer.kernels.base import Progress, Tensor
from localinfer.kernels.types import TYPES

_SAME_TYPES = ("F32", "F16", "BF16")


class Checkpoint(Closing):
    """An open checkpoint: a ModelFile. Close it, or use it in a `with` statement.

    `notes` are what a person should know: what of the checkpoint is not used, or not understood.
    """

    def __init__(
        self,
        folder: Path,
        stored: SafetensorsFolder,
        description: Description,
        vocabulary: dict[str, Value],
        assembly: _Assembly,
    ) -> None:
        self.folder = folder
        self.paths = stored.paths
        self.file_size = stored.file_size
        self.metadata = Metadata(
            {**description.metadata, "general.name": _name(folder), **vocabulary}, str(folder / "config.json")
        )
        self._stored = stored
        self._spool = assembly.spool
        self.tensors = assembly.tensors
        self.notes = (*description.notes, *assembly.notes)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that GGUF name; FormatError if there is none."""
        if name not in self.tensors:
            raise FormatError(f"{self.folder}: there is no tensor {name}", "the folder may not be a complete model")
        return self.tensors[name]

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors

    def prepare(self, progress: Progress | None = None) -> None:
        """Computes what is not in the files as it is needed. LocalInferError if there is no room for it on the disk.

        Without it, each tensor is computed when its `buffer` or `path` is first read.
        """
        self._spool.fill(progress)

    def drop_pages(self) -> None:
        self._stored.drop_pages()
        self._spool.drop_pages()

    def detach(self) -> None:
        """Metadata is independent of the files already. Gives the temporary disk space back."""
        self._spool.close()
        self._stored.close()

    def close(self) -> None:
        self.tensors = {}
        self.detach()


def open_checkpoint(path: Path, quant: str = "") -> Checkpoint:
    """Opens a folder with config.json and safetensors, or a safetensors file in one.

    `quant` names the type that matrices are quantized to. FormatError if a file is damaged or they contradict each
    other, UnsupportedError for a model that cannot be run, LocalInferError if a file is missing.
    """
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        raise LocalInferError(
            f"{folder} has no config.json, so it is no model as the Hugging Face hub has them",
            "name a .gguf file, or a folder with config.json and .safetensors files",
        )
    config = read_json_object(folder / "config.json")
    description = describe(config, folder / "config.json")
    quantizer = RowQuantizer(quant) if quant else None
    stored = open_safetensors(path)
    try:
        reader = reader_for(config, stored)
        if reader and quantizer:
            raise UnsupportedError(
                f"{folder} is quantized already, and is not quantized again",
                "leave out the type, or take an unquantized version of the model",
            )
        vocabulary = read_vocabulary(folder, config, description.vocab_size)
        return Checkpoint(folder, stored, description, vocabulary, _Assembly(stored, description, quantizer, reader))
    except BaseException:
        stored.close()
        raise


class _Assembly:
    """The tensors of one checkpoint under their GGUF names, and the spool that some of them come from.

    FormatError if two tensors are the same weight, UnsupportedError if one is not known.
    """

    def __init__(
        self,
        stored: SafetensorsFolder,
        description: Description,
        quantizer: RowQuantizer | None,
        reader: QuantizedReader | None,
    ) -> None:
        self.spool = Spool(stored.drop_pages)
        self.notes = list(reader.notes) if reader else []
        self._stored = stored
        self._architecture = description.architecture
        self._heads = description.heads
        self._unused = description.unused
        self._quantizer = quantizer
        sources = self._sources(reader)
        # Some files hold the head although it is the embedding table; transformers then takes the table.
        if description.tied and "token_embd.weight" in sources:
            sources.pop("output.weight", None)
        self.tensors = {gguf: self._tensor(gguf, source) for gguf, source in sources.items()}
        for gguf, values in description.tensors.items():
            self.tensors[gguf] = self._computed(gguf, array("f", values))

    def _sources(self, reader: QuantizedReader | None) -> dict[str, StoredTensor | Quantized]:
        """What each weight of the model is made from, by its GGUF name."""
        stored: dict[str, StoredTensor | Quantized] = {}
        if reader:
            stored |= reader.weights
        stored |= {n: tensor for n, tensor in self._stored.tensors.items() if not reader or n not in reader.used}
        names: dict[str, str] = {}
        unknown: list[str] = []
        senses = False
        for name in stored:
            if is_constant(name) or text_name(name).startswith(self._unused):
                continue
            if is_other_sense(name):
                senses = True
                continue
            gguf = gguf_name(text_name(name), self._architecture)
            if gguf is None:
                unknown.append(name)
            elif gguf in names:
                raise FormatError(f"{self._stored.paths[0]}: tensors {names[gguf]} and {name} are the same weight")
            else:
                names[gguf] = name
        if unknown:
            raise UnsupportedError(
                f"{self._stored.paths[0]}: this {self._architecture} model has {len(unknown)} tensors that are not "
                f"supported: {', '.join(unknown[:4])}",
                "it may be a variant of the architecture; a newer version of localinfer may know it",
            )
        if senses:
            self.notes.append("this model also sees images; here it reads text only")
        return {gguf: stored[name] for gguf, name in names.items()}

    def _tensor(self, gguf: str, source: StoredTensor | Quantized) -> Tensor:
        change = change_of(gguf, self._architecture)
        heads = 0
        if change is Change.ADJACENT_PAIRS:
            heads = self._heads[gguf.split(".")[2]]
            if source.shape[0] % (2 * heads):
                raise FormatError(
                    f"{self._stored.paths[0]}: tensor {gguf} has {source.shape[0]} rows, which are no {heads} heads of "
                    "even size"
                )
        if isinstance(source, Quantized):
            return Rows(source.type, source.shape, source.write_rows).spooled(gguf, self.spool, heads)
        _check(source)
        if change is Change.PLUS_ONE and len(source.shape) == 1:
            return self._computed(gguf, array("f", (value + 1 for value in _floats(source))))
        kind = TYPES[source.dtype]
        plain = Tensor(gguf, kind, source.shape, source.path, source.offset, source.nbytes, source.buffer)
        if self._quantizer and (rows := self._quantizer.rows(plain)):
            return rows.spooled(gguf, self.spool, heads)
        return _stored_rows(plain).spooled(gguf, self.spool, heads) if heads else plain

    def _computed(self, gguf: str, values: array[float]) -> Tensor:
        data = struct.pack(f"<{len(values)}f", *values)
        return SpooledTensor(self.spool, gguf, TYPES["F32"], (len(values),), lambda: iter((data,)))


def _check(source: StoredTensor) -> None:
    """UnsupportedError for a tensor that is not plain numbers."""
    if len(source.shape) not in (1, 2) or 0 in source.shape:
        raise UnsupportedError(f"{source.path}: tensor {source.name} has the shape {source.shape}")
    if source.dtype not in _SAME_TYPES:
        raise UnsupportedError(
            f"{source.path}: tensor {source.name} holds {source.dtype}, and nothing says what these numbers mean",
            "F32, F16 and BF16 are read without a quantization_config in config.json",
        )


def _stored_rows(tensor: Tensor) -> Rows:
    """The rows of a matrix, or the values of a vector, as they lie in the file."""
    size = tensor.nbytes // tensor.shape[0]
    return Rows(tensor.type, tensor.shape, lambda start, count: tensor.buffer[start * size : (start + count) * size])


def _floats(source: StoredTensor) -> array[float]:
    """The values of a small tensor of a type of _SAME_TYPES."""
    data = bytes(source.buffer)
    match source.dtype:
        case "F16":
            return array("f", struct.unpack(f"<{len(data) // 2}e", data))
        case "BF16":  # the upper half of a float32
            wide = bytearray(2 * len(data))
            wide[2::4], wide[3::4] = data[0::2], data[1::2]
            data = bytes(wide)
    return array("f", struct.unpack(f"<{len(data) // 4}f", data))


def _name(folder: Path) -> str:
    """What people call the model: the folder's name, or the repository's in the hub's cache."""
    absolute = Path(os.path.realpath(folder))
    if absolute.parent.name == "snapshots" and absolute.parents[1].name.startswith("models--"):
        return absolute.parents[1].name.rpartition("--")[2]
    return absolute.name
