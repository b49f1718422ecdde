"""What every tensor type means: the bytes of a block, and the weights that they stand for.

Each function below documents one type of the ggml format (ggml repository, ggml-common.h has the block layouts,
ggml-quants.c the arithmetic), the last ones types of our own. Its layout lists the fields of a block in file order,
little-endian; the function gets an array of n such blocks and returns float32 `[n, weights per block]`. Products and
sums are rounded to float32 one by one, in the order written, so that every other implementation can be compared bit
for bit.

To add a type: a row in `kernels/types.py`, and a function here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from localinfer.errors import UnsupportedError
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES, TensorType

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Dequantizer = Callable[[Array], Floats]

_BYTES, _SBYTE = "u1", "i1"
_HALF, _SHORT, _WORD = "<f2", "<u2", "<u4"
_CHUNK_WEIGHTS = 1 << 20  # converted at once, so that temporary arrays stay small

# By type name: the layout of a block and the function that reads it.
DEQUANTIZERS: dict[str, tuple[np.dtype[Any], Dequantizer]] = {}


def dequantize(type: TensorType, data: Any, shape: tuple[int, ...], name: str = "the tensor") -> Floats:
    """The weights of a tensor as float32 of that `shape`, from the bytes `data` (any contiguous buffer).

    Raises UnsupportedError, naming the tensor, for a type that has no dequantizer.
    Infinite or NaN scales in the data give infinite or NaN weights.
    """
    if type.name not in DEQUANTIZERS:
        raise UnsupportedError(
            f"{name} is of type {type.name}, which cannot be turned into numbers",
            "use a version of the model that is quantized in another way",
        )
    layout, convert = DEQUANTIZERS[type.name]
    blocks = np.frombuffer(data, layout)
    weights = np.empty((len(blocks), type.block_size), np.float32)
    step = _CHUNK_WEIGHTS // type.block_size
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            weights[start : start + step] = convert(chunk).reshape(len(chunk), type.block_size)
    return weights.reshape(shape)


def dequantize_tensor(tensor: Tensor) -> Floats:
    """The weights of a tensor as float32 `tensor.shape`."""
    return dequantize(tensor.type, tensor.buffer, tensor.shape, f"tensor {tensor.name}")


def _layout(*fields: Any) -> Callable[[Dequantizer], Dequantizer]:
    """Registers a function under its upper-case name, for blocks of these (name, type[, count]) fields."""

    def register(function: Dequantizer) -> Dequantizer:
        dtype = np.dtype(list(fields))
        name = function.__name__.upper()
        if dtype.itemsize != TYPES[name].block_bytes:
            raise TypeError(f"the layout of {name} has {dtype.itemsize} bytes instead of {TYPES[name].block_bytes}")
        DEQUANTIZERS[name] = (dtype, function)
        return function

    return register


# ---- shared pieces ---------------------------------------------------------------------------------------------


def _fields(x: Array, bits: int) -> Array:
    """Splits integers into fields of `bits` bits, lowest first: [...] to [..., bits of x / bits]."""
    shifts = np.arange(0, 8 * x.itemsize, bits, dtype=x.dtype)
    fields: Array = (x[..., None] >> shifts) & x.dtype.type((1 << bits) - 1)
    return fields


def _sequence(x: Array, bits: int) -> Array:
    """Fields of `bits` bits that follow one another: [n, k] to [n, k * fields]."""
    return _fields(x, bits).reshape(len(x), -1)


def _planes(x: Array, bits: int, width: int) -> Array:
    """Fields that are interleaved: of each run of `width` bytes, first all lowest fields, then all next ones, ..."""
    return _fields(x.reshape(len(x), -1, width), bits).swapaxes(-1, -2).reshape(len(x), -1)


def _float(x: Array) -> Floats:
    return x.astype(np.float32)


def _scaled(scales: Array, weights: Array) -> Floats:
    """scales [n, s] times weights [n, w], each scale serving a run of w / s weights."""
    runs = _float(weights).reshape(*scales.shape, -1)
    return (_float(scales)[..., None] * runs).reshape(len(weights), -1)


def _scaled_less(scales: Array, weights: Array, minimums: Array) -> Floats:
    """scales [n, s] times weights [n, w], minus minimums [n, s]."""
    runs = _float(weights).reshape(*scales.shape, -1)
    return (_float(scales)[..., None] * runs - _float(minimums)[..., None]).reshape(len(weights), -1)


# ---- plain numbers ---------------------------------------------------------------------------------------------


@_layout(("x", "<f4"))
def f32(block: Array) -> Floats:
    """IEEE 754 binary32."""
    return _float(block["x"])


@_layout(("x", _HALF))
def f16(block: Array) -> Floats:
    """IEEE 754 binary16."""
    return _float(block["x"])


@_layout(("x", _SHORT))
def bf16(block: Array) -> Floats:
    """The upper 16 bits of a binary32."""
    return (block["x"].astype(np.uint32) << np.uint32(16)).view(np.float32)


@_layout(("x", "<f8"))
def f64(block: Array) -> Floats:
    """IEEE 754 binary64, rounded to nearest."""
    return _float(block["x"])


@_layout(("x", _SBYTE))
def i8(block: Array) -> Floats:
    """Signed integer."""
    return _float(block["x"])


@_layout(("x", "<i2"))
def i16(block: Array) -> Floats:
    """Signed integer."""
    return _float(block["x"])


@_layout(("x", "<i4"))
def i32(block: Array) -> Floats:
    """Signed integer, rounded to nearest."""
    return _float(block["x"])


@_layout(("x", "<i8"))
def i64(block: Array) -> Floats:
    """Signed integer, rounded to nearest."""
    return _float(block["x"])


# ---- 32 weights with one scale ---------------------------------------------------------------------------------


@_layout(("d", _HALF), ("q", _BYTES, 16))
def q4_0(block: Array) -> Floats:
    """w = d * (q - 8), q of 4 bits. Byte i holds weight i in its low and weight 16 + i in its high half."""
    return _scaled(block["d"][:, None], _planes(block["q"], 4, 16).astype(np.int8) - np.int8(8))


@_layout(("d", _HALF), ("m", _HALF), ("q", _BYTES, 16))
def q4_1(block: Array) -> Floats:
    """w = d * q + m, q of 4 bits in the order of Q4_0."""
    return _scaled(block["d"][:, None], _planes(block["q"], 4, 16)) + _float(block["m"])[:, None]


@_layout(("d", _HALF), ("high", _BYTES, 4), ("q", _BYTES, 16))
def q5_0(block: Array) -> Floats:
    """w = d * (q - 16), q of 5 bits: 4 in the order of Q4_0, and bit i of `high` on top for weight i."""
    return _scaled(block["d"][:, None], _five_bits(block).astype(np.int8) - np.int8(16))


@_layout(("d", _HALF), ("m", _HALF), ("high", _BYTES, 4), ("q", _BYTES, 16))
def q5_1(block: Array) -> Floats:
    """w = d * q + m, q of 5 bits as in Q5_0."""
    return _scaled(block["d"][:, None], _five_bits(block)) + _float(block["m"])[:, None]


def _five_bits(block: Array) -> Array:
    five: Array = _planes(block["q"], 4, 16) | (_sequence(block["high"], 1) << np.uint8(4))
    return five


@_layout(("d", _HALF), ("q", _SBYTE, 32))
def q8_0(block: Array) -> Floats:
    """w = d * q, q a signed byte."""
    return _scaled(block["d"][:, None], block["q"])


# ---- K types: 256 weights, scales of sub-blocks are themselves quantized -------------------------------------------


@_layout(("scales", _BYTES, 16), ("q", _BYTES, 64), ("d", _HALF), ("dmin", _HALF))
def q2_k(block: Array) -> Floats:
    """w = (d * s) * q - dmin * m per 16 weights; s and m are the low and high halves of a byte of `scales`.

    q has 2 bits. Each run of 32 bytes holds 128 weights: the lowest fields are the first 32 of them, and so on.
    """
    s, m = block["scales"] & np.uint8(15), block["scales"] >> np.uint8(4)
    d, dmin = _float(block["d"])[:, None], _float(block["dmin"])[:, None]
    return _scaled_less(d * _float(s), _planes(block["q"], 2, 32), dmin * _float(m))


@_layout(("high", _BYTES, 32), ("q", _BYTES, 64), ("scales", _BYTES, 12), ("d", _HALF))
def q3_k(block: Array) -> Floats:
    """w = d * (s - 32) * (q - 4) per 16 weights, q of 3 bits, s of 6.

    Two bits of q are as in Q2_K, the third is bit j of byte i of `high` for weight 32 j + i.
    Four bits of s: the low halves of the first 8 bytes of `scales` for sub-blocks 0 to 7, then the high halves.
    The upper two: the 2-bit fields of the last 4 bytes, the lowest fields for sub-blocks 0 to 3, and so on.
    """
    q = _planes(block["q"], 2, 32) | (_planes(block["high"], 1, 32) << np.uint8(2))
    s = _planes(block["scales"][:, :8], 4, 8) | (_planes(block["scales"][:, 8:], 2, 4) << np.uint8(4))
    scales = _float(block["d"])[:, None] * _float(s.astype(np.int8) - np.int8(32))
    return _scaled(scales, q.astype(np.int8) - np.int8(4))


@_layout(("d", _HALF), ("dmin", _HALF), ("scales", _BYTES, 12), ("q", _BYTES, 128))
def q4_k(block: Array) -> Floats:
    """w = (d * s) * q - dmin * m per 32 weights, q of 4 bits, s and m of 6.

    Each run of 32 bytes of `q` holds 64 weights, the low halves first. For `scales` see `_six_bit_scales`.
    """
    scales, minimums = _six_bit_scales(block)
    return _scaled_less(scales, _planes(block["q"], 4, 32), minimums)


@_layout(("d", _HALF), ("dmin", _HALF), ("scales", _BYTES, 12), ("high", _BYTES, 32), ("q", _BYTES, 128))
def q5_k(block: Array) -> Floats:
    """As Q4_K, with a fifth bit of q: bit j of byte i of `high` for weight 32 j + i."""
    q = _planes(block["q"], 4, 32) | (_planes(block["high"], 1, 32) << np.uint8(4))
    scales, minimums = _six_bit_scales(block)
    return _scaled_less(scales, q, minimums)


def _six_bit_scales(block: Array) -> tuple[Floats, Floats]:
    """d * s and dmin * m, each [n, 8], from the 12 bytes that Q4_K and Q5_K pack s and m into.

    Bytes 0-3 hold s of sub-blocks 0-3 and bytes 4-7 their m, in 6 bits. Sub-blocks 4-7 have the low four bits of s
    and m in the low and high halves of bytes 8-11, the upper two in the spare bits of bytes 0-3 (s) and 4-7 (m).
    """
    a, b, c = np.split(block["scales"], 3, axis=1)
    spare_a, spare_b = (a >> np.uint8(6)) << np.uint8(4), (b >> np.uint8(6)) << np.uint8(4)
    s = np.concatenate([a & np.uint8(63), (c & np.uint8(15)) | spare_a], axis=1)
    m = np.concatenate([b & np.uint8(63), (c >> np.uint8(4)) | spare_b], axis=1)
    return _float(block["d"])[:, None] * _float(s), _float(block["dmin"])[:, None] * _float(m)


@_layout(("q", _BYTES, 128), ("high", _BYTES, 64), ("scales", _SBYTE, 16), ("d", _HALF))
def q6_k(block: Array) -> Floats:
    """w = (d * s) * (q - 32) per 16 weights, q of 6 bits, s a signed byte.

    Four bits of q: each run of 64 bytes holds 128 weights, the low halves first. The upper two: each run of 32
    bytes of `high` holds 128 weights, the lowest fields first.
    """
    q = _planes(block["q"], 4, 64) | (_planes(block["high"], 2, 32) << np.uint8(4))
    return _scaled(_float(block["d"])[:, None] * _float(block["scales"]), q.astype(np.int8) - np.int8(32))


# ---- three values ----------------------------------------------------------------------------------------------


@_layout(("q", _BYTES, 48), ("rest", _BYTES, 4), ("d", _HALF))
def tq1_0(block: Array) -> Floats:
    """w = d * (t - 1), t a base-3 digit, five to a byte.

    A byte is ceil(256 / 243 * number): multiplying it by 3 pushes the next digit out at the top. So digit k is
    the carry of 3 * (byte * 3^k mod 256). The first 32 bytes hold 160 weights (all first digits, then all second
    digits, ...), the next 16 hold 80, and the 4 of `rest` the last 16, with four digits each.
    """
    runs = [(block["q"][:, :32], 5), (block["q"][:, 32:], 5), (block["rest"], 4)]
    digits = [_base3(run, count) for run, count in runs]
    return _scaled(block["d"][:, None], np.concatenate(digits, axis=1).astype(np.int8) - np.int8(1))


def _base3(x: Array, count: int) -> Array:
    powers = np.array([1, 3, 9, 27, 81][:count], np.uint8)
    remaining = x[:, None, :] * powers[:, None]  # modulo 256
    digits: Array = (remaining.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return digits.reshape(len(x), -1)


@_layout(("q", _BYTES, 64), ("d", _HALF))
def tq2_0(block: Array) -> Floats:
    """w = d * (q - 1), q of 2 bits in the order of Q2_K."""
    return _scaled(block["d"][:, None], _planes(block["q"], 2, 32).astype(np.int8) - np.int8(1))


# ---- four-bit floats and code books of 16 values -----------------------------------------------------------------

# Twice the values of a float of 1 sign, 2 exponent and 1 mantissa bits (OCP Microscaling Formats 1.0, E2M1).
_TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
# The 16 levels of IQ4_NL and IQ4_XS, denser around zero.
_IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@_layout(("e", _BYTES), ("q", _BYTES, 16))
def mxfp4(block: Array) -> Floats:
    """w = 2^(e - 128) * twice the E2M1 value of q (OCP Microscaling Formats 1.0), q in the order of Q4_0."""
    scales = np.ldexp(np.float32(1), block["e"].astype(np.int32) - 128)
    return _scaled(scales[:, None], _TWICE_E2M1[_planes(block["q"], 4, 16)])


@_layout(("e", _BYTES, 4), ("q", _BYTES, 32))
def nvfp4(block: Array) -> Floats:
    """w = s / 2 * twice the E2M1 value of q, per 16 weights; each run of 8 bytes of `q` holds 16, low halves first.

    s is a float of 4 exponent bits (bias 7) and 3 mantissa bits. The top bit is ignored; 0x7f, which is NaN in
    E4M3, counts as zero.
    """
    exponent = ((block["e"] >> np.uint8(3)) & np.uint8(15)).astype(np.int32)
    mantissa = _float(block["e"] & np.uint8(7)) / np.float32(8)
    normal = exponent > 0
    scales = np.ldexp(mantissa + normal.astype(np.float32), np.where(normal, exponent, 1) - 7 - 1)
    scales[block["e"] == 0x7F] = 0
    return _scaled(scales, _TWICE_E2M1[_planes(block["q"], 4, 8)])


@_layout(("d", _HALF), ("q", _BYTES, 16))
def iq4_nl(block: Array) -> Floats:
    """w = d * level[q], q of 4 bits in the order of Q4_0."""
    return _scaled(block["d"][:, None], _IQ4_LEVELS[_planes(block["q"], 4, 16)])


@_layout(("d", _HALF), ("high", _SHORT), ("low", _BYTES, 4), ("q", _BYTES, 128))
def iq4_xs(block: Array) -> Floats:
    """w = d * (s - 32) * level[q] per 32 weights, s of 6 bits; each run of 16 bytes of `q` is as in Q4_0.

    The low four bits of the eight s follow one another in `low`, the upper two in `high`.
    """
    s = _sequence(block["low"], 4) | (_fields(block["high"], 2).astype(np.uint8) << np.uint8(4))
    scales = _float(block["d"])[:, None] * _float(s.astype(np.int8) - np.int8(32))
    return _scaled(scales, _IQ4_LEVELS[_planes(block["q"], 4, 16)])


# ---- code books of 4 or 8 weights --------------------------------------------------------------------------------
# IQ2 and IQ3 pick magnitudes from a code book and store signs; IQ1 picks from {-1, 0, 1}^8 and adds a shift.


@functools.cache
def _code_book(name: str) -> Floats:
    """The entries of a type's code book, float32 [entries, weights per entry] (kept by the gguf package)."""
    import gguf.quants

    book: Any = getattr(gguf.quants, name)
    book.init_grid()
    entries: Floats = book.grid.reshape(book.grid_shape)
    return entries


