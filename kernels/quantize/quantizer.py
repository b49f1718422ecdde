"""Turning float32 weights into quantized ones (native/): rows into GGUF blocks, or codes and scales.

Every function is a function of its arguments alone: the bytes are the same for any number of threads, instruction set
and compiler. A method ("search-1") names one algorithm for ever; its results never change under that name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.kernels.host.memory import address_of
from localinfer.kernels.native_library import open_library
from localinfer.kernels.types import TYPES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Codes = npt.NDArray[Any]

# GGUF types that `quantize_rows` makes.
QUANTIZABLE: tuple[str, ...] = (
    *("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
# GGUF types that `quantize_with_feedback` makes.
WITH_FEEDBACK: tuple[str, ...] = tuple(name for name in QUANTIZABLE if name not in ("F16", "BF16"))
# What a caller may ask for, and the algorithm that stands for it today (to be written into provenance).
METHODS = {"search": "search-1", "search-1": "search-1"}
FEEDBACK_METHODS = {"feedback": "feedback-1", "feedback-1": "feedback-1"}

# Ids of native/kernels.h, and the order of its ScaleType.
_INT8, _E4M3, _INT4 = 1000, 1001, 1032
_INT4_GROUPS = (32, 64, 128, 256)
_SCALE_TYPES = ("F32", "F16", "BF16")


class _CodeOptions(ctypes.Structure):
    """CodeOptions of native/kernels.h."""

    _fields_ = (
        ("scale_type", ctypes.c_int32),
        ("symmetric", ctypes.c_int32),
        ("scales", ctypes.c_void_p),
        ("row_block", ctypes.c_int64),
        ("column_block", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


@cache
def _library() -> ctypes.CDLL:
    library = open_library("localinfer.kernels.quantize._quantize")
    pointer, i32, i64, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
    where, options = ctypes.POINTER(i64), ctypes.POINTER(_CodeOptions)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "li_quantize_instructions": (text, [i32]),
        "li_quantize_factor": (i32, [pointer, i64, ctypes.c_double, i32, pointer, where]),
        "li_quantize_feedback": (
            i32,
            [i32, pointer, i64, i64, pointer, pointer, i32, options, i32, pointer, i64, where],
        ),
        "li_quantize_use": (i32, [text]),
        "li_quantize_rows": (i32, [i32, pointer, i64, i64, pointer, options, i32, pointer, i64, where]),
        "li_quantize_scales": (i32, [i32, pointer, i64, i64, pointer, i32, i64, i64, i32, pointer, where]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def instruction_sets() -> tuple[str, ...]:
    """What the quantizers can run on here, from portable to best. All give the same bytes; the best one is used."""
    found: list[str] = []
    while name := _library().li_quantize_instructions(len(found)):
        found.append(name.decode())
    return tuple(found)


def use_instructions(name: str | None) -> None:
    """From now on this process uses one of `instruction_sets()` (None: the best); tests compare them."""
    if _library().li_quantize_use(name.encode() if name else None) != 0:
        raise UnsupportedError(f"this processor has no {name}", f"instruction sets: {', '.join(instruction_sets())}")


def resolve_method(method: str) -> str:
    """The algorithm behind a method's name, to be recorded: "search" to "search-1". UnsupportedError if unknown."""
    known = METHODS | FEEDBACK_METHODS
    if method not in known:
        raise UnsupportedError(f"there is no quantization method {method}", f"methods: {', '.join(sorted(known))}")
    return known[method]


class Hessian:
    """Second moments of what a matrix is multiplied with: sums (or means) of x xᵀ over tokens.

    `grams`: symmetric float32 matrices along the diagonal, from the first column on; their sizes add up to the columns
    of the weights. One matrix means all of it; what lies outside of the blocks counts as zero. Only ratios matter.
    Factors are kept, so that matrices with the same inputs share them if they share the object.
    """

    def __init__(self, grams: Sequence[Floats]) -> None:
        self.grams = tuple(grams)
        self._factors: dict[float, tuple[Floats, ...]] = {}

    @property
    def columns(self) -> int:
        return sum(len(gram) for gram in self.grams)

    def importance(self) -> Floats:
        """The diagonal, float32 [columns]: the second moment of each column."""
        import numpy as np

        return np.concatenate([np.diagonal(gram) for gram in self.grams]).astype(np.float32)

    def factors(self, damping: float, threads: int = 0) -> tuple[Floats, ...]:
        """For each gram the upper triangular R with R Rᵀ = gram / mean + damping, mean being that of its diagonal."""
        if damping not in self._factors:
            self._factors[damping] = tuple(_factor(gram, damping, threads) for gram in self.grams)
        return self._factors[damping]


