"""The safetensors reader against its own library, and against files that are damaged or lie."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.json_file import read_json_object
from localinfer.formats.safetensors import DTYPE_BITS, open_safetensors

Header = dict[str, Any] | bytes


def raw_file(header: Header, data: bytes = b"", size: int | None = None) -> bytes:
    """A file with this header (JSON, or bytes as they are), which claims to have `size` bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(path: Path, data: bytes, kind: type[LocalInferError] = FormatError) -> str:
    path.write_bytes(data)
    with pytest.raises(kind) as error:
        open_safetensors(path)
    assert str(path) in error.value.message
    return error.value.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


SAMPLE: dict[str, np.ndarray] = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(-1, 1, 8).astype(np.float16),
    "one value": np.array(2.5),
    "empty": np.zeros((0, 7), np.int8),
    "bytes": np.arange(256, dtype=np.uint8).reshape(2, 2, 64),
    "whole": np.array([-1, 2**40]),
    "flags": np.array([True, False, True]),
}


# ---- good files ----------------------------------------------------------------------------------------------------


def test_tensors_are_those_that_the_library_wrote(path: Path) -> None:
    safetensors.numpy.save_file(SAMPLE, path, metadata={"format": "pt", "note": "é"})
    with open_safetensors(path) as model:
        assert model.metadata == {"format": "pt", "note": "é"}
        assert model.paths == (path,)
        assert model.file_size == path.stat().st_size
        assert set(model.tensors) == set(SAMPLE)
        raw = path.read_bytes()
        for name, values in SAMPLE.items():
            tensor = model.tensor(name)
            assert tensor.shape == values.shape
            assert bytes(tensor.buffer) == values.tobytes() == raw[tensor.offset : tensor.offset + tensor.nbytes]
            assert tensor.buffer.readonly
        assert model.tensor("matrix").dtype == "F32"
        model.drop_pages()
        assert bytes(model.tensor("half").buffer) == SAMPLE["half"].tobytes()
        with pytest.raises(FormatError, match="no tensor other"):
            model.tensor("other")


def test_every_type_that_the_library_writes_is_known(path: Path) -> None:
    """Types are named by the library when it refuses one."""
    with pytest.raises(safetensors.SafetensorError) as error:
        safetensors.deserialize(raw_file({"x": entry("F17", [1], 0, 2)}, b"ab"))
    known = {word.strip("`,") for word in str(error.value).split() if word.startswith("`")} - {"F17"}
    assert known <= set(DTYPE_BITS), "the library has new types"
    for dtype, bits in DTYPE_BITS.items():
        shape = [8, 3]  # whole bytes for types of 4 and 6 bits, too
        path.write_bytes(raw_file({"x": entry(dtype, shape, 0, bits * 3)}, bytes(bits * 3)))
        with open_safetensors(path) as model:
            assert model.tensor("x").nbytes == 3 * bits


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name != "__metadata__"),
        st.lists(st.integers(0, 5), max_size=3),
        max_size=5,
    )
)
def test_any_names_and_shapes(tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, list[int]]) -> None:
    header, data = {}, b""
    for number, (name, shape) in enumerate(shapes.items()):
        values = np.full(shape, number, "<i2").tobytes()
        header[name] = entry("I16", shape, len(data), len(data) + len(values))
        data += values
    path = tmp_path_factory.mktemp("any") / "x.safetensors"
    path.write_bytes(raw_file(header, data))
    with open_safetensors(path) as model:
        for number, (name, shape) in enumerate(shapes.items()):
            assert bytes(model.tensor(name).buffer) == np.full(shape, number, "<i2").tobytes()


# ---- several files -------------------------------------------------------------------------------------------------


def split(folder: Path, index: dict[str, str] | None = None, name: str = "model") -> Path:
    """Tensors a and b in one file, c in another, and the index."""
    for part, names in (("1", "ab"), ("2", "c")):
        values = {letter: np.full(2, ord(letter), np.int32) for letter in names}
        safetensors.numpy.save_file(values, folder / f"{name}-{part}.safetensors")
    weight_map = index or {"a": f"{name}-1.safetensors", "b": f"{name}-1.safetensors", "c": f"{name}-2.safetensors"}
    path = folder / f"{name}.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}))
    return path


def test_a_folder_or_any_part_opens_all_parts(tmp_path: Path) -> None:
    split(tmp_path)
    for path in (tmp_path, tmp_path / "model-1.safetensors", tmp_path / "model-2.safetensors"):
        with open_safetensors(path) as model:
            assert {name: tensor.buffer[0] for name, tensor in model.tensors.items()} == {"a": 97, "b": 98, "c": 99}
            assert [p.name for p in model.paths] == ["model-1.safetensors", "model-2.safetensors"]
            assert model.file_size == sum(p.stat().st_size for p in model.paths)


