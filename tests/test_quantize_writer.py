"""The GGUF writer: our reader, gguf-py, and the format's own rules agree about what it writes."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_files import write_gguf
from localinfer.errors import LocalInferError
from localinfer.formats.file_writer import FileWriter
from localinfer.formats.gguf import open_gguf
from localinfer.formats.gguf_writer import GGUFLayout, TensorInfo, encode_value
from localinfer.kernels.types import TYPES

VALUES = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.number": 7,
    "a.negative": -7,
    "a.large": 1 << 40,
    "a.very_negative": -(1 << 40),
    "a.float": 0.5,
    "a.text": "naïve ✓",
    "an.array": array("i", [1, -2, 3]),
    "a.float_array": array("f", [0.25, 0.5]),
    "a.flags": memoryview(bytes([1, 0, 1])).cast("?"),
    "some.texts": ["one", "", "drei ß"],
    "nested": (array("h", [1]), array("B", [2, 3])),
}
TENSORS = [
    TensorInfo("a.weight", TYPES["F32"], (3, 5)),
    TensorInfo("b.weight", TYPES["Q8_0"], (2, 64)),
    TensorInfo("c.weight", TYPES["F16"], (7,)),
    TensorInfo("d.weight", TYPES["Q4_0"], (2, 3, 32)),
]


def content(info: TensorInfo) -> bytes:
    return bytes((i * 31 + len(info.name)) % 120 for i in range(info.nbytes))


def write(path: Path, values: dict[str, object] = VALUES) -> GGUFLayout:
    layout = GGUFLayout({key: encode_value(value) for key, value in values.items()}, TENSORS)
    with FileWriter(path, layout) as writer:
        for info in reversed(TENSORS):  # any order will do
            data = content(info)
            writer.write(info.name, 10, data[10:])
            writer.write(info.name, 0, data[:10])
            assert writer.read(info.name, 3, 11) == data[3:14]
    return layout


@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_our_reader_reads_what_was_written(tmp_path: Path, alignment: int | None) -> None:
    values = VALUES | ({} if alignment is None else {"general.alignment": alignment})
    layout = write(tmp_path / "x.gguf", values)
    with open_gguf(tmp_path / "x.gguf") as file:
        assert file.alignment == (alignment or 32)
        assert file.file_size == layout.size
        for key, value in values.items():
            found = file.metadata[key]
            assert (list(found) == list(value)) if isinstance(value, list | memoryview) else (found == value)
            assert file.encoded(key) == encode_value(found)
        for info in TENSORS:
            tensor = file.tensor(info.name)
            assert (tensor.type, tensor.shape, tensor.offset) == (info.type, info.shape, layout.offsets[info.name])
            assert bytes(tensor.buffer) == content(info)


def test_gguf_py_reads_what_was_written(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", {k: v for k, v in VALUES.items() if k != "nested"})
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    types = {key: field.types[0].name for key, field in reader.fields.items()}
    assert types["a.number"] == "UINT32"
    assert types["a.negative"] == "INT32"
    assert types["a.large"] == "UINT64"
    assert types["a.float"] == "FLOAT32"
    assert reader.fields["a.text"].contents() == "naïve ✓"
    assert reader.fields["some.texts"].contents() == ["one", "", "drei ß"]
    found = {tensor.name: tensor for tensor in reader.tensors}
    for info in TENSORS:
        assert found[info.name].tensor_type.name == info.type.name
        assert tuple(int(d) for d in found[info.name].shape) == info.shape[::-1]
        assert found[info.name].data.tobytes() == content(info)


def test_values_are_copied_with_their_types(tmp_path: Path) -> None:
    """A uint16, an int8 and a float64 keep their types, and a text that is no UTF-8 its bytes."""
    odd = {"x.a": (7, "UINT16"), "x.b": (-3, "INT8"), "x.c": (0.1, "FLOAT64"), "x.d": ([1, 2], "ARRAY")}
    source = write_gguf(tmp_path / "source.gguf", odd, {"t": np.zeros((1, 4), np.float32)})
    with open_gguf(source) as file:
        pairs = {key: file.encoded(key) for key in file.metadata}
    pairs["x.bytes"] = struct.pack("<IQ", 8, 3) + b"\xff\xfe!"
    FileWriter(tmp_path / "copy.gguf", GGUFLayout(pairs, [])).close()
    before, after = gguf.GGUFReader(source).fields, gguf.GGUFReader(tmp_path / "copy.gguf").fields
    for key in odd:
        assert before[key].types == after[key].types
        assert before[key].contents() == after[key].contents()
    with open_gguf(tmp_path / "copy.gguf") as file:
        assert file.encoded("x.bytes").endswith(b"\xff\xfe!")


def test_a_header_can_be_written_again_only_at_the_same_length(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf")
    changed = GGUFLayout({k: encode_value(v) for k, v in (VALUES | {"a.number": 8}).items()}, TENSORS)
    with FileWriter(tmp_path / "x.gguf", changed) as writer:
        longer = GGUFLayout({k: encode_value(v) for k, v in (VALUES | {"a.text": "x" * 99}).items()}, TENSORS)
        with pytest.raises(ValueError, match="cannot replace"):
            writer.write_header(longer)
    with open_gguf(tmp_path / "x.gguf") as file:
        assert file.metadata["a.number"] == 8
        assert bytes(file.tensor("b.weight").buffer) == content(TENSORS[1])


def test_a_folder_that_is_not_there_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="cannot write"):
        FileWriter(tmp_path / "no" / "x.gguf", GGUFLayout({}, []))
