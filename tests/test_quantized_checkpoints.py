"""Quantized checkpoints in other formats than GGUF: exactly the weights that their definitions give.

The definitions are written out here, slowly: codes are packed into streams of bits by Python's integers, weights are
scale * (code - zero point). compressed-tensors checkpoints are written, and read, by that library itself as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_files import change_json, write_checkpoint
from localinfer.checkpoints import open_model
from localinfer.checkpoints.quantized import Quantized, QuantizedReader, reader_for
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.safetensors import open_safetensors
from localinfer.kernels.base import Backend, LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.kernels.reference.dequantize import dequantize
from localinfer.models import record, refuse_unused
from tiny_models import TinyModel, by_name

pytestmark = pytest.mark.usefixtures("one_torch_thread")

Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]
ROWS, COLUMNS = 40, 256


# ---- the definitions ---------------------------------------------------------------------------------------------


def stream(codes: Array, bits: int) -> list[int]:
    """Words of 32 bits: field i of the integer that they are together is code i."""
    number = sum(int(code) << bits * i for i, code in enumerate(codes))
    count = -(-len(codes) * bits // 32)
    return [int(np.uint32(number >> 32 * i & 0xFFFFFFFF).astype(np.int32)) for i in range(count)]


def padded_stream(codes: Array, bits: int) -> list[int]:
    """Words of 32 bits of 32 // bits codes each."""
    per_word = 32 // bits
    return [stream(codes[i : i + per_word], bits)[0] for i in range(0, len(codes), per_word)]


