"""compressed-tensors checkpoints, as llm-compressor and `localinfer quantize` write them.

config.json has groups of modules, each with a scheme: type and bits of weights, and which weights share a scale. A
module of one has

    weight              I8, or F8_E4M3 [rows, columns]          (int-, float-, naive-quantized)
    weight_packed       I32, with weight_shape I64 [2]          (pack-quantized: codes plus 2^(bits - 1), each row a
                        little-endian stream of fields; older writers leave bits between words free)
    weight_scale        one value, [rows, 1], [rows, groups] or [block rows, block columns]
    weight_zero_point   likewise, I8 or F8_E4M3; in pack-quantized I32, each column a stream over rows
    weight_g_idx        I32 [columns], perhaps: the group of each column; -1 if it has no meaning

    weight = scale * (code - zero point)

(compressed-tensors, compressors/ and quantization/lifecycle/forward.py.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from localinfer.checkpoints.quantized.extras import ACTIVATION_NOTE, CACHE_NOTE, note, set_aside
from localinfer.checkpoints.quantized.gptq import ORDER_NOTE
from localinfer.checkpoints.quantized.grid import (
    ReadRows,
    checked_groups,
    integer_matrix,
    matrix_shape,
    rectangle_of,
    scales_of,
    small_float_matrix,
)
from localinfer.checkpoints.quantized.matrix import Quantized, QuantizedReader
from localinfer.checkpoints.quantized.settings import Settings
from localinfer.checkpoints.quantized.stored import (
    Array,
    as_bytes,
    damaged,
    expect,
    fields,
    integers,
    padded_fields,
    raw_bytes,
)
from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.safetensors import SafetensorsFolder, StoredTensor

_FORMATS = ("dense", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision")
_FLOAT_ZEROS = (0x00, 0x80)


@dataclass(frozen=True)
class _Scheme:
    """How the weights of a group of modules are quantized; `block` is as `rectangle_of` takes it."""

    name: str
    targets: tuple[str, ...]
    bits: int
    is_float: bool
    symmetric: bool
    block: tuple[int, int] | None


def read(settings: Settings, tensors: SafetensorsFolder) -> QuantizedReader:
    """The reader of a compressed-tensors checkpoint; see `reader_for`."""
    _expect_format(settings)
    reader = QuantizedReader()
    schemes = _schemes(settings, reader)
    ignored = settings.texts("ignore")
    modules = dict.fromkeys(
        name.rpartition(".")[0] for name in tensors.tensors if name.endswith((".weight_scale", ".weight_packed"))
    )
    for module in modules:
        scheme = None if _fits(module, ignored, settings) else _scheme_of(module, schemes, settings)
        if scheme is None:
            raise FormatError(
                f"{tensors.paths[0]}: {module} has quantized weights, but {settings.path} gives no scheme for it",
                "the files may belong to different models: download them again",
            )
        parts = _Parts(tensors, module)
        reader.weights[f"{module}.weight"] = _matrix(parts, scheme)
        reader.used |= parts.used
    reordered = sum(tensors.has_tensor(f"{module}.weight_g_idx") and
                    reader.weights[f"{module}.weight"].type.name == "F32" for module in modules)  # fmt: skip
    if reordered:
        note(reader, ORDER_NOTE.format(count=reordered))
    if settings.values.get("kv_cache_scheme"):
        note(reader, CACHE_NOTE)
    set_aside(reader, tensors)
    return reader


# ---- config.json -------------------------------------------------------------------------------------------------


def _expect_format(settings: Settings) -> None:
    form = settings.text("format", "dense")
    if form not in _FORMATS:
        raise UnsupportedError(
            f"{settings.path}: the checkpoint has the format {form!r}, which is not read",
            f"of compressed-tensors, {', '.join(_FORMATS[1:-1])} are",
        )
    sparsity = settings.object("sparsity_config")
    if sparsity and sparsity.text("format", "dense") != "dense":
        raise UnsupportedError(f"{settings.path}: weights that are compressed as sparse are not read")
    status = settings.text("quantization_status", "compressed")
    if status != "compressed":
        raise UnsupportedError(
            f"{settings.path}: the weights are not compressed yet (quantization_status is {status!r})",
            "save the model with save_compressed=True",
        )


def _schemes(settings: Settings, reader: QuantizedReader) -> list[_Scheme]:
    groups = settings.object("config_groups")
    schemes: list[_Scheme] = []
    for name in groups.values if groups else ():
        assert groups is not None
        group = groups.object(name)
        weights = group and group.object("weights")
        if group is None or weights is None:
            continue
        form = group.text("format", "dense")
        if form not in _FORMATS:
            raise UnsupportedError(f"{settings.path}: {group.where} has the format {form!r}, which is not read")
        if group.object("input_activations") or group.object("output_activations"):
            note(reader, ACTIVATION_NOTE)
        schemes.append(_scheme(name, tuple(group.texts("targets")), weights))
    return schemes


def _scheme(name: str, targets: tuple[str, ...], weights: Settings) -> _Scheme:
    bits, kind = weights.number("num_bits", 8), weights.text("type", "int").lower()
    if (kind, bits) != ("float", 8) and not (kind == "int" and 2 <= bits <= 8):
        raise UnsupportedError(
            f"{weights.path}: {weights.where} has weights of type {kind} with {bits} bits, which are not read",
            "integers of 2 to 8 bits and floats of 8 are",
        )
    group = weights.values.get("group_size")
    block = weights.values.get("block_structure")
    strategy = weights.text("strategy") or ("tensor" if group is None else "channel" if group == -1 else "group")
    shares: tuple[int, int] | None = None
    match strategy.lower():
        case "tensor" | "channel":
            pass
        case "group":
            shares = 1, weights.number("group_size", 0)
        case "block":
            sides = block.split("x") if isinstance(block, str) else block
            if not isinstance(sides, list) or len(sides) != 2 or not all(str(side).isdecimal() for side in sides):
                raise weights.error(f"block_structure should be two sizes, but is {block!r:.40}")
            shares = int(sides[0]), int(sides[1])
        case _:
            raise UnsupportedError(f"{weights.path}: {weights.where} has the strategy {strategy!r}, which is not read")
    if shares is not None and min(shares) < 1:
        raise weights.error(f"groups or blocks of {shares[0]} x {shares[1]} weights are none")
    return _Scheme(name, targets, bits, kind == "float", weights.flag("symmetric", True), shares)


def _scheme_of(module: str, schemes: list[_Scheme], settings: Settings) -> _Scheme | None:
    """The scheme of a module: of a target that is its name, else of a pattern, else of its class."""
    targets = {target: scheme for scheme in reversed(schemes) for target in scheme.targets}
    for target in sorted(targets, key=lambda target: ("re:" in target, target)):
        if _fits(module, [target], settings):
            return targets[target]
    return targets.get("Embedding" if module.endswith("embed_tokens") else "Linear")


def _fits(module: str, targets: list[str], settings: Settings) -> bool:
    """Whether one of the targets is the name of the module, or a pattern ("re:…") that it begins with."""
    for target in targets:
        if target == module:
            return True
        if target.startswith("re:"):
            try:
                if re.match(target.removeprefix("re:"), module):
                    return True
            except re.error as error:
                raise settings.error(f"{target!r} is no pattern: {error}") from error
    return False


# ---- tensors -----------------------------------------------------------------------------------------------------


class _Parts:
    """The stored tensors of a module."""

    def __init__(self, tensors: SafetensorsFolder, module: str) -> None:
        self._tensors = tensors
        self._module = module
        self.used: set[str] = set()

    def get(self, part: str) -> StoredTensor | None:
        name = f"{self._module}.{part}"
        return self.need(part) if self._tensors.has_tensor(name) else None

    def need(self, part: str) -> StoredTensor:
        name = f"{self._module}.{part}"
        self.used.add(name)
        return self._tensors.tensor(name)


def _matrix(parts: _Parts, scheme: _Scheme) -> Quantized:
    scale, packed = parts.need("weight_scale"), parts.get("weight_packed")
    padded = False
    nibbles: ReadRows | None = None
    if scheme.is_float:
        return _floats(parts, scale, scheme)
    if packed is None:
        weight = expect(parts.need("weight"), ("I8",))
        shape = matrix_shape(weight)
        stored = integers(weight)
        codes: ReadRows = lambda start, rows: _in_range(stored[start : start + rows], scheme.bits, weight)  # noqa: E731
    else:
        shape = _shape(parts.need("weight_shape"))
        padded = _is_padded(expect(packed, ("I32",)), shape, scheme.bits)
        codes = _packed_codes(packed, shape, scheme.bits, padded)
        if scheme.bits == 4:
            words = integers(packed)
            nibbles = lambda start, rows: as_bytes(words[start : start + rows])[:, : shape[1] // 2]  # noqa: E731
    # Codes of up to 4 bits are kept unsigned.
    offset = 1 << scheme.bits - 1 if scheme.bits <= 4 else 0
    kind: Literal["I4", "I8"] = "I4" if scheme.bits <= 4 else "I8"
    read_scales, group = scales_of(scale, shape, scheme.block)
    read_zeros = _zeros(parts.get("weight_zero_point"), scale, shape, scheme, padded)
    groups = -(-shape[1] // group)
    return integer_matrix(
        shape,
        kind,
        lambda start, rows: (codes(start, rows) + np.int8(offset)).view(np.uint8 if offset else np.int8),
        read_scales,
        lambda start, rows: read_zeros(start, rows) + np.int8(offset),
        group,
        _groups(parts.get("weight_g_idx"), shape[1], groups),
        nibbles,
    )


def _floats(parts: _Parts, scale: StoredTensor, scheme: _Scheme) -> Quantized:
    weight = expect(parts.need("weight"), ("F8_E4M3",))
    zero = parts.get("weight_zero_point")
    if zero is not None and not np.isin(raw_bytes(expect(zero, ("F8_E4M3", "I8"))), _FLOAT_ZEROS).all():
        raise UnsupportedError(f"{zero.path}: tensor {zero.name} has zero points, which floats are not read with")
    return small_float_matrix(weight, scale, scheme.block)


def _shape(tensor: StoredTensor) -> tuple[int, int]:
    values = [int(value) for value in integers(expect(tensor, ("I64", "I32"), (2,)))]
    if min(values) < 1 or max(values) >= 1 << 31:
        raise damaged(tensor, f"names the shape {tuple(values)}, which is no matrix")
    return values[0], values[1]


def _packed_codes(packed: StoredTensor, shape: tuple[int, int], bits: int, padded: bool) -> ReadRows:
    """Reads rows of signed codes, int8."""
    words = integers(packed)
    offset = np.int8(-(1 << bits - 1))

    def codes(start: int, rows: int) -> Array:
        return _unpacked(words[start : start + rows], bits, shape[1], padded).view(np.int8) + offset

    return codes


def _zeros(
    tensor: StoredTensor | None, scale: StoredTensor, shape: tuple[int, int], scheme: _Scheme, padded: bool
) -> ReadRows:
    """Reads rows of zero points, int8, one per group."""
    tall, wide = rectangle_of(scale, shape, scheme.block)
    heights, widths = -(-shape[0] // tall), -(-shape[1] // wide)
    if tensor is None:
        if not scheme.symmetric:
            raise FormatError(f"{scale.path}: {scale.name} has no zero points, but its scheme is not symmetric")
        return lambda start, rows: np.zeros((rows, widths), np.int8)
    if tensor.dtype == "I32":
        expect(tensor, ("I32",), (_words(heights, scheme.bits, padded), widths))
        streams = _unpacked(integers(tensor).T, scheme.bits, heights, padded)
        values = streams.T.view(np.int8) + np.int8(-(1 << scheme.bits - 1))
    else:
        expect(tensor, ("I8",))
        if rectangle_of(tensor, shape, scheme.block) != (tall, wide):
            raise damaged(tensor, f"has the shape {tensor.shape}, not that of the scales")
        values = _in_range(integers(tensor), scheme.bits, tensor).reshape(heights, widths)
    if scheme.symmetric and values.any():
        raise damaged(tensor, "has zero points that are not zero, but its scheme is symmetric")
    return lambda start, rows: values[np.arange(start, start + rows) // tall]


def _is_padded(packed: StoredTensor, shape: tuple[int, int], bits: int) -> bool:
    """Whether fields leave bits between words free."""
    rows, columns = shape
    dense, padded = _words(columns, bits, False), _words(columns, bits, True)
    if packed.shape not in ((rows, dense), (rows, padded)):
        raise damaged(packed, f"has the shape {packed.shape} instead of {(rows, dense)}")
    if dense == padded and 32 % bits and columns > 32 // bits:
        raise UnsupportedError(
            f"{packed.path}: {packed.name} may be packed in two ways, since {columns} columns are no multiple of 32"
        )
    return packed.shape[1] != dense


def _words(count: int, bits: int, padded: bool) -> int:
    return -(-count // (32 // bits)) if padded else -(-count * bits // 32)


def _unpacked(words: Array, bits: int, count: int, padded: bool) -> Array:
    if padded:
        return padded_fields(np.ascontiguousarray(words).view(np.uint32), bits, count)
    return fields(as_bytes(words), bits, count)


def _in_range(codes: Array, bits: int, tensor: StoredTensor) -> Array:
    half = 1 << bits - 1
    if bits < 8 and (codes.min() < -half or codes.max() >= half):
        raise damaged(tensor, f"has numbers outside of {bits} bits")
    return codes


def _groups(tensor: StoredTensor | None, columns: int, groups: int) -> Array | None:
    if tensor is None or (integers(expect(tensor, ("I32", "I64"))) == -1).any():
        return None
    return checked_groups(tensor, columns, groups)
