"""The importance matrices of llama.cpp, in both of its forms.

The old form (`.dat`), little-endian, is a number of entries (int32); per entry the length of its name (int32) and the
name, a number of calls, a number of values (int32 both), and the values, float32: means of x² by column times the
number of calls; then the number of chunks (int32), and the length (int32) and the text of the data set's name, which
may be missing.

The new form is a GGUF file: general.type is "imatrix"; imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size
describe the text; for each tensor NAME there are `NAME.in_sum2` float32 `[cols]`, sums of x² by column, and
`NAME.counts` float32 `[1]`, the number of rows that were added. (Models of experts have a row for each expert.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.formats.gguf_writer import GGUFLayout, TensorInfo, encode_value
from localinfer.kernels.types import TYPES
from localinfer.quantize.calibration import InputStatistics, Statistics, write_whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Form = Literal["gguf", "dat"]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST = 2**20  # entries, and bytes of a name: more are a sign of damage
_HINT = "make it again with llama-imatrix, or with localinfer"


def read_imatrix(path: Path | str) -> Statistics:
    """The statistics that an importance matrix holds: `importance` of its tensors, no second moments.

    FormatError if the file is damaged, UnsupportedError for tensors of several experts.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        return _read_gguf(path) if magic == b"GGUF" else _read_dat(path)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}", "check the path") from error


def write_imatrix(statistics: Statistics, path: Path | str, form: Form = "gguf") -> None:
    """Writes statistics for llama.cpp's quantizer, which takes both forms. LocalInferError if that fails."""
    path = Path(path)
    entries = {name: found for found in statistics.inputs for name in found.tensors}
    dataset = str(statistics.origin.get("dataset") or f"text sha256 {statistics.origin.get('text_sha256', 'unknown')}")
    size = int(statistics.origin.get("window") or 512)
    most = max((found.rows for found in statistics.inputs), default=0)
    chunks = int(statistics.origin.get("chunks") or -(-most // size))
    write_whole(path, (_dat if form == "dat" else _gguf)(dict(sorted(entries.items())), dataset, chunks, size))


def _dat(entries: dict[str, InputStatistics], dataset: str, chunks: int, size: int) -> Iterator[bytes]:
    import numpy as np

    yield struct.pack("<i", len(entries))
    for name, found in entries.items():
        calls, raw = -(-found.rows // size), name.encode()
        yield struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, found.cols)
        yield (found.squares / found.rows * calls).astype(np.float32).tobytes()
    raw = dataset.encode()
    yield struct.pack("<ii", chunks, len(raw)) + raw


def _gguf(entries: dict[str, InputStatistics], dataset: str, chunks: int, size: int) -> Iterator[bytes]:
    import numpy as np

    pairs: dict[str, Any] = {
        "general.type": "imatrix",
        "imatrix.datasets": [dataset],
        "imatrix.chunk_count": chunks,
        "imatrix.chunk_size": size,
    }
    contents: dict[str, npt.NDArray[np.float32]] = {}
    for name, found in entries.items():
        contents[name + _SUMS] = found.squares.astype(np.float32)
        contents[name + _COUNTS] = np.array([found.rows], np.float32)
    tensors = [TensorInfo(name, TYPES["F32"], (len(values),)) for name, values in contents.items()]
    layout = GGUFLayout({key: encode_value(value) for key, value in pairs.items()}, tensors)
    yield layout.header
    position = len(layout.header)
    for name, values in contents.items():
        yield bytes(layout.offsets[name] - position) + values.tobytes()
        position = layout.offsets[name] + values.nbytes
    yield bytes(layout.size - position)


def _read_gguf(path: Path) -> Statistics:
    import numpy as np

    with open_gguf(path) as file:
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        if not names:
            raise FormatError(f"{path} is a GGUF file without an importance matrix", _HINT)
        inputs = []
        for name in names:
            sums, counts = file.tensor(name + _SUMS), file.tensor(name + _COUNTS)
            if any(tensor.type.name != "F32" for tensor in (sums, counts)):
                raise FormatError(f"{path}: sums and counts of {name} should be F32", _HINT)
            values = np.frombuffer(sums.buffer, np.float32).astype(np.float64)
            numbers = np.frombuffer(counts.buffer, np.float32)
            if len(numbers) != 1:
                raise UnsupportedError(
                    f"{path}: {name} is of {len(numbers)} experts", "only dense models are supported"
                )
            inputs.append(_checked(path, name, values, float(numbers[0])))
        datasets = file.metadata.get("imatrix.datasets")
        origin = {
            "dataset": ", ".join(datasets) if datasets is not None else "",  # type: ignore[arg-type]
            "chunks": file.metadata.get_int("imatrix.chunk_count", 0),
            "window": file.metadata.get_int("imatrix.chunk_size", 0),
        }
    return Statistics(inputs, origin)


def _read_dat(path: Path) -> Statistics:
    import numpy as np

    data = path.read_bytes()
    position = 0

    def integer(what: str, least: int, most: int) -> int:
        nonlocal position
        if position + 4 > len(data):
            raise FormatError(f"{path} ends at byte {len(data)}, where {what} should be", _HINT)
        (value,) = struct.unpack_from("<i", data, position)
        if not least <= value <= most:
            raise FormatError(f"{path}: {what} at byte {position} is {value}: this is no importance matrix", _HINT)
        position += 4
        return int(value)

    def taken(size: int, what: str) -> bytes:
        nonlocal position
        if position + size > len(data):
            raise FormatError(f"{path} ends at byte {len(data)}, within {what}", _HINT)
        position += size
        return data[position - size : position]

    inputs = []
    for number in range(integer("the number of entries", 1, _MOST)):
        name = taken(integer(f"the length of name {number}", 1, _MOST), f"name {number}").decode("utf-8", "replace")
        calls = integer(f"the calls of {name}", 0, 2**31 - 1)
        count = integer(f"the size of {name}", 1, 2**31 - 1)
        values = np.frombuffer(taken(4 * count, f"the values of {name}"), np.float32).astype(np.float64)
        inputs.append(_checked(path, name, values, max(calls, 1)))
    origin: dict[str, Any] = {"dataset": "", "chunks": 0}
    if position < len(data):
        origin["chunks"] = integer("the number of chunks", 0, 2**31 - 1)
    if position < len(data):
        origin["dataset"] = taken(integer("the length of the name", 0, _MOST), "the name").decode("utf-8", "replace")
    return Statistics(inputs, origin)


def _checked(path: Path, name: str, sums: npt.NDArray[np.float64], count: float) -> InputStatistics:
    import numpy as np

    if not (np.isfinite(sums).all() and (sums >= 0).all()) or not 1 <= count < 2**53:
        raise FormatError(f"{path}: the values of {name} are no sums of squares of {count:g} rows", _HINT)
    return InputStatistics((name,), int(count), sums)
