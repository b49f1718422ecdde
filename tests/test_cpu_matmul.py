"""The CPU backend's matrix products against the contract written in kernels/cpu/native/matmul.h.

`contract` below evaluates every chain of float operations of that contract in numpy, with exactly rounded fused
multiply-adds, so kernels are compared bit by bit: with the contract, between instruction sets, between numbers of
tokens, and between splits of the rows.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from localinfer.kernels.cpu.codebooks import install_codebooks
from localinfer.kernels.native_library import open_library
from localinfer.kernels.reference.dequantize import DEQUANTIZERS
from localinfer.kernels.reference.dequantize import dequantize as reference_dequantize
from localinfer.kernels.types import TYPES
from random_rows import HALF_OFFSETS, random_rows

Array = np.ndarray[Any, Any]

LIBRARY = open_library("localinfer.kernels.cpu._cpu")
LIBRARY.li_matmul_group_bytes.restype = ctypes.c_size_t
ISAS = [isa for isa in ("portable", "avx2", "avx512vnni") if LIBRARY.li_matmul_has(isa.encode())]

GGUF_INTEGER_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
OWN_INTEGER_TYPES = ("I8_32", "I8_128", "I4_32", "I4_64", "I4_128")
INTEGER_TYPES = GGUF_INTEGER_TYPES + OWN_INTEGER_TYPES
FLOAT_TYPES = ("F32", "F16", "BF16")
GENERIC_TYPES = tuple(name for name in DEQUANTIZERS if name not in INTEGER_TYPES + FLOAT_TYPES)
ALL_TYPES = INTEGER_TYPES + FLOAT_TYPES + GENERIC_TYPES
ROWS = (1, 7, 8, 9, 33)


@pytest.fixture(autouse=True, scope="module")
def _codebooks() -> None:
    """Not at import: what other tests find must not depend on whether this file was collected."""
    install_codebooks(LIBRARY, TYPES)


def pointer(array: Array) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def aligned(size: int) -> Array:
    """`size` zero bytes at a multiple of 64."""
    base = np.zeros(size + 64, np.uint8)
    start = -base.ctypes.data % 64
    return base[start : start + size]


class Weights:
    """A random or given matrix of a type, as in a file, and packed for one instruction set."""

    def __init__(self, isa: str, type_name: str, raw: Array, cols: int) -> None:
        self.isa, self.type, self.raw, self.cols, self.rows = isa.encode(), TYPES[type_name], raw, cols, raw.shape[0]
        self.group_bytes = int(LIBRARY.li_matmul_group_bytes(self.isa, self.type.id, cols))
        assert self.group_bytes % 64 == 0
        bits = (cols // 32 + 7) // 8 if type_name.startswith("F8") else 0
        assert self.group_bytes - 64 < 8 * raw.shape[1] + bits <= self.group_bytes
        self.groups = (self.rows + 7) // 8
        self.packed = aligned(self.groups * self.group_bytes)
        done = LIBRARY.li_matmul_pack(
            self.isa, self.type.id, pointer(raw), ctypes.c_size_t(raw.shape[1]), self.rows, cols, pointer(self.packed)
        )
        assert done == 0

    def unpack(self) -> Array:
        out = np.empty((self.rows, self.cols), np.float32)
        for row in range(self.rows):
            done = LIBRARY.li_matmul_unpack_row(
                self.isa, self.type.id, self.rows, self.cols, pointer(self.packed), row, pointer(out[row])
            )
            assert done == 0
        return out

    def multiply(
        self, a: Activations, groups: tuple[int, int] | None = None, bias: Array | None = None, y: Array | None = None
    ) -> Array:
        y = np.full((len(a.x), self.rows), np.nan, np.float32) if y is None else y
        begin, end = groups or (0, self.groups)
        done = LIBRARY.li_matmul_multiply(
            self.isa,
            self.type.id,
            self.rows,
            self.cols,
            pointer(self.packed),
            *(pointer(part) for part in (a.x, a.q, a.scale, a.sum16, a.sum32)),
            len(a.x),
            begin,
            end,
            pointer(y),
            ctypes.c_size_t(self.rows),
            None if bias is None else pointer(bias),
        )
        assert done == 0
        return y


class Activations:
    """Rows of floats and their int8 form, as one instruction set quantizes them."""

    def __init__(self, isa: str, x: Array) -> None:
        tokens, cols = x.shape
        self.x = np.ascontiguousarray(x, np.float32)
        self.q = np.empty((tokens, cols), np.int8)
        self.scale = np.empty((tokens, cols // 16), np.float32)
        self.sum16 = np.empty((tokens, cols // 16), np.float32)
        self.sum32 = np.empty((tokens, cols // 32), np.float32)
        outputs = [pointer(part) for part in (self.q, self.scale, self.sum16, self.sum32)]
        assert LIBRARY.li_matmul_quantize(isa.encode(), pointer(self.x), tokens, cols, *outputs) == 0

    def rows(self, begin: int, end: int) -> Activations:
        part = Activations.__new__(Activations)
        for name in ("x", "q", "scale", "sum16", "sum32"):
            setattr(part, name, np.ascontiguousarray(getattr(self, name)[begin:end]))
        return part


def fma(a: Array, b: Array, c: Array) -> Array:
    """float32 a * b + c rounded once: the sum in float64 rounded to odd, then to nearest (Boldo & Melquiond 2008)."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), np.asarray(c, np.float64)
    product, addend = np.broadcast_arrays(product, addend)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(np.float32)


