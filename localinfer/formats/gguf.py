"""Reader of GGUF files, versions 2 and 3, also split into parts. Nothing is copied that can stay mapped.

The layout (GGUF specification, ggml repository, docs/gguf.md), all little-endian:

    header    "GGUF", u32 version, u64 number of tensors, u64 number of key-value pairs
    pairs     string key, u32 value type, value
    tensors   string name, u32 number of dimensions, u64 dimensions (fastest-varying first), u32 tensor type,
              u64 offset into the data section
    data      starts at the next multiple of general.alignment (32 if not given), and so does each tensor in it

A string is a u64 length and that many bytes of UTF-8. An array is a u32 value type, a u64 count, and the values.

A file is not trusted: every count, length and offset is checked against the size of the file before it is used,
so that a damaged or hostile file gives a FormatError that says where. A file that another program shortens while it is
mapped ends a process that reads behind its new end; who keeps a file for long calls `GGUFFile.detach`.
"""

from __future__ import annotations

import mmap
import re
import struct
from array import array
from pathlib import Path
from typing import Any, NoReturn

from localinfer.errors import FormatError, LocalInferError, MemoryPlanError, UnsupportedError
from localinfer.formats.mapped import MappedFiles
from localinfer.formats.metadata import Metadata, Value
from localinfer.kernels.base import Progress, Tensor
from localinfer.kernels.host.memory import copy_in_place
from localinfer.kernels.host.strings import StringBoundsError, scan_strings
from localinfer.kernels.types import BY_ID, TensorType

_DAMAGED = "the file is damaged or incomplete: download it again"
_HEADER_BYTES = 24
_DEFAULT_ALIGNMENT = 32
_MAX_NAME = 65535  # the specification's limit for keys
_MAX_DIMENSIONS = 4
_MAX_NESTING = 8
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