def test_which_file_of_a_folder_is_meant(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"has no \.safetensors file"):
        open_safetensors(tmp_path)
    safetensors.numpy.save_file({"x": np.zeros(1)}, tmp_path / "odd name.safetensors")
    assert set(open_safetensors(tmp_path).tensors) == {"x"}
    split(tmp_path)
    assert set(open_safetensors(tmp_path).tensors) == {"a", "b", "c"}
    assert set(open_safetensors(tmp_path / "odd name.safetensors").tensors) == {"x"}
    split(tmp_path, name="other")
    assert set(open_safetensors(tmp_path).tensors) == {"a", "b", "c"}, "the one that is called model"
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "third.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(LocalInferError, match="has several models"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"a": "../model-1.safetensors"}, "should be in a file of the same folder"),
        ({"a": "/etc/passwd"}, "should be in a file of the same folder"),
        ({"a": "x\\y.safetensors"}, "should be in a file of the same folder"),
        ({"a": ".."}, "should be in a file of the same folder"),
        ({"a": 3}, "should be in a file of the same folder"),
        ({"a": "model-2.safetensors"}, "tensor a should be in model-2.safetensors, but is not"),
        ({"d": "model-1.safetensors"}, "tensor d should be in model-1.safetensors, but is not"),
        ({"a": "model-3.safetensors"}, "names 1 parts, but model-3.safetensors is not there"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, index: dict[str, str], words: str) -> None:
    split(tmp_path, index)
    with pytest.raises(LocalInferError, match=words.replace(".", r"\.")):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    "text", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "[]", "{", '{"a": 1e', "\xff", "[" * 10**5]
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    split(tmp_path).write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=r"index\.json"):
        open_safetensors(tmp_path)


def test_one_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    split(tmp_path)
    safetensors.numpy.save_file({"b": np.zeros(1), "c": np.zeros(1)}, tmp_path / "model-2.safetensors")
    with pytest.raises(FormatError, match=r"tensor b is also in model-1\.safetensors"):
        open_safetensors(tmp_path)


# ---- files that lie ------------------------------------------------------------------------------------------------

