"""Types of the cached keys and values, any pair of them: parity with the reference, equal bits, and what they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localinfer.errors import UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Executable, KvType, LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.cpu.native import KV_TYPES, isa_names
from localinfer.kernels.program import KvLayer
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.models import record
from test_cpu_backend import INT8_TOLERANCE, TOLERANCE, Array, AttentionCase, one_by_one, whole
from tiny_models import TINY_MODELS, TinyModel, write_gguf

Pair = tuple[KvType, KvType]
PAIRS: list[Pair] = list(product(KV_TYPES, KV_TYPES))  # type: ignore[arg-type]
TOKENS = 270  # more than one chunk
SHAPES = {
    "grouped": (9, KvLayer(3, 64), {}),
    "80 wide": (4, KvLayer(2, 80), {}),
    "window": (4, KvLayer(2, 128, window=40), {}),
    "256 wide": (4, KvLayer(1, 256), {}),
    "odd width, capped": (5, KvLayer(1, 20), {"softcap": 4.0, "scale": 0.9}),
}

each_pair = pytest.mark.parametrize("pair", PAIRS, ids=[f"{k}-{v}" for k, v in PAIRS])


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def types(pair: Pair) -> dict[str, KvType]:
    return {"kv_type_k": pair[0], "kv_type_v": pair[1]}


def rms(values: Array) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


@pytest.mark.parametrize("shape", SHAPES)
@each_pair
def test_attention(tmp_path: Path, pair: Pair, shape: str) -> None:
    """As the reference that rounds alike; the same bits on each instruction set and however the step is cut."""
    heads, layer, options = SHAPES[shape]
    case = AttentionCase(tmp_path, TOKENS, heads, layer, **options)
    expected = case.run(ReferenceBackend(emulate="cpu"), whole(TOKENS), **types(pair))
    found = case.run(CpuBackend(), whole(TOKENS), **types(pair))
    tolerance = INT8_TOLERANCE if pair[1] == "int8" else TOLERANCE
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    for isa in isa_names():
        np.testing.assert_array_equal(case.run(CpuBackend(isa), whole(TOKENS), threads=1, **types(pair)), found, isa)
    pieces = [*one_by_one(20), batch_of([(range(20, TOKENS), 20, range(17))], logits="all")]
    for threads in (1, 3):
        np.testing.assert_array_equal(case.run(CpuBackend(), pieces, threads=threads, **types(pair)), found)


@pytest.mark.parametrize("pair", [("int8", "f16"), ("f16", "int8"), ("int8", "int8")])
def test_rounding_of_queries_and_weights_is_lost_in_that_of_the_cache(tmp_path: Path, pair: Pair) -> None:
    case = AttentionCase(tmp_path, TOKENS, 6, KvLayer(2, 64))
    exact = case.run(ReferenceBackend(), whole(TOKENS), kv_type_k="f32", kv_type_v="f32")
    rounded = case.run(ReferenceBackend(), whole(TOKENS), **types(pair))
    found = case.run(CpuBackend(), whole(TOKENS), **types(pair))
    assert 0 < rms(found - rounded) < 0.01 * rms(rounded - exact)


@each_pair
def test_each_pair_is_another(tmp_path: Path, pair: Pair) -> None:
    """No type is taken for another."""
    case = AttentionCase(tmp_path, 40, 6, KvLayer(2, 40))
    found = case.run(CpuBackend(), whole(40), **types(pair))
    for other in PAIRS:
        assert (case.run(CpuBackend(), whole(40), **types(other)) == found).all() == (other == pair)


@pytest.mark.parametrize("pair", [("int8", "int8"), ("bf16", "int8"), ("int8", "f16")])
@pytest.mark.parametrize("block_size", [8, 32, 256])
def test_attention_does_not_depend_on_the_block_size(tmp_path: Path, pair: Pair, block_size: int) -> None:
    case = AttentionCase(tmp_path, 300, 6, KvLayer(2, 40))
    first = case.run(CpuBackend(), whole(300), **types(pair))
    count = -(-300 // block_size)
    scattered = [count + 3 - i for i in range(count)]
    batch = [batch_of([(range(300), 0, scattered)], logits="all")]
    again = case.run(CpuBackend(), batch, block_size=block_size, kv_blocks=count + 5, **types(pair))
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e38])
def test_int8_of_extreme_keys_and_values(tmp_path: Path, value: float) -> None:
    """All zero, as good as zero, and near the largest floats."""
    case = AttentionCase(tmp_path, 20, 2, KvLayer(1, 16), last_token=value)
    expected = case.run(ReferenceBackend(emulate="cpu"), whole(20), kv_type_v="int8")
    found = case.run(CpuBackend(), whole(20), kv_type_v="int8")
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=0, atol=INT8_TOLERANCE * np.abs(expected[:-1]).max())
    assert np.abs(found[-1] - expected[-1]).max() <= INT8_TOLERANCE * np.abs(expected[-1]).max()
    for isa in isa_names():
        both = [case.run(CpuBackend(i), whole(20), kv_type_k="int8", kv_type_v="int8") for i in (isa, None)]
        np.testing.assert_array_equal(*both)


def test_int8_values_that_are_not_finite_show(tmp_path: Path) -> None:
    """In the row that sees them, and in no row before."""
    for value in (np.inf, np.nan):
        folder = tmp_path / str(value)
        folder.mkdir()
        case = AttentionCase(folder, 20, 2, KvLayer(1, 16), last_token=value)
        found = case.run(CpuBackend(), one_by_one(20), kv_type_v="int8")
        assert np.isfinite(found[:-1]).all()
        assert np.isnan(found[-1]).all()


FileOf = Callable[[TinyModel], Path]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    folder = tmp_path_factory.mktemp("kv-types")

    @lru_cache
    def write(tiny: TinyModel) -> Path:
        return write_gguf(tiny, folder / f"{tiny.name}.gguf", "F32")

    return write


def load(backend: Any, path: Path, tiny: TinyModel, pair: Pair, **settings: Any) -> Executable:
    with open_gguf(path) as file:
        config = LoadConfig(64, 64, 1, tiny.context, **({"kv_blocks": 16, "threads": 1} | settings), **types(pair))
        executable: Executable = backend.load(record(file.metadata, file, tiny.context), file, config)
    return executable


def logits(model: Executable, tokens: Sequence[int], table: Sequence[int], chunk: int = 64) -> Array:
    """After every token, `[tokens, vocabulary]`, in steps of `chunk` tokens; closes the model."""
    steps = [
        model.step(batch_of([(tokens[i : i + chunk], i, table)], "all")).numpy().copy()
        for i in range(0, len(tokens), chunk)
    ]
    model.close()
    return np.concatenate(steps)


@pytest.mark.parametrize("tiny", TINY_MODELS, ids=[m.name for m in TINY_MODELS])
def test_families_with_int8(tiny: TinyModel, file_of: FileOf) -> None:
    """No further from an exact cache than the reference with int8 is; the same bits in pieces, on threads, in other
    blocks."""
    path, pair, table = file_of(tiny), ("int8", "int8"), [5, 4, 6, 0, 7, 1, 2, 3]
    exact = logits(load(ReferenceBackend(), path, tiny, ("f32", "f32")), tiny.tokens(), table)
    alike = logits(load(ReferenceBackend(), path, tiny, pair), tiny.tokens(), table)
    found = logits(load(CpuBackend(), path, tiny, pair), tiny.tokens(), table)
    assert 0 < rms(found - exact) <= 1.1 * rms(alike - exact)
    for chunk, threads, block_size in ((1, 2, 16), (17, 1, 8), (64, 3, 32)):
        model = load(CpuBackend(), path, tiny, pair, threads=threads, block_size=block_size, kv_blocks=32)
        blocks = range(31, 31 - -(-tiny.length // block_size), -1)
        np.testing.assert_array_equal(logits(model, tiny.tokens(), blocks, chunk), found)


@each_pair
def test_the_plan_counts_each_type(tmp_path: Path, pair: Pair) -> None:
    """Bytes of 160 blocks of 16 positions, two heads of 32 each, up to a page per 256 positions."""
    case = AttentionCase(tmp_path, 16, 6, KvLayer(2, 32))
    bytes_of = {"f16": 64, "bf16": 64, "int8": 32 + 4}
    expected = 160 * 16 * 2 * (bytes_of[pair[0]] + bytes_of[pair[1]])
    reference, cpu = (
        backend.plan(case.program, case.built.tensors, case.built.config(**types(pair)))
        for backend in (ReferenceBackend(), CpuBackend())
    )
    assert reference.parts["kv"] == expected
    assert expected <= cpu.parts["kv"] <= expected + 10 * 4096
    executable = CpuBackend().load(case.program, case.built.tensors, case.built.config(**types(pair)))
    assert executable.memory == cpu
    executable.close()


@pytest.mark.parametrize("which", ["kv_type_k", "kv_type_v"])
@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()])
def test_a_type_that_a_backend_lacks_is_refused(tmp_path: Path, backend: Any, which: str) -> None:
    case = AttentionCase(tmp_path, 16, 2, KvLayer(1, 32))
    config = case.built.config(**{which: "f8"})
    for attempt in (backend.plan, backend.load):
        with pytest.raises(UnsupportedError, match="'f8'") as caught:
            attempt(case.program, case.built.tensors, config)
        assert "f16, bf16, int8" in caught.value.hint
