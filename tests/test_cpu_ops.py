"""The CPU backend's ops, continued: quantized tables and large blocks, parts of weights, some rows."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest

from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.cpu.native import isa_names
from localinfer.kernels.program import Add, Embed, Linear, Matrix, Program, RmsNorm, Vector
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