def _factor(gram: Floats, damping: float, threads: int) -> Floats:
    import numpy as np

    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram):
        raise LocalInferError(f"second moments must be square matrices, not {gram.shape}", "the statistics are damaged")
    if not 0 < damping < 1e6:
        raise LocalInferError(f"a damping of {damping} is not possible", "choose a small number above 0, like 0.01")
    gram = np.ascontiguousarray(gram, np.float32)
    factor = np.empty(gram.shape, np.float32)
    where = ctypes.c_int64()
    status = _library().li_quantize_factor(
        gram.ctypes.data,
        len(gram),
        damping,
        threads,
        factor.ctypes.data,
        ctypes.byref(where),
    )
    if status == 4:
        raise LocalInferError(
            f"row {where.value} of the second moments holds NaN, infinity or a negative square",
            "collect the statistics again",
        )
    _check(status, "error feedback", where.value)
    return factor


def _matrix(weights: Floats) -> Floats:
    import numpy as np

    if weights.ndim != 2 or weights.dtype != np.float32:
        raise LocalInferError(f"weights must be a float32 matrix, not {weights.dtype} of shape {weights.shape}")
    return np.ascontiguousarray(weights)


def _vector(values: Floats, size: int, what: str) -> Floats:
    import numpy as np

    if values.shape != (size,):
        raise LocalInferError(f"there are {values.shape} {what} for {size} columns", "they may be of another model")
    return np.ascontiguousarray(values, np.float32)


def _check(status: int, type_name: str, where: int) -> None:
    """Raises what a status of native/status.h says."""
    if status == 0:
        return
    if status == 4:
        raise LocalInferError(
            f"row {where} holds a weight that is NaN or infinite", "the source is damaged, or was trained to overflow"
        )
    if status == 5:
        raise LocalInferError(
            f"row {where} holds weights that are too large for {type_name}", "choose BF16 or F32 for this tensor"
        )
    if status == 6:
        raise LocalInferError(
            f"the importance of column {where} is negative, NaN or infinite", "the statistics are damaged"
        )
    raise RuntimeError(f"the native quantizer for {type_name} answered {status}")


def _prepare(type_name: str, weights: Floats, possible: tuple[str, ...]) -> tuple[_Blocks, Floats]:
    """The blocks of a type of GGUF files, and the weights as native code wants them."""
    if type_name not in possible:
        raise UnsupportedError(f"weights cannot be quantized to {type_name}", f"types: {', '.join(possible)}")
    weights = _matrix(weights)
    tensor_type = TYPES[type_name]
    if not weights.shape[1] or weights.shape[1] % tensor_type.block_size:
        raise LocalInferError(
            f"rows of {weights.shape[1]} weights are no multiple of the {type_name} block of {tensor_type.block_size}",
            "choose a type of smaller blocks, like Q8_0, or F16",
        )
    return _Blocks(type_name, tensor_type.id, tensor_type.block_size, tensor_type.block_bytes), weights