def _signs(bits: Array) -> Floats:
    """-1 where a bit is set, else 1, lowest bit first: uint8 [...] to [..., 8]."""
    return np.float32(1) - np.float32(2) * _float(_fields(bits, 1))


def _even_signs(index: Array) -> Floats:
    """Signs of 8 weights from 7 bits: the eighth makes the number of minus signs even. [...] to [..., 8]."""
    low = index.astype(np.uint8)
    parity = _fields(low, 1).sum(axis=-1, dtype=np.uint8) & np.uint8(1)
    return _signs(low | (parity << np.uint8(7)))


def _signed_book(scales: Floats, entries: Floats, signs: Floats) -> Floats:
    """scales [n, s] times code-book entries, with signs [n, ..., 8]; each scale serves a run of 256 / s weights."""
    runs = entries.reshape(*scales.shape, -1)
    return scales[..., None] * runs * signs.reshape(runs.shape)


@_layout(("d", _HALF), ("group", [("index", _BYTES, 4), ("signs", _WORD)], 8))
def iq2_xxs(block: Array) -> Floats:
    """w = d * (0.5 + s) * 0.25 * entry, with signs, per 32 weights: four entries of 8 weights.

    `signs` of a group: four times 7 bits of signs (see `_even_signs`), and s in the upper four bits.
    """
    group = block["group"]
    s = _float(group["signs"] >> np.uint32(28))
    seven_bits = (group["signs"][..., None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
    scales = _float(block["d"])[:, None] * (np.float32(0.5) + s) * np.float32(0.25)
    return _signed_book(scales, _code_book("IQ2_XXS")[group["index"]], _even_signs(seven_bits))


@_layout(("d", _HALF), ("q", _SHORT, 32), ("scales", _BYTES, 8))
def iq2_xs(block: Array) -> Floats:
    """w = d * (0.5 + s) * 0.25 * entry, with signs, per 16 weights: two entries of 8 weights.

    The low 9 bits of each of `q` are the entry, the upper 7 its signs (see `_even_signs`); s follow one another
    in halves of bytes.
    """
    s = _float(_sequence(block["scales"], 4))
    scales = _float(block["d"])[:, None] * (np.float32(0.5) + s) * np.float32(0.25)
    entries = _code_book("IQ2_XS")[block["q"] & np.uint16(511)]
    return _signed_book(scales, entries, _even_signs(block["q"] >> np.uint16(9)))


@_layout(("d", _HALF), ("low", _BYTES, 32), ("signs", _BYTES, 32), ("high", _BYTES, 8), ("scales", _BYTES, 8))
def iq2_s(block: Array) -> Floats:
    """As IQ2_XS, but an entry has 10 bits (2 of them in `high`, which follow one another) and 8 signs of its own."""
    s = _float(_sequence(block["scales"], 4))
    scales = _float(block["d"])[:, None] * (np.float32(0.5) + s) * np.float32(0.25)
    index = block["low"] | (_sequence(block["high"], 2).astype(np.uint16) << np.uint16(8))
    return _signed_book(scales, _code_book("IQ2_S")[index], _signs(block["signs"]))


@_layout(("d", _HALF), ("index", _BYTES, 64), ("signs", _WORD, 8))
def iq3_xxs(block: Array) -> Floats:
    """w = d * (0.5 + s) * 0.5 * entry, with signs, per 32 weights: eight entries of 4 weights.

    `signs` are as in IQ2_XXS.
    """
    s = _float(block["signs"] >> np.uint32(28))
    seven_bits = (block["signs"][..., None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
    scales = _float(block["d"])[:, None] * (np.float32(0.5) + s) * np.float32(0.5)
    return _signed_book(scales, _code_book("IQ3_XXS")[block["index"]], _even_signs(seven_bits))


@_layout(("d", _HALF), ("low", _BYTES, 64), ("high", _BYTES, 8), ("signs", _BYTES, 32), ("scales", _BYTES, 4))
def iq3_s(block: Array) -> Floats:
    """w = d * (1 + 2 s) * entry, with signs, per 32 weights: eight entries of 4 weights.

    An entry has 9 bits, the ninth in `high`; bits of `high` and `signs`, and s in halves of bytes, follow one another.
    """
    s = _float(_sequence(block["scales"], 4))
    scales = _float(block["d"])[:, None] * (np.float32(1) + np.float32(2) * s)
    index = block["low"] | (_sequence(block["high"], 1).astype(np.uint16) << np.uint16(8))
    return _signed_book(scales, _code_book("IQ3_S")[index], _signs(block["signs"]))


@_layout(("d", _HALF), ("low", _BYTES, 32), ("high", _SHORT, 8))
def iq1_s(block: Array) -> Floats:
    """w = d * (2 s + 1) * (entry + shift) per 32 weights: four entries of 8 weights.

    Each of `high` has, from its lowest bit, the upper 3 bits of four 11-bit entries, 3 bits of s, and a bit that is
    set where the shift is -1/8 instead of 1/8.
    """
    high = block["high"]
    scales = _float(block["d"])[:, None] * (np.float32(2) * _float((high >> np.uint16(12)) & np.uint16(7)) + 1)
    shift = np.where(high >> np.uint16(15), np.float32(-0.125), np.float32(0.125))
    upper = (high[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    index = block["low"].reshape(-1, 8, 4) | (upper << np.uint16(8))
    weights: Floats = scales[..., None, None] * (_code_book("IQ1_S")[index] + shift[..., None, None])
    return weights


@_layout(("low", _BYTES, 32), ("high", _BYTES, 16), ("scales", _SHORT, 4))
def iq1_m(block: Array) -> Floats:
    """w = d * (2 s + 1) * (entry + shift), s per 16 weights, entry and shift per 8.

    Each half of a byte of `high` has the upper 3 bits of an 11-bit entry and the bit of its shift, as in IQ1_S.
    The binary16 d is spread over the upper four bits of the four `scales`, the lowest first; below those,
    each has four s of 3 bits.
    """
    quarters = (block["scales"] >> np.uint16(12)) << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1).view(np.float16)
    s = (block["scales"][..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    scales = _float(d)[:, None, None] * (np.float32(2) * _float(s) + 1)
    high = _sequence(block["high"], 4)
    shift = np.where(high & np.uint8(8), np.float32(-0.125), np.float32(0.125))
    index = block["low"] | ((high & np.uint8(7)).astype(np.uint16) << np.uint16(8))
    shifted = _code_book("IQ1_M")[index] + shift[..., None]
    weights: Floats = scales.reshape(-1, 16, 1) * shifted.reshape(-1, 16, 16)
    return weights


# ---- our own: what quantized checkpoints in other formats are rewritten to -----------------------------------------
# Several sizes of block, so that weights that share a scale in the file share one here as well.


def _integers(block: Array, q: Array) -> Floats:
    """d * (q - z), one d and z per block."""
    return block["d"][:, None] * _float(q.astype(np.int16) - block["z"][:, None].astype(np.int16))


@_layout(("d", "<f4"), ("z", _SBYTE), ("q", _SBYTE, 32))
def i8_32(block: Array) -> Floats:
    """w = d * (q - z), q and z signed bytes."""
    return _integers(block, block["q"])


@_layout(("d", "<f4"), ("z", _SBYTE), ("q", _SBYTE, 128))
def i8_128(block: Array) -> Floats:
    """As I8_32."""
    return _integers(block, block["q"])


@_layout(("d", "<f4"), ("z", _SBYTE), ("q", _BYTES, 16))
def i4_32(block: Array) -> Floats:
    """w = d * (q - z), q of 4 bits that follow one another, the low half of a byte first; z a signed byte."""
    return _integers(block, _sequence(block["q"], 4))


@_layout(("d", "<f4"), ("z", _SBYTE), ("q", _BYTES, 32))
def i4_64(block: Array) -> Floats:
    """As I4_32."""
    return _integers(block, _sequence(block["q"], 4))


@_layout(("d", "<f4"), ("z", _SBYTE), ("q", _BYTES, 64))
def i4_128(block: Array) -> Floats:
    """As I4_32."""
    return _integers(block, _sequence(block["q"], 4))


def _small_floats(block: Array) -> Floats:
    """(256 d) * (e / 256), e a float of 1 sign, 4 exponent (bias 7) and 3 mantissa bits.

    e / 256 is the binary16 with the same sign, exponent and mantissa bits. So the two codes that are NaN in E4M3
    (OCP 8-bit floating point specification 1.0) count as 480 and -480: who writes a block must not have them.
    """
    wide = block["q"].astype(np.uint16)
    halves = ((wide & np.uint16(0x80)) << np.uint16(8)) | ((wide & np.uint16(0x7F)) << np.uint16(7))
    return _scaled(np.float32(256) * block["d"][:, None], halves.view(np.float16))


@_layout(("d", "<f4"), ("q", _BYTES, 32))
def f8_32(block: Array) -> Floats:
    """w = d * e, e a float of 8 bits; see `_small_floats`."""
    return _small_floats(block)


@_layout(("d", "<f4"), ("q", _BYTES, 128))
def f8_128(block: Array) -> Floats:
    """As F8_32."""
    return _small_floats(block)