def quantize(x: Array) -> tuple[Array, Array, Array, Array]:
    """q, scale, sum16, sum32 as matmul.h defines them, for finite x."""
    groups = x.reshape(len(x), -1, 16)
    largest = np.abs(groups).max(-1)
    zero = largest < 2.0**-119
    safe = np.where(zero, np.float32(1), largest)
    q = np.rint(groups * (np.float32(127) / safe)[..., None])
    q[zero] = 0
    scale = np.where(zero, np.float32(0), largest / np.float32(127))
    sum16 = scale * q.sum(-1).astype(np.float32)
    return q.reshape(x.shape).astype(np.int8), scale, sum16, sum16[:, ::2] + sum16[:, 1::2]


def stored_weights(type_name: str, raw: Array) -> tuple[Array, ...]:
    """(u [rows, cols], d, m [rows, blocks], sc [rows, cols / 16], mins [rows, cols / 32]) of an integer type."""
    blocks = raw.reshape(len(raw), -1, TYPES[type_name].block_bytes)

    def half(offset: int) -> Array:
        return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0].astype(np.float32)

    def nibbles(part: Array, run: int) -> Array:  # `run` bytes hold 2 * run weights: low nibbles, then high
        part = part.reshape(*part.shape[:2], -1, 1, run)
        return (np.concatenate([part, part >> 4], -2) & 15).reshape(*part.shape[:2], -1)

    def bits(part: Array, axis: int) -> Array:
        return np.unpackbits(part, axis=axis, bitorder="little")

    if type_name in OWN_INTEGER_TYPES:
        u = blocks[..., 5:].view(np.int8)
        if type_name.startswith("I4"):
            u = np.stack([blocks[..., 5:] & 15, blocks[..., 5:] >> 4], -1)
        d = np.ascontiguousarray(blocks[..., :4]).view(np.float32)[..., 0]
        m = -d * blocks[..., 4].view(np.int8).astype(np.float32)
        per_32 = [part.repeat(TYPES[type_name].block_size // 32, -1) for part in (d, m)]
        return u.astype(np.int64).reshape(len(raw), -1), *per_32, np.zeros((len(raw), 0)), np.zeros((len(raw), 0))
    d = half(HALF_OFFSETS[type_name][0])
    m = half(2) if len(HALF_OFFSETS[type_name]) == 2 else -d * {"Q4_0": 8, "Q5_0": 16}.get(type_name, 0)
    sc = mins = np.zeros(0)
    if type_name == "Q8_0":
        u = blocks[..., 2:].view(np.int8)
    elif type_name in ("Q4_0", "Q4_1"):
        u = nibbles(blocks[..., -16:], 16)
    elif type_name in ("Q5_0", "Q5_1"):
        u = nibbles(blocks[..., -16:], 16) | bits(blocks[..., -20:-16], -1) << 4
    elif type_name == "Q6_K":
        low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 2, 32)
        low = np.stack([low[..., 0, :] & 15, low[..., 1, :] & 15, low[..., 0, :] >> 4, low[..., 1, :] >> 4], -2)
        high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None] & 3
        u = low | high << 4
        sc = blocks[..., 192:208].view(np.int8).astype(np.int64)
    else:
        u = nibbles(blocks[..., -128:], 32)
        if type_name == "Q5_K":
            high = blocks[..., 16:48].reshape(*blocks.shape[:2], 1, 32) >> np.arange(8)[:, None] & 1
            u = u | high.reshape(u.shape) << 4
        a, b, c = (blocks[..., i : i + 4].astype(np.int64) for i in (4, 8, 12))
        sc = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], -1).repeat(2, -1)
        mins = np.concatenate([b & 63, c >> 4 | (b >> 6) << 4], -1)
    return tuple(part.reshape(len(raw), -1) for part in (u.astype(np.int64), d, m, sc, mins))


