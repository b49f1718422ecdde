"""Reader of safetensors files, alone or split with an index. Nothing is copied that can stay mapped.

The layout (huggingface/safetensors, README "Format"):

    u64       little-endian, length of the header
    header    JSON: {"NAME": {"dtype": "F16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, and perhaps texts by
              key under "__metadata__"
    data      offsets count from its start; tensors lie without gaps or overlaps and fill it to the end of the file

A split model has a file `….safetensors.index.json` whose "weight_map" says which file holds which tensor.

A file is not trusted: every length, shape and offset is checked before it is used, so that a damaged or hostile file
gives a FormatError that says where.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.json_file import read_json_object
from localinfer.formats.mapped import MappedFiles

_DAMAGED = "the file is damaged or incomplete: download it again"
_MAX_HEADER = 100_000_000  # the format's own limit, in bytes
_MAX_DIMENSIONS = 64
_MAX_SIZE = 2**63 - 1

# dtype -> bits of one value (safetensors, `Dtype::bitsize`)
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in a file: row-major, little-endian, `nbytes` bytes from `offset` of the file `path`.

    `dtype` is a key of DTYPE_BITS, `shape` may be empty (one value); `buffer` is a read-only view of the mapped bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int
    buffer: memoryview


class SafetensorsFolder(MappedFiles[StoredTensor]):
    """The tensors of one safetensors file, or of all parts of a split one. Close it, or use it in a `with` statement.

    tensors    by the names in the files, in the order of the files
    metadata   what the files say in `__metadata__`, texts by key (of the first file that says it)
    paths      the files, in order; `file_size` is their size in bytes, all together

    Buffers keep their mapping alive, also after `close`.
    """

    def __init__(self, files: Sequence[_File]) -> None:
        super().__init__(
            (file.path for file in files),
            (file.view.obj for file in files),
            (file.tensors.values() for file in files),
        )
        self.file_size = sum(file.size for file in files)
        self.metadata: dict[str, str] = {}
        for file in files:
            self.metadata = file.metadata | self.metadata


def open_safetensors(path: Path | str) -> SafetensorsFolder:
    """Opens a .safetensors file, or the one model in a folder, in as many parts as its index names.

    A file that an index beside it names opens all parts. Raises FormatError if a file is damaged or the index does not
    fit the files, UnsupportedError for a type of numbers that is not known, LocalInferError if a file cannot be opened
    or a part is missing.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    for index in _indexes(path.parent):
        weight_map = _weight_map(index)
        if path.name in weight_map.values():
            return _open_parts(index, weight_map)
    return SafetensorsFolder([_File(path)])


def _open_folder(folder: Path) -> SafetensorsFolder:
    alone = folder / "model.safetensors"
    if alone.is_file():
        return SafetensorsFolder([_File(alone)])
    if len(indexes := _indexes(folder)) > 1 and (main := folder / "model.safetensors.index.json") in indexes:
        indexes = [main]
    if len(indexes) == 1:
        return _open_parts(indexes[0], _weight_map(indexes[0]))
    files = sorted(entry for entry in os.listdir(folder) if entry.endswith(".safetensors"))
    if len(files) == 1 and not indexes:
        return SafetensorsFolder([_File(folder / files[0])])
    if not files:
        raise LocalInferError(
            f"{folder} has no .safetensors file",
            "weights in other formats (.bin, .pt) may hold programs and are not opened: look for safetensors",
        )
    raise LocalInferError(
        f"{folder} has several models: {', '.join([*files, *(i.name for i in indexes)][:4])}",
        "name the .safetensors file that is meant",
    )


def _indexes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors.index.json"))


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name. The names of files lead nowhere else."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{index}: there is no weight_map that says which file holds which tensor", _DAMAGED)
    for name, file in weight_map.items():
        if not isinstance(file, str) or file in ("", ".", "..") or os.path.basename(file) != file or "\\" in file:
            raise FormatError(f"{index}: tensor {name} should be in a file of the same folder, not in {file!r}")
    return weight_map


