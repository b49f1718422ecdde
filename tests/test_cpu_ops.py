"""The CPU backend's ops, continued: quantized tables and large blocks, parts of weights, some rows."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest

from localinfer.errors import UnsupportedError
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.cpu.native import isa_names
from localinfer.kernels.program import (
    Activate,
    Add,
    Embed,
    LayerNorm,
    Linear,
    Matrix,
    Program,
    RmsNorm,
    TextAttention,
    Vector,
)
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.kernels.reference.dequantize import dequantize_tensor
from localinfer.kernels.types import TYPES
from op_programs import OpProgram
from random_rows import random_rows
from test_cpu_backend import TOLERANCE, check_op, random, run, whole

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ2_XXS")


def raw_matrix(built: OpProgram, name: str, kind: str, rows: int, cols: int, seed: int = 0) -> Matrix:
    built.tensors.add_raw(name, random_rows(kind, rows, cols, seed).tobytes(), kind, (rows, cols))
    return Matrix(name, rows, cols)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("cols", [256, 512])
def test_linear_with_large_blocks(tmp_path: Path, kind: str, cols: int) -> None:
    """One or two blocks per row, beside a matrix of another type that shares the activations."""
    built = OpProgram(tmp_path, 19)
    x = built.input(random((19, cols), 1))
    matrices = raw_matrix(built, "large", kind, 45, cols), built.matrix(random((45, cols), 2), "Q4_0")
    a, b = built.value(45), built.value(45)
    built.add_op(Linear((a, b), x, matrices, (None, built.vector(random((45,), 3)))))
    check_op(built.program(built.add(Add, 45, a=a, b=b)), built)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_embed_reads_and_scales_rows_of_a_quantized_table(tmp_path: Path, kind: str) -> None:
    """Each value once rounded: dequantized as the reference does, then multiplied."""
    cols = max(96 if TYPES[kind].block_size == 32 else 512, TYPES[kind].block_size)
    built = OpProgram(tmp_path, 23)
    table = raw_matrix(built, "table", kind, 23, cols)
    scale = np.float32(cols**0.5)
    program = built.program(built.add(Embed, cols, table=table, scale=float(scale)))
    check_op(program, built)
    expected = dequantize_tensor(built.tensors.tensor("table")) * scale
    np.testing.assert_array_equal(run(CpuBackend(), program, built, whole(23), built.config()), expected)


@pytest.mark.parametrize("wanted", [[0], [18], [3, 4, 11, 18], [], list(range(19))])
@pytest.mark.parametrize("threads", [1, 3])
def test_some_rows_are_selected(tmp_path: Path, wanted: list[int], threads: int) -> None:
    """And what follows the selection is computed for them alone, with the bits that it has among all."""
    built = OpProgram(tmp_path, 19)
    x = built.input(random((19, 64), 1))
    hidden = built.add(RmsNorm, 64, x=x, weight=built.vector(random((64,), 2)), eps=1e-5, group=64)
    selecting = built.program(hidden)
    out = built.value(45, "rows")
    head = Linear((out,), selecting.output, (built.matrix(random((45, 64), 3), "Q8_0"),), (None,))
    program = Program("test", (*selecting.ops, head), (), out, 45, 1 << 20)
    config = built.config(threads=threads)
    every = run(CpuBackend(), program, built, whole(19), config)
    batch = whole(19)[0]
    batch.logit_rows = array("i", wanted)
    for isa in isa_names():
        np.testing.assert_array_equal(run(CpuBackend(isa), program, built, [batch], config), every[wanted])
    expected = run(ReferenceBackend(emulate="cpu"), program, built, whole(19), config)
    assert np.abs(every - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_parts_of_a_fused_weight_and_bias(tmp_path: Path, kind: str) -> None:
    """As phi3 stores q, k and v: three parts of one tensor, at starts that are no multiple of a group of rows."""
    built = OpProgram(tmp_path, 11)
    x = built.input(random((11, 64), 1))
    fused, bias = built.matrix(random((99, 64), 2), kind), built.vector(random((99,), 3))
    parts = [(0, 33), (33, 33), (66, 33)]
    outs = tuple(built.value(33) for _ in parts)
    matrices = tuple(Matrix(fused.name, rows, 64, start) for start, rows in parts)
    biases = tuple(Vector(bias.name, rows, start) for start, rows in parts)
    built.add_op(Linear(outs, x, matrices, biases))
    # Weighted, so that swapped parts would show.
    gains = [built.vector(random((33,), seed)) for seed in (4, 5, 6)]
    total, *rest = (
        built.add(RmsNorm, 33, x=out, weight=gain, eps=1e-5, group=33) for out, gain in zip(outs, gains, strict=True)
    )
    for part in rest:
        total = built.add(Add, 33, a=total, b=part)
    check_op(built.program(total), built)


def test_a_part_of_a_norms_gain(tmp_path: Path) -> None:
    built = OpProgram(tmp_path, 5)
    x = built.input(random((5, 48), 1))
    gain = Vector(built.vector(random((80,), 2)).name, 24, 30)
    check_op(built.program(built.add(RmsNorm, 48, x=x, weight=gain, eps=1e-5, group=24)), built)


@pytest.mark.parametrize("width", [64, 200, 13])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm(tmp_path: Path, width: int, has_bias: bool) -> None:
    """Of rows whose mean is far from 0."""
    built = OpProgram(tmp_path, 7)
    x = built.input(random((7, width), 1, 3.0) + np.float32(20))
    weight = built.vector(random((width,), 2))
    bias = built.vector(random((width,), 3)) if has_bias else None
    check_op(built.program(built.add(LayerNorm, width, x=x, weight=weight, bias=bias, eps=1e-5)), built)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_without_a_gate(tmp_path: Path, activation: str) -> None:
    """Row by row, and on the columns of a product."""
    built = OpProgram(tmp_path, 19)
    x = built.input(random((19, 64), 1, 3.0))
    active = built.add(Activate, 64, x=x, activation=activation)
    product = built.value(45)
    built.add_op(Linear((product,), active, (built.matrix(random((45, 64), 2)),), (None,)))
    check_op(built.program(built.add(Activate, 45, x=product, activation=activation)), built)


@pytest.mark.parametrize("by", ["position", "type"])
def test_tables_by_position_and_type(tmp_path: Path, by: str) -> None:
    built = OpProgram(tmp_path, 19)
    table = built.matrix(random((19, 64), 1))
    built.input(random((19, 8), 2))  # the tokens' own
    program = built.program(built.add(Embed, 64, table=table, by=by))
    batch = whole(19)[0]
    batch.tokens = array("i", reversed(range(19)))
    batch.types = array("i", [(7 * i) % 19 for i in range(19)] if by == "type" else [])
    expected = random((19, 64), 1)[batch.types or slice(None)]
    for backend in (CpuBackend(), ReferenceBackend()):
        np.testing.assert_array_equal(run(backend, program, built, [batch], built.config()), expected)
    batch.types = array("i")
    expected = random((19, 64), 1)[[0] * 19] if by == "type" else random((19, 64), 1)
    np.testing.assert_array_equal(run(CpuBackend(), program, built, [batch], built.config()), expected)


@pytest.mark.parametrize("tokens", [1, 7, 65, 300])
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 32), (2, 64), (1, 8)])
def test_attention_over_a_whole_text(tmp_path: Path, tokens: int, heads: int, head_dim: int) -> None:
    """Large scores, so that single keys take most of the weight; the last key counts as much as the first."""
    built, width = OpProgram(tmp_path, tokens), heads * head_dim
    q, k, v = (built.input(random((tokens, width), seed, 3.0)) for seed in (1, 2, 3))
    program = built.program(built.add(TextAttention, width, q=q, k=k, v=v, n_heads=heads, scale=head_dim**-0.5))
    expected = run(ReferenceBackend(emulate="cpu"), program, built, whole(tokens), built.config())
    first = run(CpuBackend(isa_names()[0]), program, built, whole(tokens), built.config())
    assert np.abs(first - expected).max() <= TOLERANCE * np.abs(expected).max()
    for isa in isa_names():
        for threads in (1, 3):
            found = run(CpuBackend(isa), program, built, whole(tokens), built.config(threads=threads))
            np.testing.assert_array_equal(found, first)


def test_heads_that_fill_no_register_are_refused(tmp_path: Path) -> None:
    built = OpProgram(tmp_path, 3)
    x = built.input(random((3, 12), 1))
    program = built.program(built.add(TextAttention, 12, q=x, k=x, v=x, n_heads=1, scale=1.0))
    with pytest.raises(UnsupportedError, match="heads of 12 columns"):
        CpuBackend().load(program, built.tensors, built.config())
