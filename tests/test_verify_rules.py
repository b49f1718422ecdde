"""Does a tensor come from given weights? Rules, budgets and limits, on blocks that llama.cpp made."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize as by_public_rule

from localinfer.kernels.base import Tensor
from localinfer.kernels.reference.dequantize import dequantize
from localinfer.kernels.types import TYPES
from localinfer.verify.examine import Finding, Verdict, examine
from localinfer.verify.grids import GRIDS, place
from localinfer.verify.limits import measure_limit
from localinfer.verify.pair import Chunk, Pair
from random_rows import random_rows

# Made by `scripts/confusion.py --fixtures`: weights [4, 512], and llama.cpp's blocks with and without importances.
BLOCKS = np.load(Path(__file__).parent / "data" / "llama_cpp_blocks.npz")
WEIGHTS = BLOCKS["weights"]
CASES = [name for name in BLOCKS.files if " " in name]
QUANTIZED = [name for name in CASES if TYPES[name.split()[0]].block_size > 1]
# Types whose codes are so coarse, or whose rule asks for so little, that small changes of few weights stay unseen.
COARSE = ("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0")
ALIKE = (Verdict.IDENTICAL, Verdict.CONSISTENT)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def tensor(kind: str, data: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.ascontiguousarray(data).tobytes()
    return Tensor("weights", TYPES[kind], shape, Path("none"), 0, len(data), memoryview(data))


def look(kind: str, data: Any, weights: np.ndarray, pool: ThreadPoolExecutor, source_type: str = "F32") -> Finding:
    """What is found about blocks beside weights, row by row."""
    stored = weights if source_type == "F32" else by_public_rule(weights, GGMLQuantizationType[source_type])
    pair = Pair(tensor(kind, data, weights.shape), tensor(source_type, stored, weights.shape))
    return examine(pair, [Chunk(row, 1) for row in range(len(weights))], pool)


@pytest.mark.parametrize("kind", GRIDS)
def test_blocks_taken_apart_stand_for_the_same_weights(kind: str) -> None:
    data = random_rows(kind, 4, 512)
    placed = place(kind, data)
    levels = GRIDS[kind].levels.values[placed.codes].reshape(*placed.steps.shape, -1)
    values = levels * placed.steps[:, :, None]
    if placed.minimums is not None:
        values = values - placed.minimums[:, :, None]
    expected = dequantize(TYPES[kind], data, (4, 512))
    np.testing.assert_allclose(values.reshape(4, 512), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_what_llama_cpp_makes_of_weights_comes_from_them(case: str, pool: ThreadPoolExecutor) -> None:
    finding = look(case.split()[0], BLOCKS[case], WEIGHTS, pool)
    assert finding.verdict in ALIKE, finding
    if case in ("Q8_0 plain", "Q4_0 plain", "Q5_1 plain", "MXFP4 plain", "F16 plain", "BF16 plain"):
        assert finding.verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("case", CASES)
def test_other_weights_are_told(case: str, pool: ThreadPoolExecutor) -> None:
    finding = look(case.split()[0], BLOCKS[case], WEIGHTS[::-1].copy(), pool)
    assert finding.verdict is Verdict.DIFFERENT
    assert finding.tally.broken_rows == 4
    assert abs(finding.tally.correlation) < 0.2


@pytest.mark.parametrize("case", CASES)
def test_turned_signs_are_told(case: str, pool: ThreadPoolExecutor) -> None:
    weights = WEIGHTS.copy()
    weights[2] = -weights[2]
    assert look(case.split()[0], BLOCKS[case], weights, pool).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("case", CASES)
def test_slightly_other_weights_are_told(case: str, pool: ThreadPoolExecutor) -> None:
    kind = case.split()[0]
    size = 0.5 if kind in COARSE else 0.1 if kind.startswith("IQ") else 0.01
    noise = np.random.default_rng(2).standard_normal(WEIGHTS.shape, np.float32) * size * WEIGHTS.std()
    finding = look(kind, BLOCKS[case], WEIGHTS + noise, pool)
    assert finding.verdict not in ALIKE, finding
    assert finding.change is not None
    assert 0.04 * size < finding.change < 25 * size or kind in COARSE or kind.startswith("IQ")


@pytest.mark.parametrize("case", QUANTIZED)
def test_one_other_block_is_found(case: str, pool: ThreadPoolExecutor) -> None:
    kind = case.split()[0]
    blocks = BLOCKS[case].reshape(-1, TYPES[kind].block_bytes).copy()
    per_row = 512 // TYPES[kind].block_size
    blocks[2 * per_row + 1] = blocks[3 * per_row]
    finding = look(kind, blocks, WEIGHTS, pool)
    assert finding.verdict is Verdict.DIFFERENT
    assert (finding.tally.broken, finding.tally.broken_rows) == (1, 1)
    assert finding.tally.worst[0][:2] == (2, TYPES[kind].block_size)


@pytest.mark.parametrize("case", [case for case in QUANTIZED if not case.startswith(COARSE)])
def test_most_single_bits_are_found(case: str, pool: ThreadPoolExecutor) -> None:
    kind = case.split()[0]
    pair = Pair(tensor(kind, BLOCKS[case], WEIGHTS.shape), tensor("F32", WEIGHTS, WEIGHTS.shape))
    finding = examine(pair, [Chunk(0, 4)], pool)
    if finding.verdict is Verdict.CONSISTENT:
        assert measure_limit(pair, finding, 3).flips > 0.5


def test_limits_are_sizes_that_are_found(pool: ThreadPoolExecutor) -> None:
    pair = Pair(tensor("Q4_K", BLOCKS["Q4_K weighted"], WEIGHTS.shape), tensor("F32", WEIGHTS, WEIGHTS.shape))
    limit = measure_limit(pair, examine(pair, [Chunk(0, 4)], pool), 5)
    assert (limit.rule, limit.rows) == ("nearest", 4)
    assert 1e-6 < limit.noise < 0.02
    noise = np.random.default_rng(9).standard_normal(WEIGHTS.shape, np.float32) * WEIGHTS.std()
    assert look("Q4_K", BLOCKS["Q4_K weighted"], WEIGHTS + 10 * limit.noise * noise, pool).verdict not in ALIKE


@pytest.mark.parametrize(("source_type", "way"), [("F32", "F16"), ("BF16", "F16"), ("F32", "BF16")])
def test_weights_may_have_gone_through_another_type_of_floats(
    source_type: str, way: str, pool: ThreadPoolExecutor
) -> None:
    weights = WEIGHTS * np.float32(1e-3)  # where F16 is coarser than BF16
    if source_type == "BF16":
        weights = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    stored = by_public_rule(weights, GGMLQuantizationType[way])
    values = dequantize(TYPES[way], stored.tobytes(), weights.shape)
    made = by_public_rule(values, GGMLQuantizationType.Q8_0)
    finding = look("Q8_0", made, weights, pool, source_type)
    assert (finding.verdict, finding.way) == (Verdict.IDENTICAL, way)


def test_what_was_quantized_twice_is_told(pool: ThreadPoolExecutor) -> None:
    eight = by_public_rule(WEIGHTS, GGMLQuantizationType.Q8_0)
    values = dequantize(TYPES["Q8_0"], eight.tobytes(), WEIGHTS.shape)
    made = by_public_rule(values, GGMLQuantizationType.Q4_0)
    finding = look("Q4_0", made, WEIGHTS, pool)
    assert (finding.verdict, finding.way) == (Verdict.UNPROVEN, "Q8_0")
    assert finding.how.startswith("requantized")


def test_scales_that_put_everything_on_zero_are_not_proven(pool: ThreadPoolExecutor) -> None:
    blocks = BLOCKS["Q4_K weighted"].reshape(-1, 144).copy()
    blocks[3, :4] = 0  # both scales; every level stands for zero, which is the nearest of them
    finding = look("Q4_K", blocks, WEIGHTS, pool)
    assert finding.verdict is Verdict.UNPROVEN
    assert finding.tally.lavish == 1


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_scales_that_lean_to_one_side_are_not_proven(factor: float, pool: ThreadPoolExecutor) -> None:
    weights = np.random.default_rng(6).standard_normal((2, 4096)).astype(np.float32)
    blocks = by_public_rule(weights, GGMLQuantizationType.Q4_0).reshape(-1, 18).copy()
    scales = blocks[:, :2].copy().view(np.float16)
    scales[:128] *= np.float16(factor)
    blocks[:, :2] = scales.view(np.uint8)
    finding = look("Q4_0", blocks, weights, pool)
    assert (finding.verdict, finding.how) == (Verdict.UNPROVEN, "scales that lean to one side")
    assert finding.tally.leaning == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_comes_from_nothing(value: float, pool: ThreadPoolExecutor) -> None:
    weights = WEIGHTS.copy()
    weights[1, 40] = value
    finding = look("Q4_K", BLOCKS["Q4_K plain"], weights, pool)
    assert finding.verdict is Verdict.DIFFERENT
    assert finding.tally.worst[0][:2] == (1, 0)


@pytest.mark.parametrize("kind", ["I8_32", "I8_128", "I4_32", "I4_128", "F8_32", "F8_128"])
def test_integers_and_small_floats_of_checkpoints(kind: str, pool: ThreadPoolExecutor) -> None:
    weights = np.random.default_rng(7).standard_normal((2, 512)).astype(np.float32)
    blocks, codes_first = _rounded_to_nearest(kind, weights)
    assert look(kind, blocks, weights, pool).verdict is Verdict.CONSISTENT
    blocks[1, codes_first + 3] ^= 0x14
    assert look(kind, blocks, weights, pool).verdict is Verdict.DIFFERENT


def _rounded_to_nearest(kind: str, weights: np.ndarray) -> tuple[np.ndarray, int]:
    """Blocks as uint8 [n, bytes] of one scale per row, and where their codes begin."""
    size = TYPES[kind].block_size
    levels = GRIDS[kind].levels.values
    zero = 8 if kind.startswith("I4") else 0
    steps = np.repeat(np.abs(weights).max(axis=1) / min(-levels[0] if levels[0] else 7, levels[-1]), 512 // size)
    units = weights.reshape(-1, size) / steps[:, None].astype(np.float32) + np.float32(zero)
    nearest = levels[np.abs(units[:, :, None] - levels).argmin(axis=2)]
    scales = steps.astype("<f4")[:, None].view(np.uint8)
    if kind.startswith("F8"):
        return np.concatenate([scales, _e4m3(nearest)], axis=1), 4
    zeros = np.full((len(units), 1), zero, np.uint8)
    codes = nearest.astype(np.int8).view(np.uint8)
    if kind.startswith("I4"):
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return np.concatenate([scales, zeros, codes], axis=1), 5


def _e4m3(values: np.ndarray) -> np.ndarray:
    """The bytes of numbers that E4M3 holds exactly."""
    codes = np.arange(256, dtype=np.uint8)
    blocks = np.concatenate([np.tile(np.array([1], "<f4").view(np.uint8), (8, 1)), codes.reshape(8, 32)], axis=1)
    all_values = dequantize(TYPES["F8_32"], blocks.tobytes(), (256,))
    finite = (codes & 127) != 127
    order = np.argsort(all_values[finite], kind="stable")
    return codes[finite][order][np.searchsorted(all_values[finite][order], values)]