class _Blocks(NamedTuple):
    """A form that native code makes from rows, how many columns share a block, and how many bytes that has."""

    name: str
    id: int
    columns: int
    bytes: int
    options: _CodeOptions | None = None

    def make(self, weights: Floats, importance: Floats | None, threads: int) -> bytearray:
        """The blocks of weights of a multiple of `self.columns` columns."""
        columns = weights.shape[-1]
        if importance is not None:
            importance = _vector(importance, columns, "importances")
        address = None if importance is None else importance.ctypes.data
        return self._made(_library().li_quantize_rows, weights, (address,), threads)

    def make_with_feedback(self, weights: Floats, hessian: Hessian, damping: float, threads: int) -> bytearray:
        """The same, with error feedback."""
        _check_grams(hessian, weights.shape[-1], self.columns)
        factors = hessian.factors(damping, threads)
        addresses = (ctypes.c_void_p * len(factors))(*(factor.ctypes.data for factor in factors))
        sizes = (ctypes.c_int64 * len(factors))(*(len(factor) for factor in factors))
        return self._made(_library().li_quantize_feedback, weights, (addresses, sizes, len(factors)), threads)

    def _made(self, native: Callable[..., int], weights: Floats, known: tuple[Any, ...], threads: int) -> bytearray:
        """The blocks that a native function makes; `known` are its arguments about the inputs of the matrix."""
        rows, columns = weights.shape
        blocks = bytearray(rows * columns // self.columns * self.bytes)
        where = ctypes.c_int64()
        status = native(
            self.id,
            weights.ctypes.data,
            rows,
            columns,
            *known,
            self.options,
            threads,
            address_of(blocks),
            len(blocks),
            ctypes.byref(where),
        )
        _check(status, self.name, where.value)
        return blocks


def quantize_rows(
    type_name: str,
    weights: Floats,
    *,
    importance: Floats | None = None,
    method: str = "search",
    threads: int = 0,
) -> bytearray:
    """The GGUF blocks of `weights` float32 [rows, columns], row after row, as type `type_name` of QUANTIZABLE.

    `importance` float32 [columns], not negative: how much the squared error of each column counts (None: alike).
    `threads` 0 means as many as there are processors. Raises LocalInferError, naming the row, for NaN or infinity, and
    for weights that are too large for the type; UnsupportedError for a type or method that is not known here.
    """
    resolve_method(method)
    blocks, weights = _prepare(type_name, weights, QUANTIZABLE)
    return blocks.make(weights, importance, threads)


def quantize_with_feedback(
    type_name: str,
    weights: Floats,
    *,
    hessian: Hessian,
    damping: float = 0.01,
    method: str = "feedback",
    threads: int = 0,
) -> bytearray:
    """As `quantize_rows`, but the error of each column is compensated in those that follow (GPTQ, Frantar et al. 2022).

    What is minimized is the error of the products, Σ (row error)ᵀ H (row error), with `damping` times the mean of the
    diagonal added to it. Raises LocalInferError, too, if the hessian does not fit the weights or holds NaN.
    """
    resolve_method(method)
    blocks, weights = _prepare(type_name, weights, WITH_FEEDBACK)
    return blocks.make_with_feedback(weights, hessian, damping, threads)


def _check_grams(hessian: Hessian, columns: int, block: int) -> None:
    if hessian.columns != columns:
        raise LocalInferError(
            f"there are second moments of {hessian.columns} columns for {columns}", "they may be of another model"
        )
    for gram in hessian.grams:
        if len(gram) % block:
            raise LocalInferError(
                f"second moments of {len(gram)} columns are no multiple of the block of {block}",
                "collect them in blocks of 256 columns or multiples of that",
            )


def quantize_int8(
    weights: Floats,
    *,
    importance: Floats | None = None,
    hessian: Hessian | None = None,
    damping: float = 0.01,
    scale_type: str = "F32",
    threads: int = 0,
) -> tuple[Codes, Floats]:
    """Symmetric int8 per channel: codes int8 [rows, columns] in -127..127, scales float32 [rows, 1]; w = scale * code.

    `scale_type` F32, F16 or BF16: scales are numbers that this type holds exactly. With a hessian, errors are fed back
    (see `quantize_with_feedback`), and its diagonal stands in for a missing importance.
    """
    blocks = _Blocks("int8", _INT8, 32, 32)
    columns = max(weights.shape[-1], 1)
    codes, scales = _scaled_codes(blocks, weights, (1, columns), importance, hessian, damping, scale_type, threads)
    return codes.view("i1"), scales


def quantize_fp8(
    weights: Floats,
    *,
    block: tuple[int, int] | None = None,
    importance: Floats | None = None,
    hessian: Hessian | None = None,
    damping: float = 0.01,
    scale_type: str = "F32",
    threads: int = 0,
) -> tuple[Codes, Floats]:
    """FP8 E4M3: codes uint8 [rows, columns] (bit patterns), scales float32 [rows, 1]; w = scale * code.

    With `block`, say (128, 128), scales are shared by blocks of so many rows and columns: [rows / 128, columns / 128],
    rounded up; the columns of a block must be a multiple of 32. Else as `quantize_int8`.
    """
    blocks = _Blocks("fp8", _E4M3, 32, 32)
    if block is not None and (block[0] < 1 or block[1] < 1 or block[1] % 32):
        raise UnsupportedError(f"scales cannot be shared by blocks of {block}", "take (128, 128)")
    shape = block or (1, max(weights.shape[-1], 1))
    return _scaled_codes(blocks, weights, shape, importance, hessian, damping, scale_type, threads)


def quantize_int4(
    weights: Floats,
    *,
    group: int = 128,
    symmetric: bool = True,
    importance: Floats | None = None,
    hessian: Hessian | None = None,
    damping: float = 0.01,
    scale_type: str = "F32",
    threads: int = 0,
) -> tuple[Codes, Floats, Codes]:
    """int4 in groups of columns: codes int8 [rows, columns] in -8..7, scales float32 and zeros int8 [rows, groups].

    w = scale * (code - zero); symmetric means that all zeros are 0. `group` is 32, 64, 128 or 256; the last one may
    be smaller. Else as `quantize_int8`.
    """
    import numpy as np

    if group not in _INT4_GROUPS:
        raise UnsupportedError(f"int4 is not possible in groups of {group}", f"groups: {_INT4_GROUPS}")
    options = _CodeOptions(_scale_type(scale_type), int(symmetric))
    blocks = _Blocks("int4", _INT4 + group - 32, group, 5 + group, options)
    data = _code_blocks(blocks, weights, importance, hessian, damping, threads)
    layout = np.dtype([("scale", "<f4"), ("zero", "i1"), ("codes", "i1", group)])
    rows, columns = weights.shape
    groups = np.frombuffer(data, layout).reshape(rows, -(-columns // group))
    codes = groups["codes"].reshape(rows, groups.shape[1] * group)[:, :columns]
    return np.ascontiguousarray(codes), np.ascontiguousarray(groups["scale"]), np.ascontiguousarray(groups["zero"])


def _scaled_codes(
    blocks: _Blocks,
    weights: Floats,
    shape: tuple[int, int],
    importance: Floats | None,
    hessian: Hessian | None,
    damping: float,
    scale_type: str,
    threads: int,
) -> tuple[Codes, Floats]:
    """Codes uint8 [rows, columns] for the best scales of blocks of that shape, and these."""
    import numpy as np

    weights = _matrix(weights)
    rows, columns = weights.shape
    if importance is None and hessian is not None:
        importance = hessian.importance()
    if importance is not None:
        importance = _vector(importance, columns, "importances")
        largest = float(importance.max(initial=0))
        importance = importance / np.float32(largest) if largest > 0 else None
    scales = np.zeros((-(-rows // shape[0]), -(-columns // shape[1])), np.float32)
    where = ctypes.c_int64()
    status = _library().li_quantize_scales(
        blocks.id,
        weights.ctypes.data,
        rows,
        columns,
        None if importance is None else importance.ctypes.data,
        _scale_type(scale_type),
        *shape,
        threads,
        scales.ctypes.data,
        ctypes.byref(where),
    )
    _check(status, blocks.name, where.value)
    # Columns that fill up the last block have zeros only, so its scale serves them as well as any.
    padded_block = max(shape[1], -(-columns // blocks.columns) * blocks.columns) if shape[1] >= columns else shape[1]
    options = _CodeOptions(0, 0, scales.ctypes.data, shape[0], padded_block, scales.shape[1])
    data = _code_blocks(blocks._replace(options=options), weights, None, hessian, damping, threads)
    codes = np.frombuffer(data, np.uint8).reshape(rows, -(-columns // blocks.columns) * blocks.columns)[:, :columns]
    return np.ascontiguousarray(codes), scales


def _code_blocks(
    blocks: _Blocks,
    weights: Floats,
    importance: Floats | None,
    hessian: Hessian | None,
    damping: float,
    threads: int,
) -> bytearray:
    """The blocks of weights of any number of columns: the last one is filled up with zeros."""
    import numpy as np

    weights = _matrix(weights)
    missing = -weights.shape[1] % blocks.columns
    if missing:
        weights = np.pad(weights, ((0, 0), (0, missing)))
        if importance is not None:
            importance = np.pad(importance, (0, missing))
        if hessian is not None:
            hessian = Hessian([*hessian.grams[:-1], np.pad(hessian.grams[-1], (0, missing))])
    if hessian is not None:
        return blocks.make_with_feedback(weights, hessian, damping, threads)
    return blocks.make(weights, importance, threads)


def _scale_type(name: str) -> int:
    if name not in _SCALE_TYPES:
        raise UnsupportedError(f"scales cannot be of type {name}", f"types: {', '.join(_SCALE_TYPES)}")
    return _SCALE_TYPES.index(name)