F32_2 = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short (0 bytes)"),
        (b"1234567", "too short (7 bytes)"),
        (raw_file(b""), "claims a header of 0 bytes"),
        (raw_file(b"{}", size=3), "claims a header of 3 bytes"),
        (raw_file(b"{}", size=2**64 - 1), "claims a header of 18446744073709551615 bytes"),
        (raw_file(b"[]"), "should begin with '{'"),
        (raw_file(b" {}"), "should begin with '{'"),
        (raw_file(b"{1}"), "not valid JSON"),
        (raw_file(b'{"a": \xff}'), "not valid UTF-8"),
        (raw_file(b'{"a": NaN}'), "has NaN"),
        (raw_file(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
        (raw_file(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "nests too deep"),
        (raw_file(b'{"a":' * 200_000 + b"}" * 200_000), "nests too deep"),
        (raw_file(b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0], "dtype": "I8"}}'), "'dtype' twice"),
        (raw_file(b'{"a": 1, "b": 2, "a": 1}'), "'a' twice"),
        (raw_file({"__metadata__": {"a": 1}}), "texts only"),
        (raw_file({"__metadata__": "a"}), "texts only"),
        (raw_file({"a": 5}), "should be described by"),
        (raw_file({"a": {"dtype": "F32"}}), "should be described by"),
        (raw_file({"a": F32_2 | {"more": 1}}, bytes(8)), "should be described by"),
        (raw_file({"a": entry("F32", [-1], 0, 8)}, bytes(8)), "no possible shape"),
        (raw_file({"a": entry("F32", [2.0], 0, 8)}, bytes(8)), "no possible shape"),
        (raw_file({"a": entry("F32", [True, 2], 0, 8)}, bytes(8)), "no possible shape"),
        (raw_file({"a": entry("F32", [1] * 65, 0, 4)}, bytes(4)), "no possible shape"),
        (raw_file({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}, bytes(8)), "no possible shape"),
        (raw_file({"a": entry("F32", [2], 0, "8")}, bytes(8)), "no possible data_offsets"),
        (raw_file({"a": entry("F32", [2], 8, 0)}, bytes(8)), "no possible data_offsets"),
        (raw_file({"a": entry("F32", [2], 0, 2**64)}, bytes(8)), "no possible data_offsets"),
        (raw_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, bytes(8)), "no possible data_offsets"),
        (raw_file({"a": entry("F32", [3], 0, 8)}, bytes(8)), "takes 12 bytes, but has 8"),
        (raw_file({"a": entry("F32", [2**63 - 1] * 64, 0, 8)}, bytes(8)), "bytes, but has 8"),
        (raw_file({"a": entry("F4", [3], 0, 1)}, bytes(1)), "takes 2 bytes, but has 1"),
        (raw_file({"a": F32_2}, bytes(7)), "needs bytes"),
        (raw_file({"a": F32_2}, bytes(9)), "the tensors end at byte"),
        (raw_file({"a": F32_2, "b": F32_2}, bytes(8)), "tensor b overlaps tensor a"),
        (raw_file({"a": F32_2, "b": entry("F32", [2], 4, 12)}, bytes(12)), "tensor b overlaps tensor a"),
        (raw_file({"a": entry("F32", [2], 4, 12)}, bytes(12)), "tensor a leaves a gap after the header"),
        (raw_file({"a": F32_2, "b": entry("F32", [2], 12, 20)}, bytes(20)), "tensor b leaves a gap after tensor a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "lie",
)
def test_lies_are_refused(path: Path, data: bytes, words: str) -> None:
    assert words in refusal(path, data)


def test_a_header_is_not_read_however_large_it_is(path: Path) -> None:
    refusal(path, raw_file(b"{}", size=100_000_001))
    os.truncate(path, 200_000_000)  # a hole takes no room
    with pytest.raises(FormatError, match="100 MB is the limit"):
        open_safetensors(path)


def test_other_files_are_named(path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    assert "Git LFS pointer" in refusal(path, pointer)
    assert "numbers of type 'F17'" in refusal(path, raw_file({"a": entry("F17", [1], 0, 2)}, b"ab"), UnsupportedError)
    with pytest.raises(LocalInferError, match="cannot read"):
        open_safetensors(path.with_name("absent.safetensors"))


def test_a_header_with_a_name_twice_is_looked_through_once(path: Path) -> None:
    names = ",".join(f'"{i}":0' for i in range(200_000))
    assert "'199999' twice" in refusal(path, raw_file(f'{{{names},"199999":0}}'.encode()))


# ---- damage everywhere ---------------------------------------------------------------------------------------------


def small_file(path: Path) -> bytes:
    safetensors.numpy.save_file({name: SAMPLE[name] for name in ("matrix", "half", "empty")}, path, {"a": "b"})
    return path.read_bytes()


def test_truncation_at_every_byte(path: Path) -> None:
    good = small_file(path)
    for size in range(len(good) - 1, -1, -1):
        os.truncate(path, size)
        with pytest.raises(FormatError) as error:
            open_safetensors(path)
        assert str(path) in error.value.message


def opens(path: Path) -> bool:
    """Whether the file still opens; then all that it has can be read. Any other error fails the test."""
    try:
        model = open_safetensors(path)
    except (FormatError, UnsupportedError):
        return False
    with model:
        assert all(len(bytes(tensor.buffer)) == tensor.nbytes for tensor in model.tensors.values())
    return True


def change_a_byte(data: bytearray, source: random.Random) -> None:
    data[source.randrange(len(data))] = source.choice([0, 0xFF, *b'{}[]",:0123456789eE-', source.randrange(256)])


def remove_bytes(data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data))
    del data[start : start + source.randrange(1, 9)]


def repeat_bytes(data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data))
    data[start:start] = data[start : start + source.randrange(1, 9)]


@pytest.mark.parametrize("damage", [change_a_byte, remove_bytes, repeat_bytes])
def test_damage_is_an_error_or_harmless(path: Path, damage: Callable[[bytearray, random.Random], None]) -> None:
    good = small_file(path)
    source = random.Random(20240607)
    opened = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(source.randrange(1, 4)):
            damage(data, source)
        path.write_bytes(data)
        opened += opens(path)
    assert opened > 0 or damage is not change_a_byte, "some damage should go unnoticed, or nothing was read afterwards"


# ---- JSON beside it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not valid JSON"),
        (b"[1]", "should hold a JSON object, but holds a list"),
        (b"{", "is not valid JSON: .* in line 1, column 2"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not valid JSON"),
        (b"\xff\xfe{}", "not valid UTF-8"),
        (b"[" * 100_000, "nests too deep"),
    ],
)
def test_json_that_is_none_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=words):
        read_json_object(path)


def test_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa9"}')
    assert read_json_object(path) == {"a": "é"}
    with path.open("ab") as file:
        file.truncate(200_000_001)
    with pytest.raises(FormatError, match="too many"):
        read_json_object(path)
    with pytest.raises(LocalInferError, match="cannot read"):
        read_json_object(tmp_path / "absent.json")
