"""The GGUF reader against gguf-py's, and against files that lie."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Kind

import gguf_files
from gguf_files import pair, raw_gguf, string, tensor_info, write_gguf
from localinfer.engine.memory import resident
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.gguf import GGUFFile, open_gguf
from localinfer.formats.metadata import Metadata
from localinfer.kernels.host.memory import address_of
from localinfer.kernels.host.strings import StringArray, StringBoundsError, scan_strings

SCALARS = {
    "UINT8": 200,
    "INT8": -100,
    "UINT16": 60_000,
    "INT16": -30_000,
    "UINT32": 4_000_000_000,
    "INT32": -2_000_000_000,
    "UINT64": 2**64 - 1,
    "INT64": -(2**63),
    "FLOAT32": 0.15625,
    "FLOAT64": 0.1,
    "BOOL": True,
    "STRING": "grüße 🦙",
}
# Typecodes of array.array and struct.
NUMBERS = {
    "B": "UINT8",
    "b": "INT8",
    "H": "UINT16",
    "h": "INT16",
    "I": "UINT32",
    "i": "INT32",
    "f": "FLOAT32",
    "Q": "UINT64",
    "q": "INT64",
    "d": "FLOAT64",
}
METADATA: dict[str, Any] = {
    **{f"scalar.{kind}": (value, kind) for kind, value in SCALARS.items()},
    "array.INT32": [1, -2, 3],
    "array.FLOAT32": [0.5, -0.25],
    "array.BOOL": [True, False, True],
    "array.STRING": ["a", "", "▁über", "🦙"],
    "empty.string": "",
}


def sample_tensors() -> dict[str, gguf_files.TensorData]:
    rng = np.random.default_rng(1)
    return {
        "vector": rng.normal(size=7).astype(np.float32),
        "matrix": rng.normal(size=(3, 5)).astype(np.float16),
        "experts": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "quantized": (rng.integers(0, 256, (3, 2 * 18), np.uint8), "Q4_0"),
        "ids": np.arange(6, dtype=np.int32),
    }


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "sample.gguf", METADATA, sample_tensors())


def plain(value: Any) -> Any:
    """Arrays as lists, so that values can be compared."""
    if isinstance(value, array | memoryview | StringArray):
        return list(value)
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def read_everything(model: GGUFFile) -> None:
    """Touches all that a user could read, and checks that it lies inside the files."""

    def walk(value: Any) -> None:
        if isinstance(value, StringArray):
            for i in range(len(value)):
                value.raw(i)
        elif isinstance(value, tuple):
            for item in value:
                walk(item)
        else:
            plain(value)

    for value in model.metadata.values():
        walk(value)
    sizes = {path: path.stat().st_size for path in model.paths}
    for tensor in model.tensors.values():
        assert tensor.offset + tensor.nbytes <= sizes[tensor.path]
        assert len(tensor.buffer) == tensor.nbytes == len(bytes(tensor.buffer))


def compare_with_gguf_py(path: Path) -> None:
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items():
            assert plain(ours.metadata[key]) == field.contents(), key
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for tensor in theirs.tensors:
            mine = ours.tensor(tensor.name)
            assert mine.shape == tuple(reversed(tensor.shape.tolist()))
            assert (mine.type.id, mine.offset, mine.nbytes) == (
                tensor.tensor_type,
                tensor.data_offset,
                tensor.n_bytes,
            )
            assert bytes(mine.buffer) == tensor.data.tobytes()


# ---- well-formed files -------------------------------------------------------------------------------------------


def test_agrees_with_gguf_py(sample: Path) -> None:
    compare_with_gguf_py(sample)


def test_real_models_agree_with_gguf_py(smollm2_path: Path) -> None:
    compare_with_gguf_py(smollm2_path)


def test_every_scalar_type(sample: Path) -> None:
    with open_gguf(sample) as model:
        for kind, value in SCALARS.items():
            found = model.metadata[f"scalar.{kind}"]
            assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("typecode", NUMBERS)
def test_number_arrays_of_every_type_are_typed(tmp_path: Path, typecode: str) -> None:
    kind = Kind[NUMBERS[typecode]]
    values = [0, 1, 100] if typecode.isupper() else [0, -1, 100]
    items = struct.pack(f"<3{typecode}", *values)
    path = tmp_path / "a.gguf"
    path.write_bytes(
        raw_gguf([pair("odd", Kind.UINT8, b"\1"), pair("a", Kind.ARRAY, gguf_files.array(kind, 3, items))])
    )
    with open_gguf(path) as model:
        found = model.metadata["a"]
        assert isinstance(found, array)
        assert (found.typecode, list(found)) == (typecode, values)


def test_nested_and_empty_arrays(tmp_path: Path) -> None:
    inner = [gguf_files.array(Kind.STRING, 2, string(b"x") + string(b"yz")), gguf_files.array(Kind.UINT8, 0, b"")]
    path = tmp_path / "nested.gguf"
    path.write_bytes(
        raw_gguf(
            [
                pair("nested", Kind.ARRAY, gguf_files.array(Kind.ARRAY, 2, b"".join(inner))),
                pair("none", Kind.ARRAY, gguf_files.array(Kind.STRING, 0, b"")),
                pair("last", Kind.BOOL, b"\1"),
            ]
        )
    )
    with open_gguf(path) as model:
        assert plain(model.metadata["nested"]) == [["x", "yz"], []]
        assert plain(model.metadata["none"]) == []
        assert model.metadata["last"] is True


def test_version_2_and_other_alignments(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", METADATA, sample_tensors(), alignment=256)
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    with open_gguf(path) as model:
        assert (model.version, model.alignment) == (2, 256)
    compare_with_gguf_py(path)


def test_a_file_without_tensors_may_end_after_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("a", Kind.BOOL, b"\0"))
    with open_gguf(path) as model:
        assert (dict(model.metadata), model.tensors) == ({"a": False}, {})


def test_invalid_utf8_is_kept_in_raw_form(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(raw_gguf([pair("t", Kind.ARRAY, gguf_files.array(Kind.STRING, 1, string(b"\xe2\x96x")))]))
    with open_gguf(path) as model:
        tokens = model.metadata.get_strings("t")
        assert (tokens.raw(0), tokens[0]) == (b"\xe2\x96x", "\ufffdx")


def test_a_big_vocabulary_stays_mapped(tmp_path: Path) -> None:
    tokens = [b"token %d" % i for i in range(262_144)]
    path = tmp_path / "big.gguf"
    items = gguf_files.array(Kind.STRING, len(tokens), b"".join(map(string, tokens)))
    path.write_bytes(raw_gguf([pair("tokens", Kind.ARRAY, items)]))
    before = sys.getallocatedblocks()
    model = open_gguf(path)
    assert sys.getallocatedblocks() - before < 1000, "opening should not make an object per token"
    found = model.metadata.get_strings("tokens")
    assert [found.raw(i) for i in range(len(found))] == tokens
    assert found[-1] == "token 262143"
    assert found[5:8] == ["token 5", "token 6", "token 7"]
    with pytest.raises(IndexError):
        found[262_144]


def test_native_code_can_read_the_strings(sample: Path) -> None:
    import ctypes

    with open_gguf(sample) as model:
        strings = model.metadata.get_strings("array.STRING")
        read = [ctypes.string_at(strings.address + o, n) for o, n in zip(strings.offsets, strings.lengths, strict=True)]
    assert [text.decode() for text in read] == METADATA["array.STRING"]


def test_buffers_outlive_the_file_and_then_the_mapping_goes(sample: Path) -> None:
    model = open_gguf(sample)
    buffer, strings = model.tensor("vector").buffer, model.metadata.get_strings("array.STRING")
    model.close()
    assert bytes(buffer) == sample_tensors()["vector"].tobytes()  # type: ignore[union-attr]
    assert strings[3] == "🦙"
    assert not model.has_tensor("vector")
    with pytest.raises(TypeError):
        buffer[0] = 1
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(sample) in maps.read_text()
        del buffer, strings, model
        assert str(sample) not in maps.read_text()


def test_reading_imports_nothing_heavy(sample: Path) -> None:
    code = (
        "import sys; from localinfer.formats.gguf import open_gguf; open_gguf(sys.argv[1]);"
        "print([m for m in ('numpy', 'torch', 'gguf', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, str(sample)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_address_of_a_buffer() -> None:
    values = array("i", [1, 2, 3])
    assert address_of(values) == values.buffer_info()[0]
    assert address_of(memoryview(values).cast("B")[4:]) == values.buffer_info()[0] + 4
    with pytest.raises(BufferError):
        address_of(memoryview(values)[::2])


def test_scanning_strings_stops_at_the_buffer() -> None:
    data = string(b"ab") + string(b"") + string(b"cde")
    strings, end = scan_strings(memoryview(data), 0, 3)
    assert (list(strings), end) == (["ab", "", "cde"], len(data))
    for size in range(len(data)):
        with pytest.raises(StringBoundsError) as error:
            scan_strings(memoryview(data)[:size], 0, 3)
        assert error.value.offset <= size
    with pytest.raises(StringBoundsError):
        scan_strings(memoryview(data), len(data) + 1, 1)
    with pytest.raises(StringBoundsError):
        scan_strings(memoryview(struct.pack("<Q", 2**64 - 4) + bytes(8)), 0, 1)


# ---- split files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def split(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", METADATA, sample_tensors(), tensors_per_part=2)


def test_any_part_opens_all(split: Path) -> None:
    parts = sorted(split.parent.glob("model-*.gguf"))
    assert len(parts) == 3
    for part in parts:
        with open_gguf(part) as model:
            assert model.paths == tuple(parts)
            assert model.file_size == sum(p.stat().st_size for p in parts)
            assert plain(model.metadata["array.STRING"]) == METADATA["array.STRING"]
            assert list(model.tensors) == list(sample_tensors())
            assert {t.path for t in model.tensors.values()} == set(parts)
            read_everything(model)


def test_a_missing_part_is_named(split: Path) -> None:
    split.with_name("model-00002-of-00003.gguf").unlink()
    with pytest.raises(LocalInferError, match=r"model-00002-of-00003\.gguf is not there"):
        open_gguf(split)


def test_swapped_and_renamed_parts_are_refused(split: Path) -> None:
    second, third = (split.with_name(f"model-0000{i}-of-00003.gguf") for i in (2, 3))
    alone = split.with_name("alone.gguf")
    alone.write_bytes(second.read_bytes())
    with pytest.raises(FormatError, match="part 2 of 3 of a model, but its name"):
        open_gguf(alone)
    second.write_bytes(third.read_bytes())
    with pytest.raises(FormatError, match="part 3 of 3"):
        open_gguf(split)


def test_parts_with_the_same_tensor_or_too_few_are_refused(tmp_path: Path) -> None:
    def part(number: int, names: list[str], total: int) -> Path:
        pairs = [
            pair("split.no", Kind.UINT16, struct.pack("<H", number)),
            pair("split.count", Kind.UINT16, struct.pack("<H", 2)),
            pair("split.tensors.count", Kind.INT32, struct.pack("<i", total)),
        ]
        infos = [tensor_info(name, [8], 0, 32 * i) for i, name in enumerate(names)]
        path = tmp_path / f"m-{number + 1:05}-of-00002.gguf"
        path.write_bytes(raw_gguf(pairs, infos, bytes(32 * len(names))))
        return path

    part(0, ["a", "b"], 3)
    open_gguf(part(1, ["c"], 3)).close()
    with pytest.raises(FormatError, match="tensor b is also in"):
        open_gguf(part(1, ["b"], 3))
    part(1, ["c"], 3)
    with pytest.raises(FormatError, match="should have 4 tensors, but its parts have 3"):
        open_gguf(part(0, ["a", "b"], 4))


# ---- files that are refused ----------------------------------------------------------------------------------------


def refusal(tmp_path: Path, data: bytes, kind: type[LocalInferError] = FormatError) -> str:
    path = tmp_path / "refused.gguf"
    path.write_bytes(data)
    with pytest.raises(kind) as error:
        open_gguf(path)
    assert str(path) in error.value.message
    assert error.value.hint
    return str(error.value)


def test_big_endian_and_other_versions(tmp_path: Path) -> None:
    big = write_gguf(tmp_path / "big.gguf", {}, sample_tensors(), big_endian=True).read_bytes()
    assert "big-endian" in refusal(tmp_path, big, UnsupportedError)
    assert "version 1" in refusal(tmp_path, raw_gguf(version=1) + bytes(8), UnsupportedError)
    assert "update localinfer" in refusal(tmp_path, raw_gguf(version=4), UnsupportedError)
    assert "version 0" in refusal(tmp_path, raw_gguf(version=0), UnsupportedError)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"PK\3\4", "zip"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"tjgg", "before GGUF"),
        (b"FUGG", "bytes swapped"),
        (b"\0\0\0\0", "not a GGUF file"),
    ],
)
def test_other_files_are_recognized(tmp_path: Path, start: bytes, words: str) -> None:
    assert words in refusal(tmp_path, start + bytes(40))


def test_things_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="No such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(LocalInferError, match="is not a file"):
        open_gguf(tmp_path)
    assert "too short (0 bytes)" in refusal(tmp_path, b"")


F32_8 = tensor_info("t", [8], 0, 0)
DATA = bytes(32)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "claims 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "key-value pairs, more than"),
        (raw_gguf([pair("", Kind.BOOL, b"\0")]), "key 1 of 1 has a length of 0"),
        (raw_gguf([struct.pack("<Q", 2**63) + bytes(8)]), "length of 9223372036854775808"),
        (raw_gguf([string(b"\xff") + struct.pack("<IB", Kind.BOOL, 0)]), "not valid UTF-8"),
        (raw_gguf([pair("a", Kind.BOOL, b"\2")]), "true or false, but is 2 (byte 37)"),
        (raw_gguf([pair("a", 13, bytes(8))]), "unknown value type 13 (byte 33)"),  # type: ignore[arg-type]
        (raw_gguf([pair("a", Kind.STRING, struct.pack("<Q", 2**62))]), "a needs 4611686018427387904 bytes"),
        (raw_gguf([pair("a", Kind.BOOL, b"\0"), pair("a", Kind.BOOL, b"\0")]), "key a occurs twice (byte 38)"),
        (raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(Kind.UINT64, 2**61, b""))]), "a needs"),
        (raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(Kind.BOOL, 2, b"\1\5"))]), "only true and false"),
        (raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(Kind.STRING, 2**50, b""))]), "strings in a, more than"),
        (raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(Kind.STRING, 20, bytes(64)))]), "strings in a, more than"),
        (
            raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(Kind.STRING, 2, string(b"x") + b"\x99" + bytes(7)))]),
            "string 2 of 2 in a runs past the end of the file (byte 58)",
        ),
        (raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(99, 1, bytes(8)))]), "unknown item type 99"),  # type: ignore[arg-type]
        (raw_gguf([pair("a", Kind.ARRAY, struct.pack("<IQ", 9, 1) * 100)]), "nested more than"),
        (raw_gguf([pair("a", Kind.ARRAY, gguf_files.array(Kind.ARRAY, 2**40, b""))]), "arrays in a, more than"),
        (raw_gguf([pair("general.alignment", Kind.UINT32, struct.pack("<I", 24))]), "24, which is not a power of two"),
        (raw_gguf([pair("general.alignment", Kind.UINT32, bytes(4))]), "not a power of two"),
        (raw_gguf([pair("general.alignment", Kind.BOOL, b"\1")]), "small integer"),
        (raw_gguf([pair("split.count", Kind.STRING, string(b"x"))]), "split.count should be a small integer"),
        (raw_gguf([], [tensor_info("t", [], 0, 0)], DATA), "has 0 dimensions"),
        (raw_gguf([], [tensor_info("t", [1] * 5, 0, 0)], DATA), "has 5 dimensions"),
        (raw_gguf([], [tensor_info("t", [8, 0], 0, 0)], DATA), "t is empty"),
        (raw_gguf([], [tensor_info("t", [2**32, 2**32], 0, 0)], DATA), "but the file has only"),
        (raw_gguf([], [tensor_info("t", [2**63, 2**63, 2**63, 2**63], 0, 0)], DATA), "but the file has only"),
        (raw_gguf([], [tensor_info("t", [33], 2, 0)], DATA), "rows of 33 weights, no multiple of the Q4_0 block"),
        (raw_gguf([], [tensor_info("t", [8], 0, 16)], DATA * 2), "does not start at a multiple of 32"),
        (raw_gguf([], [tensor_info("t", [8], 0, 32)], DATA), "but the file has only"),
        (raw_gguf([], [tensor_info("t", [8], 0, 2**64 - 32)], DATA), "but the file has only"),
        (raw_gguf([], [F32_8], DATA[:-1]), "tensor t needs bytes"),
        (raw_gguf([], [F32_8, F32_8], DATA), "two tensors t"),
        (raw_gguf([], [tensor_info("a", [9], 0, 0), tensor_info("b", [8], 0, 32)], DATA * 2), "b overlaps tensor a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "lie",
)
def test_lies_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(tmp_path, data + bytes(16) if b"general.alignment" in data else data)


def test_unknown_and_removed_tensor_types_are_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, raw_gguf([], [tensor_info("blk.0.x", [8], 99, 0)], DATA), UnsupportedError)
    assert "tensor blk.0.x is of type 99" in message
    message = refusal(tmp_path, raw_gguf([], [tensor_info("blk.0.x", [8], 31, 0)], DATA), UnsupportedError)
    assert "Q4_0_4_4, which no longer exists" in message


# ---- damage everywhere ---------------------------------------------------------------------------------------------


def small_file(tmp_path: Path) -> tuple[Path, int]:
    """A file with every kind of metadata, and where its data section starts."""
    path = write_gguf(tmp_path / "damaged.gguf", METADATA | {"general.alignment": 32}, sample_tensors())
    with open_gguf(path) as model:
        return path, min(t.offset for t in model.tensors.values())


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    path, _ = small_file(tmp_path)
    with open_gguf(path) as model:
        end = max(t.offset + t.nbytes for t in model.tensors.values())
    for size in range(end - 1, -1, -1):
        os.truncate(path, size)
        with pytest.raises(FormatError) as error:
            open_gguf(path)
        assert str(path) in error.value.message


def open_damaged(path: Path) -> bool:
    """Whether the file still opens; whatever can then be read is in bounds. Any other error fails the test."""
    try:
        model = open_gguf(path)
    except (FormatError, UnsupportedError):
        return False
    with model:
        read_everything(model)
    return True


def test_hostile_values_at_every_place(tmp_path: Path) -> None:
    path, data_start = small_file(tmp_path)
    good = path.read_bytes()
    words = [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(good), data_start]
    opened = 0
    with path.open("r+b", buffering=0) as file:
        for place in range(4, data_start):
            for word in random.Random(place).sample(words, 3):
                for size in (4, 8):
                    os.pwrite(file.fileno(), word.to_bytes(8, "little")[:size], place)
                    opened += open_damaged(path)
                    os.pwrite(file.fileno(), good[place : place + 8], place)
    assert opened > 0, "some of the damage should go unnoticed, or nothing was read afterwards"


def test_random_damage(tmp_path: Path) -> None:
    path, data_start = small_file(tmp_path)
    good = path.read_bytes()
    rng = random.Random(20)
    opened = 0
    with path.open("r+b", buffering=0) as file:
        for _ in range(3000):
            data = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(4, data_start)
                action = rng.randrange(4)
                if action == 0:
                    data[place] = rng.randrange(256)
                elif action == 1:
                    data[place] ^= 1 << rng.randrange(8)
                elif action == 2:
                    del data[place : place + rng.randint(1, 16)]
                else:
                    data[place:place] = rng.randbytes(rng.randint(1, 16))
            os.pwrite(file.fileno(), data, 0)
            file.truncate(len(data))
            opened += open_damaged(path)
    assert 0 < opened < 3000


# ---- typed reads of metadata ---------------------------------------------------------------------------------------


@pytest.fixture
def metadata() -> Metadata:
    values = {
        "int": 7,
        "negative": -1,
        "float": 0.5,
        "nan": float("nan"),
        "bool": True,
        "text": "x" * 100,
        "ints": array("i", [1, 2, 3]),
        "floats": array("f", [0.5, 1.5]),
        "flags": memoryview(b"\1\0\1").cast("?"),
        "nested": (array("i", [1]),),
    }
    return Metadata(values, "model.gguf")  # type: ignore[arg-type]


def test_typed_reads(metadata: Metadata) -> None:
    assert metadata.get_int("int") == 7
    assert metadata.get_int("absent", 5) == 5
    assert metadata.get_int("negative", minimum=-1) == -1
    assert metadata.get_bool("bool") is True
    assert metadata.get_bool("absent", False) is False
    assert metadata.get_str("absent", "") == ""
    assert "int" in metadata
    assert "absent" not in metadata


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("get_int", ("absent",), "model.gguf: the metadata has no key absent"),
        ("get_int", ("bool",), "bool should be an integer, but is True (bool)"),
        ("get_int", ("float",), "float should be an integer, but is 0.5 (float)"),
        ("get_int", ("negative",), "an integer from 0 to 2147483647, but is -1"),
        ("get_int", ("int", None, 0, 6), "an integer from 0 to 6, but is 7"),
        ("get_bool", ("int",), "true or false, but is 7"),
        ("get_str", ("ints",), "a string, but is an array of 3 integers"),
        ("get_strings", ("text",), "an array of strings"),
    ],
)
def test_wrong_metadata_is_explained(metadata: Metadata, method: str, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(FormatError) as error:
        getattr(metadata, method)(*arguments)
    assert words in error.value.message
    assert len(error.value.message) < 150


def test_dropped_pages_leave_memory_and_come_back(tmp_path: Path) -> None:
    values = np.arange(2**22, dtype=np.float32)
    path = write_gguf(tmp_path / "large.gguf", {}, {"weight": values})
    with open_gguf(path) as file:
        buffer = file.tensor("weight").buffer
        before = resident()
        assert sum(buffer[::4096]) >= 0  # touches every page
        assert resident() - before > 12 * 2**20
        file.drop_pages()
        assert resident() - before < 4 * 2**20
        assert buffer == values.tobytes()
    file.drop_pages()
