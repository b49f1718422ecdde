"""Every dequantizer against gguf-py's, bit for bit."""

from __future__ import annotations

from array import array

import gguf
import numpy as np
import pytest
import torch
from gguf import quants

from localinfer.errors import UnsupportedError
from localinfer.kernels.reference.dequantize import DEQUANTIZERS, dequantize
from localinfer.kernels.types import BY_ID, FIRST_INTERNAL_ID, TYPES

# Types that gguf-py cannot dequantize either: they hold activations, or are too new.
WITHOUT_DEQUANTIZER = {"Q8_1", "Q8_K", "Q1_0"}
PLAIN = {"F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def expected(name: str, data: np.ndarray, columns: int) -> np.ndarray:
    if name in PLAIN:
        return data.view(PLAIN[name]).astype(np.float32)
    return quants.dequantize(data, gguf.GGMLQuantizationType[name])


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal bits, except that any NaN equals any other (hardware chooses the payload)."""
    either = np.isnan(ours) | np.isnan(theirs)
    equal = ours.view(np.uint32) == theirs.view(np.uint32)
    return ours.shape == theirs.shape and bool(np.all(np.where(either, np.isnan(ours) & np.isnan(theirs), equal)))


def random_blocks(name: str, rows: int, columns: int, seed: int, finite: bool) -> np.ndarray:
    """Random bytes; with `finite`, the fields that hold float scales get ordinary values."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, TYPES[name].row_bytes(columns)), np.uint8)
    layout = DEQUANTIZERS[name][0]
    if finite and TYPES[name].block_size > 1:
        blocks = data.view(layout)
        for field in {"d", "m", "dmin"} & set(layout.names or ()):
            blocks[field] = rng.normal(0, 0.01, blocks.shape).astype(np.float16)
        if name == "MXFP4":
            blocks["e"] = rng.integers(110, 130, blocks.shape)
        if name == "IQ1_M":  # its binary16 scale ends in the top bits of the last field
            blocks["scales"][..., 3] = blocks["scales"][..., 3] & 0x0FFF | 0x2000
    return data


@pytest.mark.parametrize("finite", [True, False], ids=["ordinary scales", "any bits"])
@pytest.mark.parametrize("name", [name for name in DEQUANTIZERS if TYPES[name].in_gguf])
def test_equals_gguf_py(name: str, finite: bool) -> None:
    columns = 3 * TYPES[name].block_size
    data = random_blocks(name, 97, columns, seed=7, finite=finite)
    with np.errstate(all="ignore"):
        theirs = expected(name, data, columns)
    ours = dequantize(TYPES[name], memoryview(data).cast("B"), (97, columns))
    assert ours.dtype == np.float32
    assert ours.shape == (97, columns)
    assert same_bits(ours, theirs)
    if finite and TYPES[name].block_size > 1:
        assert np.isfinite(ours).all()
        assert len(np.unique(ours)) > 50, "the weights should differ"


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4", "TQ1_0"])
def test_every_byte_value_of_the_first_field(name: str) -> None:
    """Exponents and base-3 bytes have special values; all 256 are tried."""
    data = np.resize(np.arange(256, dtype=np.uint8), (256, TYPES[name].block_bytes)).copy()
    data[:, 0] = np.arange(256)
    if name == "TQ1_0":
        data[:, -2:] = np.array([1], np.float16).view(np.uint8)
    with np.errstate(all="ignore"):
        theirs = expected(name, data, TYPES[name].block_size)
    assert same_bits(dequantize(TYPES[name], data, theirs.shape), theirs)


def test_the_table_covers_all_types_but_the_named_ones() -> None:
    assert set(TYPES) - set(DEQUANTIZERS) == WITHOUT_DEQUANTIZER
    by_gguf_py = {t.name for t in quants._type_traits} | {"F32", "F16"}
    assert by_gguf_py <= set(DEQUANTIZERS)


@pytest.mark.parametrize("name", sorted(WITHOUT_DEQUANTIZER))
def test_a_type_without_dequantizer_is_named(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"tensor blk\.0\.x is of type {name}"):
        dequantize(TYPES[name], bytes(TYPES[name].block_bytes), (TYPES[name].block_size,), "tensor blk.0.x")


def test_types_agree_with_gguf_py() -> None:
    theirs = {t.name: (t.value, *gguf.GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType}
    assert {t.name: (t.id, t.block_size, t.block_bytes) for t in TYPES.values() if t.in_gguf} == theirs


def test_types_of_our_own_are_none_that_a_gguf_file_may_name() -> None:
    own = [t for t in TYPES.values() if not t.in_gguf]
    assert len(own) == 7
    assert all(t.id >= FIRST_INTERNAL_ID and t.id not in BY_ID for t in own)
    assert {t.id for t in TYPES.values()} - set(BY_ID) == {t.id for t in own}


@pytest.mark.parametrize("name", ["I8_32", "I8_128", "I4_32", "I4_64", "I4_128"])
def test_integers_with_zero_points(name: str) -> None:
    """Against the definition in float64, where products of a float32 and a small integer are exact."""
    data = random_blocks(name, 5, 3 * TYPES[name].block_size, seed=9, finite=False).reshape(-1, TYPES[name].block_bytes)
    data[:, :4] = np.random.default_rng(1).standard_normal((len(data), 1)).astype(np.float32).view(np.uint8)
    scale = np.ascontiguousarray(data[:, :4]).view(np.float32).astype(np.float64)
    codes = data[:, 5:].view(np.int8).astype(np.int64)
    if name.startswith("I4"):
        codes = np.stack([data[:, 5:] & 15, data[:, 5:] >> 4], -1).reshape(len(data), -1).astype(np.int64)
    exact = scale * (codes - data[:, 4:5].view(np.int8))
    assert same_bits(dequantize(TYPES[name], data.tobytes(), exact.shape), exact.astype(np.float32))


@pytest.mark.parametrize("name", ["F8_32", "F8_128"])
def test_floats_of_eight_bits(name: str) -> None:
    size = TYPES[name].block_size
    numbers = [code for code in range(256) if code & 0x7F != 0x7F]
    codes = np.resize(numbers, (16, size)).astype(np.uint8)
    scale = np.array([1, -0.5, 3e-39, 1e30] * 4, np.float32)[:, None]
    exact = torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy() * scale.astype(np.float64)
    data = np.concatenate([scale.view(np.uint8), codes], axis=1)
    assert same_bits(dequantize(TYPES[name], data.tobytes(), exact.shape), exact.astype(np.float32))


def test_many_chunks_and_three_dimensions() -> None:
    data = random_blocks("Q8_0", 3 * 700, 1024, seed=3, finite=True)
    ours = dequantize(TYPES["Q8_0"], data.data, (3, 700, 1024))
    assert same_bits(ours.reshape(-1, 1024), expected("Q8_0", data, 1024))


def test_any_buffer_is_accepted_and_an_empty_one_too() -> None:
    assert dequantize(TYPES["F32"], array("f", [1.5, -2]), (2,)).tolist() == [1.5, -2]
    assert dequantize(TYPES["Q4_0"], b"", (0, 32)).shape == (0, 32)