# Value types by id; for numbers the typecode of struct and array, and the size in bytes.
_NUMBERS = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# What files that people take for GGUF begin with, and what to tell them.
_OTHER_FILES = (
    (b"lmgg", "this is a GGML file from before GGUF existed: look for a GGUF version of the model"),
    (b"fmgg", "this is a GGML file from before GGUF existed: look for a GGUF version of the model"),
    (b"tjgg", "this is a GGML file from before GGUF existed: look for a GGUF version of the model"),
    (b"FUGG", "this looks like a GGUF file written with its bytes swapped: look for a little-endian version"),
    (b"PK\3\4", "this is a zip archive, perhaps a PyTorch checkpoint: look for a GGUF version of the model"),
    (b"version https://git-lfs", "this is a Git LFS pointer, not the file itself: run git lfs pull, or download it"),
    (b"<", "this looks like a web page: the download may have needed a login"),
)
# Tensor types that existed once; their files must be converted again.
_REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFFile(MappedFiles[Tensor]):
    """An open GGUF model: a TensorSource. Close it, or use it in a `with` statement.

    metadata   key-value pairs (of the first part, if the model is split)
    tensors    by name, in file order; shapes are GGUF's dimensions reversed, so `(rows, cols)`
    paths      the files that make up the model, in order; `file_size` is their size in bytes, all together

    Tensor buffers and string arrays keep their mapping alive, also after `close`.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, parts: list[_Part]) -> None:
        super().__init__(
            (part.path for part in parts),
            (part.view.obj for part in parts),
            (part.tensors.values() for part in parts),
        )
        first = parts[0]
        self.version = first.version
        self.alignment = first.alignment
        self.file_size = sum(part.size for part in parts)
        self._header_sizes = [part.data_start for part in parts]
        self._first, self._encoded = first.view, first.encoded
        self.metadata = Metadata(first.values, str(first.path))

    def encoded(self, key: str) -> bytes:
        """A metadata value as it lies in the file: its value type and its bytes, for a copy that loses nothing."""
        begin, end = self._encoded[key]
        return bytes(self._first[begin:end])

    def prepare(self, progress: Progress | None = None) -> None:
        """Nothing: all bytes of tensors are in the file."""

    def detach(self) -> None:
        """Copies metadata and strings out of the files, which may then be shortened, overwritten or deleted.

        Buffers of tensors stay mapped: from now on they must not be read. Call it once, when the model is loaded.
        LocalInferError if memory is short.
        """
        try:
            for mapped, size in zip(self._maps, self._header_sizes, strict=True):
                copy_in_place(mapped, size)
        except OSError as error:
            raise MemoryPlanError(f"there is no memory to copy the metadata of {self.paths[0]}") from error
        self._maps = []  # dropping pages of a copy would lose them

    def close(self) -> None:
        super().close()
        self._first, self._encoded = memoryview(b""), {}
        self.metadata = Metadata({}, str(self.paths[0]))


def open_gguf(path: Path | str) -> GGUFFile:
    """Opens a GGUF file; any part of a split one opens all of them.

    Raises FormatError if a file is damaged or not GGUF, UnsupportedError if it is of a version, byte order or
    tensor type that is not read, LocalInferError if it cannot be opened or a part is missing.
    """
    part = _Part(Path(path))
    count = part.split_count
    if count <= 1:
        return GGUFFile([part])
    match = _PART_NAME.fullmatch(part.path.name)
    if match is None or int(match["count"]) != count:
        raise FormatError(
            f"{part.path} is part {part.split_number + 1} of {count} of a model, but its name does not say so",
            f"name the parts like model-00001-of-{count:05}.gguf and put them in one folder",
        )
    paths = [part.path.with_name(f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise LocalInferError(
            f"{part.path} is one of {count} parts, but {', '.join(missing[:3])}{more} is not there",
            f"put all parts in {part.path.parent}",
        )
    parts = [part if p == part.path else _Part(p) for p in paths]
    for i, p in enumerate(parts):
        if (p.split_number, p.split_count) != (i, count):
            raise FormatError(
                f"{p.path} says inside that it is part {p.split_number + 1} of {p.split_count}",
                "restore the names that the parts had, or download them again",
            )
    found = sum(len(p.tensors) for p in parts)
    if parts[0].split_tensors not in (None, found):
        raise FormatError(
            f"{parts[0].path}: the model should have {parts[0].split_tensors} tensors, but its parts have {found}",
            "the parts may belong to different models: download them again",
        )
    return GGUFFile(parts)


class _Part:
    """One file, mapped, checked and parsed. `position` is where reading stands, in bytes from the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.view = self._map()
        self.size = len(self.view)
        self.position = 0
        self.version, tensor_count, pair_count = self._read_header()
        self.values: dict[str, Value] = {}
        self.encoded: dict[str, tuple[int, int]] = {}  # where each value, its type before it, begins and ends
        for i in range(pair_count):
            self._read_pair(i, pair_count)
        self.alignment = self._small_int("general.alignment", _DEFAULT_ALIGNMENT)
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            self._fail(f"general.alignment is {self.alignment}, which is not a power of two")
        self.split_number = self._small_int("split.no", 0)
        self.split_count = self._small_int("split.count", 1)
        self.split_tensors = self._small_int("split.tensors.count", 0) if "split.tensors.count" in self.values else None
        infos = [self._read_tensor_info(i, tensor_count) for i in range(tensor_count)]
        self.data_start = min(self.size, -(-self.position // self.alignment) * self.alignment)
        self.tensors = self._place_tensors(infos)

    def _map(self) -> memoryview:
        if self.path.exists() and not self.path.is_file():
            raise LocalInferError(f"{self.path} is not a file", "give the path of a .gguf file")
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < _HEADER_BYTES:
                    self._fail(f"the file is too short ({file.tell()} bytes) to be a GGUF model", 0)
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise LocalInferError(f"cannot read {self.path}: {error.strerror}") from error

    def _read_header(self) -> tuple[int, int, int]:
        start = bytes(self.view[:_HEADER_BYTES])
        if start[:4] != b"GGUF":
            hint = next((hint for magic, hint in _OTHER_FILES if start.startswith(magic)), _DAMAGED)
            raise FormatError(f"{self.path} is not a GGUF file: it begins with {start[:8]!r}", hint)
        version, tensor_count, pair_count = struct.unpack("<IQQ", start[4:])
        if version & 0xFFFF == 0 and version:
            raise UnsupportedError(
                f"{self.path} is a big-endian GGUF file, made for another kind of processor",
                "look for a little-endian version of the model, or convert it with gguf-convert-endian",
            )
        if version not in (2, 3):
            raise UnsupportedError(
                f"{self.path} is of GGUF version {version}; versions 2 and 3 can be read",
                "update localinfer" if version > 3 else "look for a newer version of the model, or convert it again",
            )
        self.position = _HEADER_BYTES
        self._check_count(pair_count, _MIN_PAIR_BYTES, "key-value pairs", 16)
        self._check_count(tensor_count, _MIN_TENSOR_BYTES, "tensors", 8)
        return version, tensor_count, pair_count

    def _read_pair(self, index: int, count: int) -> None:
        start = self.position
        key = self._name(f"key {index + 1} of {count}")
        if key in self.values:
            self._fail(f"key {key} occurs twice", start)
        begin = self.position
        self.values[key] = self._value(self._number("I", 4, f"the type of {key}"), key, 0)
        self.encoded[key] = (begin, self.position)

    def _value(self, kind: int, key: str, depth: int) -> Value:
        if kind in _NUMBERS:
            number: int | float = self._number(*_NUMBERS[kind], key)
            return number
        if kind == _BOOL:
            value = self._number("B", 1, key)
            if value > 1:
                self._fail(f"{key} should be true or false, but is {value}", self.position - 1)
            return bool(value)
        if kind == _STRING:
            return self._string(key).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(key, depth)
        self._fail(f"{key} has the unknown value type {kind}", self.position - 4)

    def _array(self, key: str, depth: int) -> Value:
        kind = self._number("I", 4, f"the item type of {key}")
        count = self._number("Q", 8, f"the number of items of {key}")
        if kind in _NUMBERS:
            typecode, size = _NUMBERS[kind]
            numbers: array[Any] = array(typecode)
            numbers.frombytes(self._bytes(count * size, key))
            return numbers
        if kind == _BOOL:
            flags = self._bytes(count, key)
            if bytes(flags).translate(None, b"\0\1"):
                self._fail(f"{key} should hold only true and false, but has other bytes", self.position - count)
            return flags.cast("?")
        if kind == _STRING:
            self._check_count(count, 8, f"strings in {key}", self.position - 8)
            try:
                strings, self.position = scan_strings(self.view, self.position, count)
            except StringBoundsError as error:
                self._fail(f"string {error.index + 1} of {count} in {key} runs past the end of the file", error.offset)
            return strings
        if kind == _ARRAY:
            if depth == _MAX_NESTING:
                self._fail(f"{key} has arrays nested more than {_MAX_NESTING} deep", self.position - 12)
            self._check_count(count, 12, f"arrays in {key}", self.position - 8)
            return tuple(self._array(key, depth + 1) for _ in range(count))
        self._fail(f"{key} has the unknown item type {kind}", self.position - 12)

    def _read_tensor_info(self, index: int, count: int) -> tuple[str, TensorType, tuple[int, ...], int]:
        """Name, type, shape (rows first) and offset into the data section."""
        name = self._name(f"the name of tensor {index + 1} of {count}")
        start = self.position
        n_dimensions = self._number("I", 4, f"the number of dimensions of tensor {name}")
        if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
            self._fail(f"tensor {name} has {n_dimensions} dimensions instead of 1 to {_MAX_DIMENSIONS}", start)
        dimensions = struct.unpack(f"<{n_dimensions}Q", self._bytes(8 * n_dimensions, f"the shape of tensor {name}"))
        if 0 in dimensions:
            self._fail(f"tensor {name} is empty: its shape is {dimensions[::-1]}", start + 4)
        type_id = self._number("I", 4, f"the type of tensor {name}")
        if type_id not in BY_ID:
            where = f"{self.path}: tensor {name} is of type"
            if type_id in _REMOVED_TYPES:
                raise UnsupportedError(
                    f"{where} {_REMOVED_TYPES[type_id]}, which no longer exists", "convert the model again"
                )
            raise UnsupportedError(
                f"{where} {type_id}, which is not known (byte {self.position - 4})",
                "update localinfer, or download the file again if it may be damaged",
            )
        tensor_type = BY_ID[type_id]
        if dimensions[0] % tensor_type.block_size:
            self._fail(
                f"tensor {name} has rows of {dimensions[0]} weights, no multiple of the {tensor_type.name} block "
                f"of {tensor_type.block_size}",
                start + 4,
            )
        return name, tensor_type, dimensions[::-1], self._number("Q", 8, f"the offset of tensor {name}")

    def _place_tensors(self, infos: list[tuple[str, TensorType, tuple[int, ...], int]]) -> dict[str, Tensor]:
        """Checks that every tensor lies inside the file and touches no other, and gives each its buffer."""
        tensors: dict[str, Tensor] = {}
        for name, tensor_type, shape, relative_offset in infos:
            offset = self.data_start + relative_offset
            nbytes = tensor_type.row_bytes(shape[-1])
            for dimension in shape[:-1]:
                nbytes *= dimension
            if name in tensors:
                self._fail(f"there are two tensors {name}")
            if relative_offset % self.alignment:
                self._fail(f"tensor {name} does not start at a multiple of {self.alignment} bytes", offset)
            if offset + nbytes > self.size:
                self._fail(
                    f"tensor {name} needs bytes {offset} to {offset + nbytes}, but the file has only {self.size}",
                    offset,
                )
            buffer = self.view[offset : offset + nbytes]
            tensors[name] = Tensor(name, tensor_type, shape, self.path, offset, nbytes, buffer)
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if tensor.offset < end:
                self._fail(f"tensor {tensor.name} overlaps tensor {before}", tensor.offset)
            end, before = tensor.offset + tensor.nbytes, tensor.name
        return tensors

    def _bytes(self, count: int, what: str) -> memoryview:
        start, end = self.position, self.position + count
        if end > self.size:
            self._fail(f"{what} needs {count} bytes, but the file ends after {self.size - start}", start)
        self.position = end
        return self.view[start:end]

    def _number(self, typecode: str, size: int, what: str) -> Any:
        return struct.unpack("<" + typecode, self._bytes(size, what))[0]

    def _string(self, what: str) -> bytes:
        return bytes(self._bytes(self._number("Q", 8, f"the length of {what}"), what))

    def _name(self, what: str) -> str:
        start = self.position
        length = self._number("Q", 8, f"the length of {what}")
        if not 1 <= length <= _MAX_NAME:
            self._fail(f"{what} has a length of {length} instead of 1 to {_MAX_NAME}", start)
        try:
            return bytes(self._bytes(length, what)).decode()
        except UnicodeDecodeError:
            self._fail(f"{what} is not valid UTF-8", start + 8)

    def _check_count(self, count: int, min_bytes: int, what: str, at: int) -> None:
        if count > (self.size - self.position) // min_bytes:
            self._fail(f"it claims {count} {what}, more than its {self.size} bytes could hold", at)

    def _small_int(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            self._fail(f"{key} should be a small integer, but is {value!r}")
        return value

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        where = "" if at is None else f" (byte {at})"
        raise FormatError(f"{self.path}: {what}{where}", _DAMAGED)
