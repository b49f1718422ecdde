"""Importance matrices: what llama.cpp made of a tiny model is what we find, and what we write it reads.

tests/data/imatrix holds what `llama-imatrix -c 128 --chunks 1` wrote for the tiny model "llama" and TEXT, in both
forms.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.quantize.calibration import InputStatistics, Statistics, collect
from localinfer.quantize.imatrix import Form, read_imatrix, write_imatrix
from tiny_models import by_name, write_gguf

DATA = Path(__file__).parent / "data" / "imatrix"
TEXT = "It is a truth, said the old sailor, that whoever owns a boat must own patience too. " * 20
TOLERANCE = 2e-4  # llama.cpp's keys and values are halves, and ours; its products of floats are others: 5e-5 seen

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> Statistics:
    path = write_gguf(by_name("llama"), tmp_path_factory.mktemp("imatrix") / "tiny.gguf")
    return collect(path, TEXT, window=128, most=1)


@pytest.fixture
def small() -> Statistics:
    """Two inputs whose sums fit a float32 exactly; the second is that of two matrices."""
    inputs = [
        InputStatistics(("blk.0.ffn_down.weight",), 600, np.arange(1.0, 4.0)),
        InputStatistics(("blk.0.ffn_up.weight", "blk.0.ffn_gate.weight"), 600, np.array([600.0, 0.0])),
    ]
    return Statistics(inputs, {"text_sha256": "abc", "window": 512})


@pytest.mark.parametrize("form", ["gguf", "dat"])
def test_our_sums_are_those_of_llama_cpp(form: str, statistics: Statistics) -> None:
    theirs = read_imatrix(DATA / f"tiny-llama.{form}")
    assert theirs.origin["dataset"] == "text.txt"
    assert theirs.origin["chunks"] == 1
    assert set(theirs.tensors) == set(statistics.tensors) - {"output.weight"}  # which it leaves out
    for name in theirs.tensors:
        ours, expected = statistics.importance(name), theirs.importance(name)
        assert ours is not None
        assert expected is not None
        assert np.abs(ours - expected).max() < TOLERANCE * expected.max(), name
    assert theirs.importance("output.weight") is None
    assert theirs.hessian("blk.0.ffn_down.weight") is None


@pytest.mark.parametrize("form", ["gguf", "dat"])
def test_what_is_written_is_read_again(form: Form, statistics: Statistics, tmp_path: Path) -> None:
    write_imatrix(statistics, tmp_path / "ours", form)
    again = read_imatrix(tmp_path / "ours")
    assert set(again.tensors) == set(statistics.tensors)
    for name in again.tensors:
        np.testing.assert_allclose(again.importance(name), statistics.importance(name), rtol=1e-6)
    assert statistics.origin["text_sha256"] in again.origin["dataset"]


def test_the_new_form_is_the_one_that_llama_cpp_writes(small: Statistics, tmp_path: Path) -> None:
    write_imatrix(small, tmp_path / "ours.gguf")
    reader = gguf.GGUFReader(tmp_path / "ours.gguf")
    theirs = gguf.GGUFReader(DATA / "tiny-llama.gguf")
    for key in ("general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"):
        assert reader.fields[key].types == theirs.fields[key].types, key
    assert reader.fields["general.type"].contents() == theirs.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.chunk_size"].contents() == 512
    assert reader.fields["imatrix.chunk_count"].contents() == 2  # 600 rows begin a second window
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert set(found) == {
        f"blk.0.ffn_{n}.weight.{what}" for n in ("down", "up", "gate") for what in ("in_sum2", "counts")
    }
    assert found["blk.0.ffn_down.weight.in_sum2"].data.ravel().tolist() == [1, 2, 3]
    assert found["blk.0.ffn_gate.weight.counts"].data.ravel().tolist() == [600]
    for example in theirs.tensors:
        if example.name in found:
            assert len(found[example.name].shape) == len(example.shape) == 1


def test_the_old_form_is_the_one_that_llama_cpp_writes(small: Statistics, tmp_path: Path) -> None:
    write_imatrix(small, tmp_path / "ours.dat", "dat")
    name = b"blk.0.ffn_%s.weight"
    expected = struct.pack("<i", 3)
    for which, values in ((b"down", [1, 2, 3]), (b"gate", [600, 0]), (b"up", [600, 0])):
        means = [np.float32(value / 600 * 2) for value in values]
        full = name % which
        expected += struct.pack(f"<i{len(full)}sii{len(values)}f", len(full), full, 2, len(values), *means)
    text = b"text sha256 abc"
    expected += struct.pack(f"<ii{len(text)}s", 2, len(text), text)
    assert (tmp_path / "ours.dat").read_bytes() == expected


def test_the_old_form_may_end_after_its_entries(tmp_path: Path) -> None:
    data = struct.pack("<ii1sii2f", 1, 1, b"x", 4, 2, 4.0, 8.0)
    (tmp_path / "short.dat").write_bytes(data)
    found = read_imatrix(tmp_path / "short.dat").importance("x")
    assert found is not None
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize("form", ["gguf", "dat"])
def test_a_file_that_is_cut_off_is_refused(form: str, tmp_path: Path) -> None:
    whole = (DATA / f"tiny-llama.{form}").read_bytes()
    for size in (0, 3, 7, 40, 600, len(whole) // 2, len(whole) - 200):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read_imatrix(tmp_path / "cut")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (struct.pack("<i", -1), "the number of entries"),
        (struct.pack("<ii", 1, 2**30), "the length of name 0"),
        (struct.pack("<ii1sii1f", 1, 1, b"x", 1, 1, float("nan")), "the values of x"),
        (struct.pack("<ii1sii1f", 1, 1, b"x", 1, 1, -1.0), "the values of x"),
        (struct.pack("<ii1sii", 1, 1, b"x", 1, 2**31 - 1), "within the values of x"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, where: str, tmp_path: Path) -> None:
    (tmp_path / "damaged.dat").write_bytes(data)
    with pytest.raises(FormatError, match=where):
        read_imatrix(tmp_path / "damaged.dat")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_imatrix(tmp_path / "nowhere")
    model = write_gguf(by_name("llama"), tmp_path / "model.gguf")
    with pytest.raises(FormatError, match="without an importance matrix"):
        read_imatrix(model)
    writer = gguf.GGUFWriter(tmp_path / "experts.gguf", "")
    writer.add_tensor("x.in_sum2", np.ones((2, 32), np.float32))
    writer.add_tensor("x.counts", np.ones((2, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="experts"):
        read_imatrix(tmp_path / "experts.gguf")


def test_a_file_that_cannot_be_written_is_an_error(small: Statistics, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="cannot be written"):
        write_imatrix(small, tmp_path / "missing" / "ours.gguf")
    assert list(tmp_path.iterdir()) == []