def dequantized(type_name: str, raw: Array, cols: int) -> Array:
    return reference_dequantize(TYPES[type_name], raw.tobytes(), (len(raw), cols))


def contract(type_name: str, raw: Array, x: Array) -> Array:
    """y [tokens, rows], bit for bit."""
    shape = (len(x), len(raw))
    acc = np.zeros(shape, np.float32)
    if type_name.startswith("F8"):
        blocks = raw.reshape(len(raw), -1, TYPES[type_name].block_bytes)
        d = np.ascontiguousarray(blocks[..., :4]).view(np.float32)[..., 0] * np.float32(256)
        codes = blocks[..., 4:].reshape(len(raw), -1).astype(np.uint16)
        small = ((codes & 0x80) << 8 | (codes & 0x7F) << 7).view(np.float16).astype(np.float32)
        for start in range(0, x.shape[1], 32):
            t = np.zeros(shape, np.float32)
            for k in range(start, start + 32):
                t = fma(small[None, :, k], x[:, None, k], t)
            acc = fma(d[None, :, start // TYPES[type_name].block_size], t, acc)
        return acc
    if type_name not in INTEGER_TYPES:
        w = dequantized(type_name, raw, x.shape[1])
        for k in range(x.shape[1]):
            acc = fma(w[None, :, k], x[:, None, k], acc)
        return acc
    q, a, s16, s32 = quantize(x)
    u, d, m, sc, mins = stored_weights(type_name, raw)
    i = np.einsum("rgk,tgk->gtr", u.reshape(len(raw), -1, 16), q.astype(np.int64).reshape(len(x), -1, 16))
    groups = 16 if TYPES[type_name].block_size == 256 else 2
    for block in range(d.shape[1]):
        t, v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for g in range(block * groups, (block + 1) * groups):
            dot = (i[g] * (sc[None, :, g] if sc.size else 1)).astype(np.float32)
            t = fma(dot, a[:, None, g], t)
            if type_name == "Q6_K":
                v = fma(sc[None, :, g].astype(np.float32), s16[:, None, g], v)
            elif mins.size and g % 2:
                v = fma(mins[None, :, g // 2].astype(np.float32), s32[:, None, g // 2], v)
        acc = fma(d[None, :, block], t, acc)
        if type_name == "Q6_K":
            acc = fma(-32 * d[None, :, block], v, acc)
        elif type_name in ("Q4_K", "Q5_K"):
            acc = fma(-m[None, :, block], v, acc)
        elif type_name != "Q8_0":
            acc = fma(m[None, :, block], s32[:, None, block], acc)
    return acc


def columns(type_name: str) -> tuple[int, ...]:
    """One block; for blocks of 32 also counts that are no multiple of 256, as real models have."""
    return {256: (256, 768), 128: (128, 384), 64: (64, 576)}.get(TYPES[type_name].block_size, (32, 576, 896))


def inputs(tokens: int, cols: int, seed: int = 1) -> Array:
    random = np.random.default_rng(seed)
    return (random.standard_normal((tokens, cols)) * random.lognormal(0, 2, (tokens, cols))).astype(np.float32)


def same_bits(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", ALL_TYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_products_follow_the_contract(isa: str, type_name: str, rows: int) -> None:
    for cols in columns(type_name):
        raw, x = random_rows(type_name, rows, cols), inputs(5, cols)
        expected = contract(type_name, raw, x)
        assert same_bits(Weights(isa, type_name, raw, cols).multiply(Activations(isa, x)), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_any_number_of_tokens_gives_the_bits_of_one(isa: str, type_name: str) -> None:
    rows, cols = 41, columns(type_name)[-1]
    weights = Weights(isa, type_name, random_rows(type_name, rows, cols), cols)
    most = 40 if isa != "portable" else 20
    a = Activations(isa, inputs(most, cols))
    single = np.concatenate([weights.multiply(a.rows(t, t + 1)) for t in range(most)])
    for tokens in range(2, most + 1):
        assert same_bits(weights.multiply(a.rows(0, tokens)), single[:tokens]), f"{tokens} tokens"
    many = a.rows(0, 1)
    for name in ("x", "q", "scale", "sum16", "sum32"):
        setattr(many, name, np.ascontiguousarray(np.tile(getattr(a, name), (8, 1))[:133]))
    assert same_bits(weights.multiply(many), np.tile(single, (8, 1))[:133])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", ALL_TYPES)
@pytest.mark.parametrize("tokens", [1, 3, 11])
def test_any_split_of_the_rows_gives_the_same_bits(isa: str, type_name: str, tokens: int) -> None:
    rows, cols = 8 * 11 + 3, columns(type_name)[-1]
    weights = Weights(isa, type_name, random_rows(type_name, rows, cols), cols)
    a, bias = Activations(isa, inputs(tokens, cols)), inputs(1, rows)[0]
    whole = weights.multiply(a, bias=bias)
    assert same_bits(whole, weights.multiply(a) + bias)
    for step in (1, 3, 5):
        y = np.full((tokens, rows), np.nan, np.float32)
        for begin in range(0, weights.groups, step):
            weights.multiply(a, (begin, min(begin + step, weights.groups)), bias, y)
        assert same_bits(y, whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_rows_read_back_are_those_of_the_reference(isa: str, type_name: str) -> None:
    for cols in columns(type_name):
        raw = random_rows(type_name, 11, cols)
        assert same_bits(Weights(isa, type_name, raw, cols).unpack(), dequantized(type_name, raw, cols))


@pytest.mark.parametrize("isa", ISAS)
def test_every_exponent_of_the_four_bit_floats_reads_back(isa: str) -> None:
    for name in ("MXFP4", "NVFP4"):
        type_ = TYPES[name]
        raw = np.zeros((256, type_.block_bytes), np.uint8)
        raw[:, : type_.block_bytes // 8] = np.arange(256)[:, None].astype(np.uint8)  # the exponents
        raw[:, type_.block_bytes // 8 :] = np.arange(type_.block_bytes - type_.block_bytes // 8) * 37 % 256
        weights = Weights(isa, name, raw, type_.block_size)
        assert same_bits(weights.unpack(), dequantized(name, raw, type_.block_size))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", GGUF_INTEGER_TYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_weights_and_activations_do_not_overflow(isa: str, type_name: str, sign: int) -> None:
    cols = columns(type_name)[-1]
    for fill in (0xFF, 0x80, 0x7F):  # all bits set; for Q8_0 also -128 and 127, for the scales of Q6_K likewise
        raw = np.full((9, cols // TYPES[type_name].block_size, TYPES[type_name].block_bytes), fill, np.uint8)
        for offset in HALF_OFFSETS[type_name]:
            raw[..., offset : offset + 2] = np.array([np.float16(-0.5)]).view(np.uint8)
        raw = raw.reshape(9, -1)
        x = np.full((9, cols), sign, np.float32)
        x[1::2] *= np.where(np.arange(cols) % 2, 1, -1)  # alternating, so that pairs cancel
        assert same_bits(Weights(isa, type_name, raw, cols).multiply(Activations(isa, x)), contract(type_name, raw, x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", GGUF_INTEGER_TYPES)
def test_zero_tiny_and_negative_scales(isa: str, type_name: str) -> None:
    cols = columns(type_name)[-1]
    raw = random_rows(type_name, 16, cols).reshape(16, -1, TYPES[type_name].block_bytes)
    for offset in HALF_OFFSETS[type_name]:
        halves = np.array([0.0, -0.0, 6e-8, -6e-8, 3e-5, -1.0, 65504.0, 1.0] * 2, np.float16)
        raw[..., offset : offset + 2] = halves[:, None, None].view(np.uint8)
    raw = raw.reshape(16, -1)
    x = inputs(4, cols)
    x[0] = 0
    x[1] *= np.float32(1e-36)
    x[2, :16] = 0
    weights, a = Weights(isa, type_name, raw, cols), Activations(isa, x)
    assert same_bits(weights.multiply(a), contract(type_name, raw, x))
    assert same_bits(weights.unpack(), dequantized(type_name, raw, cols))


OWN_TYPES = tuple(name for name, kind in TYPES.items() if not kind.in_gguf)
SCALES = np.array([0.0, -0.0, 1e-45, -3e-39, 1e-30, -1.0, 2.0**100, 1.0] * 2, np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", OWN_TYPES)
def test_every_scale_and_extreme_codes_of_our_own_types(isa: str, type_name: str) -> None:
    cols = columns(type_name)[-1]
    for fill in (0xFF, 0x80, 0x7F, 0x00):
        if type_name.startswith("F8") and fill & 0x7F == 0x7F:  # NaN is refused by the readers
            fill -= 1
        raw = np.full((16, cols // TYPES[type_name].block_size, TYPES[type_name].block_bytes), fill, np.uint8)
        raw[..., :4] = SCALES[:, None, None].view(np.uint8)
        raw = raw.reshape(16, -1)
        x = inputs(5, cols) * np.float32(1e-3)
        x[0] = 0
        x[1] = np.where(np.arange(cols) % 2, 1, -1)
        x[2] *= np.float32(1e-34)
        weights, a = Weights(isa, type_name, raw, cols), Activations(isa, x)
        assert same_bits(weights.unpack(), dequantized(type_name, raw, cols))
        assert same_bits(weights.multiply(a), contract(type_name, raw, x))


@pytest.mark.parametrize("isa", ISAS)
def test_every_code_of_the_small_floats(isa: str) -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    for type_name in ("F8_32", "F8_128"):
        block = TYPES[type_name].block_size
        raw = np.zeros((16, 1, TYPES[type_name].block_bytes), np.uint8)
        raw[..., :4] = np.array([1.0], np.float32).view(np.uint8)
        raw[:, 0, 4:] = np.resize(codes, 16 * block).reshape(16, block)
        raw = raw.reshape(16, -1)
        theirs = torch.from_numpy(np.ascontiguousarray(raw[:, 4:])).view(torch.float8_e4m3fn).float().numpy()
        weights = Weights(isa, type_name, raw, block)
        assert same_bits(weights.unpack(), theirs)
        ones = np.eye(block, dtype=np.float32)
        assert np.array_equal(weights.multiply(Activations(isa, ones)), theirs.T)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["I8", "I4", "F8"])
def test_bits_do_not_depend_on_how_many_weights_share_a_scale(isa: str, kind: str) -> None:
    cols = 384
    wide, narrow = TYPES[f"{kind}_128"], TYPES[f"{kind}_32"]
    raw, a = random_rows(wide.name, 9, cols), Activations(isa, inputs(20, cols))
    head = 4 if kind == "F8" else 5
    blocks = raw.reshape(9, -1, wide.block_bytes)
    heads = blocks[..., None, :head].repeat(4, 2)
    split = np.concatenate([heads, blocks[..., head:].reshape(*blocks.shape[:2], 4, -1)], -1).reshape(9, -1)
    assert split.shape[1] == narrow.row_bytes(cols)
    split = np.ascontiguousarray(split)
    assert same_bits(*(Weights(isa, t.name, r, cols).multiply(a) for t, r in ((wide, raw), (narrow, split))))


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_quantized_as_the_contract_says(isa: str) -> None:
    x = inputs(64, 576)
    x[0] = 0
    x[1] = np.arange(576) % 7 - 3
    x[2] = np.arange(576) % 255 - 127
    x[3, ::16] = 127
    x[3, 1::16] = 0.5  # ties, both to even
    x[3, 2::16] = 1.5
    x[4] = np.float32(2.0**-119)
    x[5] = np.nextafter(np.float32(2.0**-119), np.float32(0))
    x[6] = np.float32(1e-45)
    x[7] = 1e36
    x[8, ::3] *= np.float32(1e30)
    a = Activations(isa, x)
    for got, expected in zip((a.q, a.scale, a.sum16, a.sum32), quantize(x), strict=True):
        assert same_bits(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_bad_activation_spoils_only_its_own_row(isa: str, bad: float) -> None:
    for type_name in ("Q4_1", "Q8_0", "Q4_K", "Q6_K", "I8_32", "I4_128"):
        cols = columns(type_name)[-1]
        raw, x = random_rows(type_name, 8, cols), inputs(7, cols)
        weights = Weights(isa, type_name, raw, cols)
        before = weights.multiply(Activations(isa, x))
        x[3, 21] = bad
        a = Activations(isa, x)
        assert np.isnan(a.scale[3, 1])
        assert not a.q[3, 16:32].any()
        after = weights.multiply(a)
        assert np.isnan(after[3]).all()
        others = [t for t in range(7) if t != 3]
        assert same_bits(after[others], before[others])


def test_types_without_a_meaning_have_no_packed_form() -> None:
    for isa in ISAS:
        for type_id, cols in ((9, 256), (15, 256), (41, 256), (99, 256), (-1, 256), (TYPES["Q4_K"].id, 128), (2, 31)):
            assert LIBRARY.li_matmul_group_bytes(isa.encode(), type_id, cols) == 0
        assert LIBRARY.li_matmul_group_bytes(isa.encode(), TYPES["Q4_0"].id, 0) == 0


def test_a_code_book_of_the_wrong_size_is_refused() -> None:
    assert LIBRARY.li_cpu_set_codebook(TYPES["IQ2_S"].id, b"\0" * 8, ctypes.c_size_t(8)) == -1
    assert LIBRARY.li_cpu_set_codebook(TYPES["Q4_0"].id, b"\0" * 8, ctypes.c_size_t(8)) == -1


def test_what_does_not_exist_is_refused_untouched() -> None:
    """Null pointers would crash if anything were read or written."""
    q8, cols = TYPES["Q8_0"].id, 64
    for isa, type_id, rows, columns in ((b"mmx", q8, 8, cols), (b"portable", 77, 8, cols), (b"portable", q8, 0, cols),
                                        (b"portable", q8, 8, 33)):  # fmt: skip
        row_bytes = ctypes.c_size_t(68)
        assert LIBRARY.li_matmul_pack(isa, type_id, None, row_bytes, rows, columns, None) == -1
        assert LIBRARY.li_matmul_unpack_row(isa, type_id, rows, columns, None, 0, None) == -1
    for row in (-1, 8):
        assert LIBRARY.li_matmul_unpack_row(b"portable", q8, 8, cols, None, row, None) == -1
    for isa, columns in ((b"mmx", 32), (b"portable", 31)):
        assert LIBRARY.li_matmul_quantize(isa, None, 1, columns, None, None, None, None) == -1
    for begin, end, stride in ((-1, 1, 8), (0, 2, 8), (1, 0, 8), (0, 1, 7)):
        none = [None] * 5
        shape = (1, begin, end, None, ctypes.c_size_t(stride), None)
        assert LIBRARY.li_matmul_multiply(b"portable", q8, 8, cols, None, *none, *shape) == -1