def words(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def weights_of(codes: Array, scales: Array, zeros: Array, group_of: Array) -> Array:
    """scale * (code - zero), rounded once to float32: in float64 products of float32 and small integers are exact."""
    exact = scales.astype(np.float64)[:, group_of] * (codes.astype(np.int64) - zeros.astype(np.int64)[:, group_of])
    return exact.astype(np.float32)


def in_order(group: int, columns: int = COLUMNS) -> Array:
    return np.arange(columns) // group


def random_grid(bits: int, groups: int, seed: int = 0) -> tuple[Array, torch.Tensor, Array]:
    """Codes [ROWS, COLUMNS] from 0, scales [ROWS, groups] in binary16, zero points [ROWS, groups] likewise from 0."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (ROWS, COLUMNS))
    scales = torch.from_numpy(random.uniform(0.001, 0.1, (ROWS, groups))).half()
    return codes, scales, random.integers(0, 1 << bits, (ROWS, groups))


# ---- reading -----------------------------------------------------------------------------------------------------


def read(folder: Path, config: dict[str, Any], tensors: Tensors) -> QuantizedReader:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    with open_safetensors(folder) as stored:
        reader = reader_for({"quantization_config": config}, stored)
    assert reader is not None
    return reader


def values(matrix: Quantized, step: int = 0) -> Array:
    """All weights, read `step` rows at a time."""
    rows, columns = matrix.shape
    step = step or rows
    parts = [matrix.write_rows(start, min(step, rows - start)) for start in range(0, rows, step)]
    return dequantize(matrix.type, b"".join(parts), (rows, columns))


def check(matrix: Quantized | None, expected: Array, type_name: str) -> None:
    assert matrix is not None
    assert matrix.type.name == type_name
    assert matrix.shape == expected.shape
    for step in (0, 1, 7):
        np.testing.assert_array_equal(values(matrix, step), expected)


# ---- GPTQ --------------------------------------------------------------------------------------------------------


def gptq_tensors(
    bits: int, codes: Array, scales: torch.Tensor, zeros: Array, group_of: Array | None, less_one: bool
) -> Tensors:
    stored_zeros = (zeros - 1) % (1 << bits) if less_one else zeros
    tensors = {
        "m.qweight": words([stream(row, bits) for row in codes]).T,
        "m.qzeros": words([stream(group, bits) for group in stored_zeros.T]),
        "m.scales": scales.T,
    }
    return tensors | ({} if group_of is None else {"m.g_idx": torch.from_numpy(group_of).int()})


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2", ""])
@pytest.mark.parametrize("group", [64, 128, -1])
def test_gptq(tmp_path: Path, bits: int, form: str, group: int) -> None:
    width = COLUMNS if group == -1 else group
    codes, scales, zeros = random_grid(bits, COLUMNS // width)
    codes, scales, zeros = codes[:32], scales[:32], zeros[:32]  # streams of zero points fill whole words
    group_of = in_order(width)
    tensors = gptq_tensors(bits, codes, scales, zeros, group_of, form != "gptq_v2")
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": False}
    reader = read(tmp_path, config | ({"checkpoint_format": form} if form else {}), tensors)
    assert reader.used == set(tensors)
    block = {"I4": {64: 64, 128: 128, 256: 128}, "I8": {64: 32, 128: 128, 256: 128}}["I8" if bits == 8 else "I4"][width]
    expected = weights_of(codes, scales.numpy(), zeros, group_of)
    check(reader.find("m.weight"), expected, f"{'I8' if bits == 8 else 'I4'}_{block}")
    assert reader.find("n.weight") is None


def test_gptq_without_g_idx_and_with_columns_out_of_order(tmp_path: Path) -> None:
    codes, scales, zeros = random_grid(4, 2)
    tensors = gptq_tensors(4, codes, scales, zeros, None, True)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
    reader = read(tmp_path, config, tensors)
    check(reader.find("m.weight"), weights_of(codes, scales.numpy(), zeros, in_order(128)), "I4_128")
    assert reader.notes == []
    group_of = np.random.default_rng(1).permutation(in_order(128))
    reader = read(tmp_path, config, gptq_tensors(4, codes, scales, zeros, group_of, True))
    check(reader.find("m.weight"), weights_of(codes, scales.numpy(), zeros, group_of), "F32")
    assert "1 matrices have columns" in reader.notes[0]


def test_gptq_with_bits_of_its_own_for_a_module(tmp_path: Path) -> None:
    codes, scales, zeros = random_grid(8, 8)
    tensors = gptq_tensors(8, codes, scales, zeros, in_order(32), True)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:m$": {"bits": 8, "group_size": 32}}}
    reader = read(tmp_path, config, tensors)
    check(reader.find("m.weight"), weights_of(codes, scales.numpy(), zeros, in_order(32)), "I8_32")


# ---- AWQ ---------------------------------------------------------------------------------------------------------


def awq_words(codes: Array) -> torch.Tensor:
    """Codes [n, rows] to words [n, rows / 8]."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return words([[stream(eight[order], 4)[0] for eight in line.reshape(-1, 8)] for line in codes])


@pytest.mark.parametrize("group", [32, 128, -1])
def test_awq(tmp_path: Path, group: int) -> None:
    width = COLUMNS if group == -1 else group
    codes, scales, zeros = random_grid(4, COLUMNS // width)
    tensors = {"m.qweight": awq_words(codes.T), "m.qzeros": awq_words(zeros.T), "m.scales": scales.T}
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    reader = read(tmp_path, config, tensors)
    expected = weights_of(codes, scales.numpy(), zeros, in_order(width))
    check(reader.find("m.weight"), expected, f"I4_{min(width, 128)}")
    assert reader.used == set(tensors)


# ---- FP8 ---------------------------------------------------------------------------------------------------------


def small_floats(rows: int, columns: int) -> torch.Tensor:
    """Every code but NaN."""
    codes = np.random.default_rng(3).permutation(np.resize([c for c in range(256) if c & 127 != 127], rows * columns))
    return torch.from_numpy(codes.astype(np.uint8).reshape(rows, columns)).view(torch.float8_e4m3fn)


def fp8_weights(weight: torch.Tensor, scale: Array) -> Array:
    """`scale` broadcasts to the shape of the weights."""
    return (weight.double().numpy() * scale.astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("columns", [256, 192, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_with_blocks(tmp_path: Path, columns: int, dtype: torch.dtype) -> None:
    rows = 160
    weight = small_floats(rows, columns)
    scale = torch.from_numpy(np.random.default_rng(0).uniform(0.001, 0.1, (2, 2))).to(dtype)
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    reader = read(tmp_path, config, {"m.weight": weight, "m.weight_scale_inv": scale})
    full = scale.float().numpy().repeat(128, 0).repeat(128, 1)[:rows, :columns]
    check(reader.find("m.weight"), fp8_weights(weight, full), {256: "F8_128", 192: "F8_32", 200: "F32"}[columns])
    assert reader.notes == []


@pytest.mark.parametrize("shape", [(), (1,), (ROWS, 1), (ROWS,)])
@pytest.mark.parametrize("method", ["fbgemm_fp8", "modelopt", "fp8"])
def test_fp8_with_scales_of_tensors_and_rows(tmp_path: Path, shape: tuple[int, ...], method: str) -> None:
    weight = small_floats(ROWS, COLUMNS)
    scale = torch.from_numpy(np.random.default_rng(0).uniform(0.001, 0.1, shape)).reshape(shape).float()
    tensors = {"m.weight": weight, "m.weight_scale": scale, "m.input_scale": torch.ones(1), "m.k_scale": torch.ones(1)}
    config = {"quant_method": method} | ({"quant_algo": "FP8"} if method == "modelopt" else {})
    reader = read(tmp_path, config, tensors)
    expected = fp8_weights(weight, scale.numpy().reshape(-1, 1))
    check(reader.find("m.weight"), expected, "F8_128")
    assert reader.used == set(tensors)
    assert len(reader.notes) == 2


def test_fp8_of_modelopt_with_blocks_and_a_file_of_its_own(tmp_path: Path) -> None:
    weight = small_floats(256, 256)
    scale = torch.from_numpy(np.random.default_rng(0).uniform(0.001, 0.1, (2, 1, 2, 1))).float()
    save_file({"m.weight": weight, "m.weight_scale": scale}, tmp_path / "model.safetensors")
    with open_safetensors(tmp_path) as stored:
        assert reader_for({}, stored) is None
        settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8_PB_WO"}}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
        reader = reader_for({}, stored)
    assert reader is not None
    full = scale.numpy().reshape(2, 2).repeat(128, 0).repeat(128, 1)
    check(reader.find("m.weight"), fp8_weights(weight, full), "F8_128")


# ---- compressed-tensors ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Any:
    # See tests/tiny_models.py.
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]
    return pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")


def compressed(library: Any, form: str, weights: dict[str, Any], rows: int, columns: int) -> tuple[Tensors, Array]:
    """The tensors that the library makes of a random matrix, and the float32 weights that it reads from them."""
    quantization = library.quantization
    args = quantization.QuantizationArgs(**weights)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.from_numpy(np.random.default_rng(5).standard_normal((rows, columns))).float()
    block = weights.get("block_structure") or {
        "tensor": (rows, columns), "channel": (1, columns), "group": (1, weights.get("group_size")),
    }[args.strategy]  # fmt: skip
    heights, widths = -(-rows // block[0]), -(-columns // block[1])
    random = np.random.default_rng(6)
    largest = 448 if args.type == "float" else 2 ** (args.num_bits - 1)
    scale = torch.from_numpy(random.uniform(2, 4, (heights, widths)) / largest).float()
    state = {"weight": weight, "weight_scale": scale[0] if args.strategy == "tensor" else scale}
    if not args.symmetric:
        half = 1 << args.num_bits - 1
        state["weight_zero_point"] = torch.from_numpy(random.integers(-half, half, scale.shape)).to(torch.int8)
    compressor = library.compressors.BaseCompressor.get_value_from_registry(form)
    packed = compressor.compress(state, scheme)
    expected = compressor.decompress(packed, scheme)["weight"]
    return {f"m.{name}": tensor for name, tensor in packed.items()}, expected.numpy()


def compressed_config(form: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}} | more


INTEGERS = [
    ("int-quantized", {"num_bits": 8, "strategy": "channel"}, "I8_128"),
    ("int-quantized", {"num_bits": 8, "strategy": "tensor"}, "I8_128"),
    ("naive-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}, "I8_128"),
    ("naive-quantized", {"num_bits": 8, "group_size": 32, "strategy": "group"}, "I8_32"),
    ("naive-quantized", {"num_bits": 4, "group_size": 64, "strategy": "group", "symmetric": False}, "I4_64"),
    ("pack-quantized", {"num_bits": 4, "group_size": 128, "strategy": "group"}, "I4_128"),
    ("pack-quantized", {"num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": False}, "I4_128"),
    ("pack-quantized", {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": False}, "I4_32"),
    ("pack-quantized", {"num_bits": 4, "strategy": "channel"}, "I4_128"),
    ("pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": False}, "I4_128"),
    ("pack-quantized", {"num_bits": 2, "group_size": 64, "strategy": "group", "symmetric": False}, "I4_64"),
    ("pack-quantized", {"num_bits": 3, "group_size": 64, "strategy": "group", "symmetric": False}, "I4_64"),
    ("pack-quantized", {"num_bits": 6, "group_size": 64, "strategy": "group", "symmetric": False}, "I8_32"),
    ("pack-quantized", {"num_bits": 8, "group_size": 128, "strategy": "group", "symmetric": False}, "I8_128"),
    ("pack-quantized", {"num_bits": 4, "group_size": 16, "strategy": "group"}, "F32"),
]


@pytest.mark.parametrize(("form", "weights", "type_name"), INTEGERS)
def test_compressed_integers(tmp_path: Path, library: Any, form: str, weights: dict[str, Any], type_name: str) -> None:
    tensors, expected = compressed(library, form, weights, ROWS, COLUMNS)
    reader = read(tmp_path, compressed_config(form, weights), tensors)
    check(reader.find("m.weight"), expected, type_name)
    assert reader.used == set(tensors)


FLOATS = [
    ({"strategy": "tensor"}, 256, "F8_128"),
    ({"strategy": "channel"}, 192, "F8_32"),
    ({"strategy": "block", "block_structure": [128, 128]}, 256, "F8_128"),
    ({"strategy": "block", "block_structure": [32, 64]}, 192, "F8_32"),
    ({"strategy": "channel"}, 200, "F32"),
]


@pytest.mark.parametrize(("weights", "columns", "type_name"), FLOATS)
@pytest.mark.parametrize("form", ["float-quantized", "naive-quantized"])
def test_compressed_floats(
    tmp_path: Path, library: Any, form: str, weights: dict[str, Any], columns: int, type_name: str
) -> None:
    weights = {"num_bits": 8, "type": "float"} | weights
    tensors, expected = compressed(library, form, weights, 160, columns)
    reader = read(tmp_path, compressed_config(form, weights), tensors)
    check(reader.find("m.weight"), expected, type_name)
    assert reader.used == set(tensors)


def test_scales_of_half_precision_are_not_rounded_products(tmp_path: Path, library: Any) -> None:
    """The library would round each weight to bfloat16, the type of the scales; here the product stays whole."""
    weights = {"num_bits": 8, "strategy": "channel"}
    tensors, _ = compressed(library, "int-quantized", weights, ROWS, COLUMNS)
    tensors["m.weight_scale"] = tensors["m.weight_scale"].bfloat16()
    expected = tensors["m.weight"].float() * tensors["m.weight_scale"].float()
    reader = read(tmp_path, compressed_config("int-quantized", weights), tensors)
    check(reader.find("m.weight"), expected.numpy(), "I8_128")
    assert (expected.bfloat16().float() != expected).any()


def packed_tensors(bits: int, codes: Array, scales: torch.Tensor, pack: Callable[[Array, int], list[int]]) -> Tensors:
    return {
        "m.weight_packed": words([pack(row, bits) for row in codes]),
        "m.weight_shape": torch.tensor(codes.shape),
        "m.weight_scale": scales,
    }


@pytest.mark.parametrize("bits", [3, 4, 5])
def test_older_writers_leave_bits_between_words_free(tmp_path: Path, bits: int) -> None:
    codes, scales, zeros = random_grid(bits, 4)
    tensors = packed_tensors(bits, codes, scales, padded_stream)
    tensors["m.weight_zero_point"] = words([padded_stream(group, bits) for group in zeros.T]).T
    weights = {"num_bits": bits, "group_size": 64, "strategy": "group", "symmetric": False}
    reader = read(tmp_path, compressed_config("pack-quantized", weights), tensors)
    expected = weights_of(codes, scales.numpy(), zeros, in_order(64))
    check(reader.find("m.weight"), expected, "I8_32" if bits == 5 else "I4_64")


def test_compressed_columns_out_of_order(tmp_path: Path) -> None:
    codes, scales, _ = random_grid(4, 2)
    zeros = np.full((ROWS, 2), 8)
    group_of = np.random.default_rng(1).permutation(in_order(128))
    tensors = packed_tensors(4, codes, scales, stream) | {"m.weight_g_idx": torch.from_numpy(group_of).int()}
    weights = {"num_bits": 4, "group_size": 128, "strategy": "group", "actorder": "group"}
    reader = read(tmp_path, compressed_config("pack-quantized", weights), tensors)
    check(reader.find("m.weight"), weights_of(codes, scales.numpy(), zeros, group_of), "F32")
    assert "1 matrices" in reader.notes[0]
    tensors["m.weight_g_idx"] = torch.full((COLUMNS,), -1, dtype=torch.int32)
    reader = read(tmp_path, compressed_config("pack-quantized", weights), tensors)
    check(reader.find("m.weight"), weights_of(codes, scales.numpy(), zeros, in_order(128)), "I4_128")
    assert reader.notes == []


def int8_tensors(module: str) -> Tensors:
    scale = torch.full((ROWS, 1), 0.5)
    return {f"{module}.weight": torch.ones((ROWS, COLUMNS), dtype=torch.int8), f"{module}.weight_scale": scale}


def test_the_scheme_of_a_module_is_that_of_its_name_then_of_a_pattern_then_of_all(tmp_path: Path) -> None:
    tensors = {"head.weight": torch.ones((ROWS, COLUMNS))}
    for module in ("layers.0.up", "layers.0.down", "layers.1.up"):
        tensors |= packed_tensors(4, np.full((ROWS, COLUMNS), 9), torch.ones((ROWS, 1)), stream)
        tensors = {name.replace("m.", f"{module}.", 1) if name.startswith("m.") else name: t
                   for name, t in tensors.items()}  # fmt: skip

    def group(targets: list[str], size: int) -> dict[str, Any]:
        tensors[f"{targets[-1]}.weight_scale"] = torch.ones((ROWS, COLUMNS // size))
        return {"targets": targets[:1], "weights": {"num_bits": 4, "group_size": size, "strategy": "group"}}

    groups = {
        "a": group(["Linear", "layers.1.up"], 128),
        "b": group([r"re:.*layers\.0\..*", "layers.0.down"], 64),
        "c": group(["layers.0.up", "layers.0.up"], 32),
    }
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    reader = read(tmp_path, config | {"ignore": ["head"]}, tensors)
    types = {name: matrix.type.name for name, matrix in reader.weights.items()}
    assert types == {
        "layers.0.up.weight": "I4_32", "layers.0.down.weight": "I4_64", "layers.1.up.weight": "I4_128",
    }  # fmt: skip
    assert "head.weight" not in reader.used
    for ignore in (["layers.1.up"], [r"re:layers\.1.*"]):
        with pytest.raises(FormatError, match=r"layers\.1\.up has quantized weights, but .* gives no scheme"):
            read(tmp_path, config | {"ignore": ignore}, tensors)


def test_what_is_no_weight_is_said(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "strategy": "channel"}
    config = compressed_config("int-quantized", weights, kv_cache_scheme={"num_bits": 8, "type": "float"})
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True, "strategy": "token"}
    extras = {"m.input_scale": torch.ones(1), "attn.k_scale": torch.ones(1), "attn.v_scale": torch.ones(1)}
    reader = read(tmp_path, config, int8_tensors("m") | extras)
    assert set(extras) <= reader.used
    assert [note.partition(";")[0].partition(",")[0] for note in reader.notes] == [
        "the checkpoint is made for activations of few bits",
        "the checkpoint has scales for a cache of few bits",
    ]


# ---- what is refused ---------------------------------------------------------------------------------------------

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
FP8 = {"quant_method": "fp8"}
INT8 = compressed_config("int-quantized", {"num_bits": 8, "strategy": "channel"})
INT4 = compressed_config("pack-quantized", {"num_bits": 4, "group_size": 128, "strategy": "group"})


def honest(config: dict[str, Any]) -> Tensors:
    codes, scales, zeros = random_grid(4, 2)
    if config is GPTQ:
        return gptq_tensors(4, codes, scales, zeros, in_order(128), True)
    if config is AWQ:
        return {"m.qweight": awq_words(codes.T), "m.qzeros": awq_words(zeros.T), "m.scales": scales.T}
    if config is FP8:
        return {"m.weight": small_floats(ROWS, COLUMNS), "m.weight_scale": torch.ones(1)}
    return int8_tensors("m") if config is INT8 else packed_tensors(4, codes, scales, stream)


def nan(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone().contiguous()
    changed.view(-1)[-1] = torch.nan
    return changed


def inf(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone().contiguous()
    changed.view(-1)[0] = torch.inf
    return changed


BROKEN: list[tuple[dict[str, Any], str, Callable[[torch.Tensor], torch.Tensor | None], str]] = [
    (GPTQ, "m.qweight", lambda t: t[:-1], "rows of 248 weights do not divide into groups of 128"),
    (GPTQ, "m.qweight", lambda t: t.float(), "holds numbers of type F32, not I32"),
    (GPTQ, "m.qweight", lambda t: t.reshape(-1), "holds no matrix of 4 bits"),
    (GPTQ, "m.qzeros", lambda t: t[:, :-1], r"has the shape \(2, 4\) instead of \(2, 5\)"),
    (GPTQ, "m.qzeros", lambda t: None, "no tensor m.qzeros"),
    (GPTQ, "m.scales", lambda t: t[:1], r"has the shape \(1, 40\) instead of \(2, 40\)"),
    (GPTQ, "m.scales", inf, "scales that are infinite, too large, or no numbers"),
    (GPTQ, "m.g_idx", lambda t: t[:-1], r"has the shape \(255,\) instead of \(256,\)"),
    (GPTQ, "m.g_idx", lambda t: t + 1, "names groups from 1 to 2, but there are 2"),
    (GPTQ, "m.g_idx", lambda t: t - 1, "names groups from -1 to 0"),
    (GPTQ, "m.g_idx", lambda t: t.float(), "holds numbers of type F32"),
    (AWQ, "m.qweight", lambda t: t[:-1], "rows of 255 weights do not divide"),
    (AWQ, "m.qzeros", lambda t: t[:-1], "instead of"),
    (AWQ, "m.scales", lambda t: t[:, :-1], "instead of"),
    (AWQ, "m.scales", nan, "no numbers"),
    (FP8, "m.weight", lambda t: nan(t.float()).to(torch.float8_e4m3fn), r"no numbers \(NaN\)"),
    (FP8, "m.weight", lambda t: t.float(), "holds numbers of type F32, not F8_E4M3"),
    (FP8, "m.weight", lambda t: None, "no tensor m.weight"),
    (FP8, "m.weight", lambda t: t.reshape(-1), "which is no matrix"),
    (FP8, "m.weight_scale", lambda t: None, "has no scale"),
    (FP8, "m.weight_scale", lambda t: torch.ones(3), "neither one value nor one for each of 40 rows"),
    (FP8, "m.weight_scale", lambda t: t * 1e36, "too large"),
    (FP8, "m.weight_scale", nan, "no numbers"),
    (INT8, "m.weight", lambda t: t.int(), "holds numbers of type I32, not I8"),
    (INT8, "m.weight", lambda t: None, "no tensor m.weight"),
    (INT8, "m.weight_scale", lambda t: t[:-1], "neither one value nor one for each of 40 rows"),
    (INT8, "m.weight_scale", nan, "no numbers"),
    (INT4, "m.weight_packed", lambda t: t[:, :-1], r"has the shape \(40, 31\) instead of \(40, 32\)"),
    (INT4, "m.weight_shape", lambda t: t * 2, "instead of"),
    (INT4, "m.weight_shape", lambda t: -t, "which is no matrix"),
    (INT4, "m.weight_shape", lambda t: None, "no tensor m.weight_shape"),
    (INT4, "m.weight_scale", lambda t: t[:, :1], "for blocks of 1 x 128"),
]


@pytest.mark.parametrize(("config", "name", "change", "message"), BROKEN)
def test_damaged_tensors_are_named(
    tmp_path: Path, config: dict[str, Any], name: str, change: Callable[[torch.Tensor], Any], message: str
) -> None:
    tensors = honest(config)
    assert np.isfinite(values(read(tmp_path, config, tensors).weights["m.weight"])).all()
    changed = change(tensors.pop(name))
    with pytest.raises(FormatError, match=message) as caught:
        values(read(tmp_path, config, tensors | ({} if changed is None else {name: changed})).weights["m.weight"])
    assert str(tmp_path) in caught.value.message


ZEROS: list[tuple[torch.Tensor, bool, str]] = [
    (torch.full((ROWS, 2), 8, dtype=torch.int8), False, "numbers outside of 4 bits"),
    (torch.full((ROWS, 2), -9, dtype=torch.int8), False, "numbers outside of 4 bits"),
    (torch.full((ROWS, 1), 1, dtype=torch.int8), False, "for blocks of 1 x 128"),
    (torch.full((ROWS, 2), 1, dtype=torch.int8), True, "zero points that are not zero"),
    (torch.full((4, 2), 1, dtype=torch.int32), False, r"has the shape \(4, 2\) instead of \(5, 2\)"),
    (torch.full((ROWS, 2), 1.0), False, "holds numbers of type F32, not I8"),
]


@pytest.mark.parametrize(("zeros", "symmetric", "message"), ZEROS)
def test_zero_points_that_cannot_be(tmp_path: Path, zeros: torch.Tensor, symmetric: bool, message: str) -> None:
    weights = {"num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": symmetric}
    tensors = honest(INT4)
    with pytest.raises(FormatError, match=message):
        read(tmp_path, compressed_config("pack-quantized", weights), tensors | {"m.weight_zero_point": zeros})
    if not symmetric:
        with pytest.raises(FormatError, match="has no zero points, but its scheme is not symmetric"):
            read(tmp_path, compressed_config("pack-quantized", weights), tensors)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes"}, "by the method 'bitsandbytes'"),
    ({}, "by the method ''"),
    (GPTQ | {"checkpoint_format": "marlin"}, "the format 'marlin'"),
    (GPTQ | {"bits": 5}, "5 bits"),
    (AWQ | {"version": "gemv"}, "layout 'gemv'"),
    (AWQ | {"bits": 8}, "8 bits"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quantized to NVFP4"),
    (INT4 | {"format": "marlin-24"}, "the format 'marlin-24'"),
    (INT4 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "compressed as sparse"),
    (INT4 | {"quantization_status": "frozen"}, "not compressed yet"),
    (compressed_config("pack-quantized", {"num_bits": 4, "type": "float"}), "type float with 4 bits"),
    (compressed_config("pack-quantized", {"num_bits": 4, "strategy": "tensor_group"}), "the strategy 'tensor_group'"),
]


@pytest.mark.parametrize(("config", "message"), UNSUPPORTED)
def test_what_is_not_read_is_refused_with_words(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    method = str(config.get("quant_method"))
    tensors = honest(GPTQ if method == "gptq" else AWQ if method == "awq" else INT4)
    with pytest.raises(UnsupportedError, match=message):
        read(tmp_path, config, tensors)


MISTYPED: list[dict[str, Any]] = [
    {"quant_method": 3},
    GPTQ | {"bits": "four"},
    GPTQ | {"bits": True},
    GPTQ | {"group_size": 0},
    GPTQ | {"group_size": 100},
    GPTQ | {"dynamic": {"(": {}}},
    GPTQ | {"dynamic": {"m": 3}},
    GPTQ | {"dynamic": ["m"]},
    GPTQ | {"group_size": 10**30},
    {"quant_method": "fp8", "weight_block_size": [10**30, 128]},
    compressed_config("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 10**30}),
    {"quant_method": "fp8", "weight_block_size": [128]},
    {"quant_method": "fp8", "weight_block_size": [128, 0]},
    {"quant_method": "fp8", "weight_block_size": "128x128"},
    INT4 | {"config_groups": []},
    INT4 | {"config_groups": {"a": ["Linear"]}},
    INT4 | {"config_groups": {}},
    INT4 | {"ignore": [3]},
    INT4 | {"ignore": ["re:("]},
    compressed_config("pack-quantized", {"num_bits": 4, "strategy": "group"}),
    compressed_config("pack-quantized", {"num_bits": 4, "strategy": "block", "block_structure": "axb"}),
    compressed_config("pack-quantized", {"num_bits": "4"}),
]


@pytest.mark.parametrize("config", MISTYPED)
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    method = config["quant_method"]
    tensors = honest(GPTQ if method == "gptq" else FP8 if method == "fp8" else INT4)
    with pytest.raises(LocalInferError, match=r"config\.json|groups of|for blocks of"):
        values(read(tmp_path, config, tensors).weights["m.weight"])


# ---- whole models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyModel, Path]:
    """A tiny model whose rows are wide enough for every block, in float32."""
    sizes = {"hidden_size": 128, "intermediate_size": 256}
    tiny = replace(by_name("llama"), name="llama-wide", config=by_name("llama").config | sizes)
    return tiny, write_checkpoint(tiny, tmp_path_factory.mktemp("plain"))


def nearest_codes(weight: Array, bits: int, group: int) -> tuple[Array, torch.Tensor, Array]:
    """Codes from 0, scales in binary16 and zero points of a weight on a grid of min to max of each group."""
    parts = weight.reshape(len(weight), -1, group)
    low, high = parts.min(-1), parts.max(-1)
    scales = torch.from_numpy((high - low) / ((1 << bits) - 1)).half()
    zeros = np.rint(-low / scales.numpy()).clip(0, (1 << bits) - 1).astype(np.int64)
    codes = np.rint(parts / scales.numpy()[..., None]) + zeros[..., None]
    return codes.clip(0, (1 << bits) - 1).astype(np.int64).reshape(weight.shape), scales, zeros


Made = tuple[dict[str, torch.Tensor], Array]  # stored tensors of a module, and the weights that they mean


def make_gptq(weight: Array) -> Made:
    codes, scales, zeros = nearest_codes(weight, 4, 128)
    group_of = in_order(128, weight.shape[1])
    stored = gptq_tensors(4, codes, scales, zeros, group_of, True)
    return unprefixed(stored), weights_of(codes, scales.numpy(), zeros, group_of)


def make_gptq_in_another_order(weight: Array) -> Made:
    codes, scales, zeros = nearest_codes(weight, 4, 32)
    group_of = np.random.default_rng(1).permutation(in_order(32, weight.shape[1]))
    stored = gptq_tensors(4, codes, scales, zeros, group_of, True)
    return unprefixed(stored), weights_of(codes, scales.numpy(), zeros, group_of)


def make_awq(weight: Array) -> Made:
    codes, scales, zeros = nearest_codes(weight, 4, 64)
    stored = {"qweight": awq_words(codes.T), "qzeros": awq_words(zeros.T), "scales": scales.T}
    return stored, weights_of(codes, scales.numpy(), zeros, in_order(64, weight.shape[1]))


def make_fp8(weight: Array) -> Made:
    block = (96, 64)
    scale = np.array([[np.abs(weight[i : i + 96, j : j + 64]).max() / 448 for j in range(0, weight.shape[1], 64)]
                      for i in range(0, len(weight), 96)], np.float32)  # fmt: skip
    full = scale.repeat(block[0], 0)[: len(weight)].repeat(block[1], 1)
    stored = torch.from_numpy(weight / full).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": torch.from_numpy(scale)}, fp8_weights(stored, full)


def make_int8(weight: Array) -> Made:
    scale = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 127).float()
    codes = torch.round(torch.from_numpy(weight) / scale).to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, (codes.double() * scale.double()).float().numpy()


def make_int4(weight: Array) -> Made:
    codes, scales, zeros = nearest_codes(weight, 4, 32)
    stored = packed_tensors(4, codes, scales, stream)
    stored["m.weight_zero_point"] = words([stream(group, 4) for group in zeros.T]).T
    return unprefixed(stored), weights_of(codes, scales.numpy(), zeros, in_order(32, weight.shape[1]))


def unprefixed(tensors: Tensors) -> Tensors:
    return {name.removeprefix("m."): tensor for name, tensor in tensors.items()}


MODELS: dict[str, tuple[Callable[[Array], Made], dict[str, Any], str]] = {
    "gptq": (make_gptq, GPTQ, "I4_128"),
    "gptq-desc-act": (make_gptq_in_another_order, GPTQ | {"group_size": 32, "desc_act": True}, "F32"),
    "awq": (make_awq, AWQ | {"group_size": 64}, "I4_64"),
    "fp8": (make_fp8, {"quant_method": "fp8", "weight_block_size": [96, 64]}, "F8_32"),
    "int8": (make_int8, INT8, "I8_128"),
    "int4": (
        make_int4,
        compressed_config("pack-quantized", {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": False}),
        "I4_32",
    ),
}


def logits(folder: Path, tiny: TinyModel, backend: Backend, kv: Any = "f16") -> tuple[Array, set[str]]:
    """float32 `[length, vocabulary]` after every one of the model's tokens, and the types of its matrices."""
    with open_model(folder) as file:
        program = record(file.metadata, file, tiny.context)
        refuse_unused(program, file.tensors)
        file.prepare()
        executable = backend.load(program, file, LoadConfig(64, 64, 1, tiny.context, 16, kv_type_k=kv, kv_type_v=kv))
        found = executable.step(batch_of([(tiny.tokens(), 0, [5, 4, 6, 0, 7, 1, 2, 3])], "all")).numpy().copy()
        executable.close()
        return found, {tensor.type.name for tensor in file.tensors.values()}


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_computes_what_its_weights_as_floats_compute(
    name: str, plain: tuple[TinyModel, Path], tmp_path: Path
) -> None:
    make, settings, type_name = MODELS[name]
    tiny, folder = plain
    tensors = load_file(folder / "model.safetensors")
    quantized = dict(tensors)
    for weight_name in [name for name in tensors if name.startswith("model.layers") and "norm" not in name]:
        module = weight_name.removesuffix(".weight")
        made, means = make(quantized.pop(weight_name).numpy())
        quantized |= {f"{module}.{part}": tensor.contiguous() for part, tensor in made.items()}
        tensors[weight_name] = torch.from_numpy(means)
    folders = tmp_path / "floats", tmp_path / "quantized"
    for target, held in zip(folders, (tensors, quantized), strict=True):
        target.mkdir()
        save_file(held, target / "model.safetensors")
        (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    change_json(folders[1] / "config.json", quantization_config=settings)

    expected, _ = logits(folders[0], tiny, ReferenceBackend(), "f32")
    found, types = logits(folders[1], tiny, ReferenceBackend(), "f32")
    assert type_name in types
    np.testing.assert_array_equal(found, expected)

    emulated, _ = logits(folders[1], tiny, ReferenceBackend(emulate="cpu"))
    on_the_cpu, _ = logits(folders[1], tiny, CpuBackend())
    # As in test_cpu_types.py: an int8 activation may fall on the other side of a rounding boundary.
    tolerance = 2e-2 if type_name.startswith("I") else 1e-3
    assert np.abs(on_the_cpu - emulated).max() <= tolerance * np.abs(emulated).max()
    assert np.abs(on_the_cpu - expected).max() <= 0.1 * np.abs(expected).max()