def _open_parts(index: Path, weight_map: dict[str, str]) -> SafetensorsFolder:
    paths = [index.parent / name for name in sorted(set(weight_map.values()))]
    if missing := [path.name for path in paths if not path.exists()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise LocalInferError(
            f"{index} names {len(paths)} parts, but {', '.join(missing[:3])}{more} is not there",
            f"put all parts in {index.parent}, or pull the model again",
        )
    folder = SafetensorsFolder([_File(path) for path in paths])
    for name, file in weight_map.items():
        if name not in folder.tensors or folder.tensors[name].path.name != file:
            raise FormatError(
                f"{index}: tensor {name} should be in {file}, but is not",
                "index and parts may belong to different versions of the model: download them again",
            )
    return folder


class _File:
    """One file, mapped, checked and parsed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.view = self._map()
        self.size = len(self.view)
        self.metadata: dict[str, str] = {}
        header_size = self._header_size()
        self.data_start = 8 + header_size
        self.tensors = self._place(self._header(bytes(self.view[8 : self.data_start])))

    def _map(self) -> memoryview:
        if self.path.exists() and not self.path.is_file():
            raise LocalInferError(f"{self.path} is not a file", "give the path of a .safetensors file")
        try:
            with self.path.open("rb") as file:
                if (size := file.seek(0, 2)) < 8:
                    self._fail(f"the file is too short ({size} bytes) to hold tensors", 0)
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise LocalInferError(f"cannot read {self.path}: {error.strerror}") from error

    def _header_size(self) -> int:
        (size,) = struct.unpack("<Q", self.view[:8])
        if bytes(self.view[:20]).startswith(b"version https://git"):
            raise FormatError(
                f"{self.path} is a Git LFS pointer, not the file itself", "run git lfs pull, or download it"
            )
        if not 2 <= size <= min(_MAX_HEADER, self.size - 8):
            self._fail(f"it claims a header of {size} bytes, but has {self.size} bytes (and 100 MB is the limit)", 0)
        return int(size)

    def _header(self, raw: bytes) -> dict[str, Any]:
        if raw[:1] != b"{":
            self._fail(f"the header should begin with '{{', but begins with {raw[:8]!r}", 8)
        try:
            header = json.loads(raw.decode(), object_pairs_hook=self._unique, parse_constant=self._no_number)
        except UnicodeDecodeError as error:
            self._fail("the header is not valid UTF-8", 8 + error.start)
        except RecursionError:
            self._fail("the header nests too deep", 8)
        except json.JSONDecodeError as error:
            self._fail(f"the header is not valid JSON: {error.msg}", 8 + error.pos)
        except ValueError as error:  # a number with thousands of digits
            self._fail(f"the header is not valid JSON: {error}", 8)
        assert isinstance(header, dict), "it begins with a brace"
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            self._fail("__metadata__ should hold texts only", 8)
        self.metadata = metadata
        return header

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            self._fail(f"the header has {twice!r} twice", 8)
        return found

    def _no_number(self, text: str) -> NoReturn:
        self._fail(f"the header has {text}, which is no number of JSON", 8)

    def _place(self, header: dict[str, Any]) -> dict[str, StoredTensor]:
        """Checks that tensors fill the data of the file without gaps or overlaps, and gives each its buffer."""
        tensors = {name: self._tensor(name, entry) for name, entry in header.items()}
        end, before = self.data_start, ""
        for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
            if tensor.offset != end:
                what = "overlaps" if tensor.offset < end else "leaves a gap after"
                where = f"tensor {before}" if before else "the header"
                self._fail(f"tensor {tensor.name} {what} {where}", tensor.offset)
            end, before = tensor.offset + tensor.nbytes, tensor.name
        if end != self.size:
            self._fail(f"the tensors end at byte {end}, but the file has {self.size} bytes", end)
        return tensors

    def _tensor(self, name: str, entry: Any) -> StoredTensor:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            self._fail(f"tensor {name} should be described by dtype, shape and data_offsets", 8)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise UnsupportedError(
                f"{self.path}: tensor {name} holds numbers of type {dtype!r}, which is not known",
                "update localinfer, or download the file again if it may be damaged",
            )
        if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
            self._fail(f"tensor {name} has no possible shape: {str(shape)[:80]}", 8)
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(f"tensor {name} has no possible data_offsets: {str(offsets)[:80]}", 8)
        bits = DTYPE_BITS[dtype]
        for dimension in shape:
            bits *= dimension
        begin, end = self.data_start + offsets[0], self.data_start + offsets[1]
        if bits != 8 * (end - begin):
            self._fail(f"tensor {name} of shape {shape} takes {-(-bits // 8)} bytes, but has {end - begin}", begin)
        if end > self.size:
            self._fail(f"tensor {name} needs bytes {begin} to {end}, but the file has only {self.size}", begin)
        return StoredTensor(name, dtype, tuple(shape), self.path, begin, end - begin, self.view[begin:end])

    def _fail(self, what: str, at: int) -> NoReturn:
        raise FormatError(f"{self.path}: {what} (byte {at})", _DAMAGED)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _MAX_SIZE for v in value
    )
