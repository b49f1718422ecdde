"""The grid that a block of each type rounds weights to, and where on it every weight was put.

A grid is a list of ascending levels; a weight has the place of one of them, its code, and stands for

    w = step * level[code] - minimum

with a step (and a minimum) per run of weights. This takes blocks apart as kernels/reference/dequantize.py does, which
documents their layouts, but keeps codes and steps apart instead of multiplying them; a test compares the two. Types
that choose from a code book (IQ1, IQ2, IQ3) have no such grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localinfer.kernels.reference.dequantize import DEQUANTIZERS

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Levels:
    """Ascending levels. A weight in units of the step belongs to level i between lower[i] and upper[i].

    Nothing lies beyond the outer ones, since quantizers clip: those borders are infinite.
    """

    values: Floats
    lower: Floats
    upper: Floats

    @property
    def spacing(self) -> float:
        """Between neighbours, on average."""
        return float(self.values[-1] - self.values[0]) / (len(self.values) - 1)


@dataclass(frozen=True)
class Placed:
    """n blocks, taken apart.

    codes     uint8 [n, weights]: indices into the levels
    steps     float32 [n, runs], each for a run of weights / runs weights; 0 where a run has no grid
    minimums  float32 [n, runs], or None where the type has none
    """

    codes: Array
    steps: Floats
    minimums: Floats | None = None


@dataclass(frozen=True)
class Grid:
    """How one type places weights: its levels, and a function from blocks (in the reference's layout) to places."""

    levels: Levels
    place: Callable[[Array], Placed]


# By type name.
GRIDS: dict[str, Grid] = {}


def place(type_name: str, data: Any) -> Placed:
    """The blocks in `data`, any contiguous buffer, taken apart."""
    return GRIDS[type_name].place(np.frombuffer(data, DEQUANTIZERS[type_name][0]))


def _levels(values: Iterable[float]) -> Levels:
    ascending = np.array(list(values), np.float32)
    borders = (ascending[1:] + ascending[:-1]) / np.float32(2)
    lower = np.concatenate([np.array([-np.inf], np.float32), borders])
    upper = np.concatenate([borders, np.array([np.inf], np.float32)])
    return Levels(ascending, lower, upper)


def _grid(values: Iterable[float]) -> Callable[[Callable[[Array], Placed]], Callable[[Array], Placed]]:
    """Registers a function under its upper-case name, for these levels."""

    def register(function: Callable[[Array], Placed]) -> Callable[[Array], Placed]:
        GRIDS[function.__name__.upper()] = Grid(_levels(values), function)
        return function

    return register


def _planes(x: Array, bits: int, width: int) -> Array:
    """Fields of `bits` bits of each run of `width` bytes: first all lowest fields, then all next ones, ..."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (x.reshape(len(x), -1, 1, width) >> shifts[:, None]) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(x), -1)


def _bits(x: Array) -> Array:
    """uint8 [n, bytes] to [n, 8 bytes] of 0 and 1, lowest bit first."""
    return np.unpackbits(x, axis=-1, bitorder="little")


def _float(x: Array) -> Floats:
    return x.astype(np.float32)


def _scale(x: Array) -> Floats:
    """[n] numbers as float32 [n, 1]."""
    return _float(x)[:, None]


@_grid(range(-8, 8))
def q4_0(block: Array) -> Placed:
    return Placed(_planes(block["q"], 4, 16), _scale(block["d"]))


@_grid(range(16))
def q4_1(block: Array) -> Placed:
    return Placed(_planes(block["q"], 4, 16), _scale(block["d"]), -_scale(block["m"]))


@_grid(range(-16, 16))
def q5_0(block: Array) -> Placed:
    return Placed(_five_bits(block), _scale(block["d"]))


@_grid(range(32))
def q5_1(block: Array) -> Placed:
    return Placed(_five_bits(block), _scale(block["d"]), -_scale(block["m"]))


def _five_bits(block: Array) -> Array:
    five: Array = _planes(block["q"], 4, 16) | (_bits(block["high"]) << np.uint8(4))
    return five


@_grid(range(-128, 128))
def q8_0(block: Array) -> Placed:
    return Placed(block["q"].view(np.uint8) ^ np.uint8(128), _scale(block["d"]))


@_grid(range(4))
def q2_k(block: Array) -> Placed:
    steps = _scale(block["d"]) * _float(block["scales"] & np.uint8(15))
    minimums = _scale(block["dmin"]) * _float(block["scales"] >> np.uint8(4))
    return Placed(_planes(block["q"], 2, 32), steps, minimums)


@_grid(range(-4, 4))
def q3_k(block: Array) -> Placed:
    codes = _planes(block["q"], 2, 32) | (_planes(block["high"], 1, 32) << np.uint8(2))
    scales = _planes(block["scales"][:, :8], 4, 8) | (_planes(block["scales"][:, 8:], 2, 4) << np.uint8(4))
    return Placed(codes, _scale(block["d"]) * _float(scales.astype(np.int8) - np.int8(32)))


@_grid(range(16))
def q4_k(block: Array) -> Placed:
    return Placed(_planes(block["q"], 4, 32), *_six_bit_scales(block))


@_grid(range(32))
def q5_k(block: Array) -> Placed:
    codes = _planes(block["q"], 4, 32) | (_planes(block["high"], 1, 32) << np.uint8(4))
    return Placed(codes, *_six_bit_scales(block))


def _six_bit_scales(block: Array) -> tuple[Floats, Floats]:
    low, middle, high = np.split(block["scales"], 3, axis=1)
    four, two, six = np.uint8(15), np.uint8(6), np.uint8(63)
    scales = np.concatenate([low & six, (high & four) | ((low >> two) << np.uint8(4))], axis=1)
    minimums = np.concatenate([middle & six, (high >> np.uint8(4)) | ((middle >> two) << np.uint8(4))], axis=1)
    return _scale(block["d"]) * _float(scales), _scale(block["dmin"]) * _float(minimums)


@_grid(range(-32, 32))
def q6_k(block: Array) -> Placed:
    codes = _planes(block["q"], 4, 64) | (_planes(block["high"], 2, 32) << np.uint8(4))
    return Placed(codes, _scale(block["d"]) * _float(block["scales"]))


@_grid(range(-1, 2))
def tq1_0(block: Array) -> Placed:
    runs = ((block["q"][:, :32], 5), (block["q"][:, 32:], 5), (block["rest"], 4))
    return Placed(np.concatenate([_base3(run, count) for run, count in runs], axis=1), _scale(block["d"]))


def _base3(x: Array, count: int) -> Array:
    remaining = x[:, None, :] * np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]  # modulo 256
    digits = (remaining.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return digits.astype(np.uint8).reshape(len(x), -1)


@_grid(range(-1, 3))
def tq2_0(block: Array) -> Placed:
    return Placed(_planes(block["q"], 2, 32), _scale(block["d"]))


_E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
_SIGNED_E2M1 = tuple(-value for value in reversed(_E2M1[1:])) + _E2M1
# The place of each of the 16 codes; minus zero has that of zero.
_E2M1_PLACES = np.array([7 + i for i in range(8)] + [7 - i for i in range(8)], np.uint8)


@_grid(_SIGNED_E2M1)
def mxfp4(block: Array) -> Placed:
    steps = np.ldexp(np.float32(1), block["e"].astype(np.int32) - 127)
    return Placed(_E2M1_PLACES[_planes(block["q"], 4, 16)], steps[:, None])


@_grid(_SIGNED_E2M1)
def nvfp4(block: Array) -> Placed:
    exponents = ((block["e"] >> np.uint8(3)) & np.uint8(15)).astype(np.int32)
    mantissas = _float(block["e"] & np.uint8(7)) / np.float32(8) + (exponents > 0)
    steps = np.ldexp(_float(mantissas), np.maximum(exponents, 1) - 7)
    steps[block["e"] == 0x7F] = 0
    return Placed(_E2M1_PLACES[_planes(block["q"], 4, 8)], steps)


_IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@_grid(_IQ4_LEVELS)
def iq4_nl(block: Array) -> Placed:
    return Placed(_planes(block["q"], 4, 16), _scale(block["d"]))


@_grid(_IQ4_LEVELS)
def iq4_xs(block: Array) -> Placed:
    low = _planes(block["low"][:, :, None], 4, 1)
    upper = (block["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scales = low | (upper.astype(np.uint8) << np.uint8(4))
    return Placed(_planes(block["q"], 4, 16), _scale(block["d"]) * _float(scales.astype(np.int8) - np.int8(32)))


# ---- what checkpoints of safetensors are read as ---------------------------------------------------------------------

# Types of no GGUF file, into which checkpoints/quantized reads integers and FP8.
INTERNAL = ("I8_32", "I8_128", "I4_32", "I4_64", "I4_128", "F8_32", "F8_128")


def _integers(block: Array, codes: Array) -> Placed:
    steps = _scale(block["d"])
    return Placed(codes, steps, steps * _scale(block["z"]))


def _signed_bytes(block: Array) -> Placed:
    return _integers(block, block["q"].view(np.uint8) ^ np.uint8(128))


def _halves(block: Array) -> Placed:
    both = np.stack([block["q"] & np.uint8(15), block["q"] >> np.uint8(4)], axis=-1)
    return _integers(block, both.reshape(len(block), -1))


def _e4m3() -> Floats:
    """What each of 256 bytes stands for: 1 sign, 4 exponent and 3 mantissa bits. NaN counts as 480."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    return _float(np.where(code & 128, -size, size))


_E4M3_VALUES = _e4m3()
_E4M3_LEVELS = _levels(np.unique(_E4M3_VALUES))
# No weight is put on NaN: those beyond 448 are clipped.
_E4M3_LEVELS.upper[[0, -2]] = -np.inf, np.inf
_E4M3_LEVELS.lower[[1, -1]] = -np.inf, np.inf
_E4M3_PLACES = np.searchsorted(_E4M3_LEVELS.values, _E4M3_VALUES).astype(np.uint8)


def _small_floats(block: Array) -> Placed:
    return Placed(_E4M3_PLACES[block["q"]], _scale(block["d"]))


GRIDS |= dict.fromkeys(("I8_32", "I8_128"), Grid(_levels(range(-128, 128)), _signed_bytes))
GRIDS |= dict.fromkeys(("I4_32", "I4_64", "I4_128"), Grid(_levels(range(16)), _halves))
GRIDS |= dict.fromkeys(("F8_32", "F8_128"), Grid(_E4M3_LEVELS, _small_floats))
