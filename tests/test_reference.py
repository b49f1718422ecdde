"""The reference backend's ops against their formulas, its cache, its emulation of the CPU, and its contract."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from localinfer.errors import UnsupportedError
from localinfer.kernels import BACKENDS, backend
from localinfer.kernels.base import Cancelled, KvType, LoadConfig, Tensor, batch_of
from localinfer.kernels.program import (
    Attention,
    Embed,
    Glu,
    KvAppend,
    KvLayer,
    Linear,
    Matrix,
    Op,
    Program,
    RopeSpec,
    Scale,
    SelectRows,
    Value,
)
from localinfer.kernels.reference import ops
from localinfer.kernels.reference.backend import ReferenceBackend, last_uses, slot_bytes
from localinfer.kernels.reference.cache import Store
from localinfer.kernels.reference.dequantize import dequantize
from localinfer.kernels.types import TYPES


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


# ---- formulas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [4, 12])
def test_rms_norm(group: int) -> None:
    x, weight = random(3, 12), random(group, seed=1)
    y = ops.rms_norm(x, weight, 1e-3)
    for t in range(3):
        for start in range(0, 12, group):
            run = [float(v) for v in x[t, start : start + group]]
            root = math.sqrt(sum(v * v for v in run) / group + 1e-3)
            expected = [v / root * float(w) for v, w in zip(run, weight, strict=True)]
            assert y[t, start : start + group].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("pairs", "columns"), [("adjacent", ((0, 1), (2, 3))), ("halves", ((0, 2), (1, 3)))])
def test_rope_turns_pairs_of_the_leading_columns(pairs: str, columns: tuple[tuple[int, int], ...]) -> None:
    x, positions, frequencies = random(2, 12), torch.tensor([5, 1000]), (1.0, 0.25)
    before = x.clone()
    y = ops.rope(x, positions, 6, RopeSpec(frequencies, 1.5, pairs))  # type: ignore[arg-type]
    assert torch.equal(x, before)
    for t in range(2):
        for head in range(2):
            for (a, b), frequency in zip(columns, frequencies, strict=True):
                turned = complex(x[t, head * 6 + a], x[t, head * 6 + b])
                angle = int(positions[t]) * frequency
                turned *= 1.5 * complex(math.cos(angle), math.sin(angle))
                assert float(y[t, head * 6 + a]) == pytest.approx(turned.real, abs=1e-5)
                assert float(y[t, head * 6 + b]) == pytest.approx(turned.imag, abs=1e-5)
            assert torch.equal(y[t, head * 6 + 4 : head * 6 + 6], x[t, head * 6 + 4 : head * 6 + 6])


@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("softcap", [0.0, 0.5])
def test_attention(window: int, softcap: float) -> None:
    """4 query heads on 2 key heads, 2 queries at the end of 6 positions."""
    q, k, v = random(2, 4 * 8), random(6, 2, 8, seed=1), random(6, 2, 8, seed=2)
    y = ops.attention(q, k, v, torch.tensor([4, 5]), 4, 0.7, window, softcap)
    for t, position in enumerate((4, 5)):
        for head in range(4):
            seen = range(max(0, position - window + 1) if window else 0, position + 1)
            scores = [0.7 * float(q[t, head * 8 : head * 8 + 8] @ k[p, head // 2]) for p in seen]
            if softcap:
                scores = [softcap * math.tanh(s / softcap) for s in scores]
            weights = [math.exp(s - max(scores)) for s in scores]
            mixed = sum(w * v[p, head // 2].double() for w, p in zip(weights, seen, strict=True)) / sum(weights)
            assert y[t, head * 8 : head * 8 + 8].tolist() == pytest.approx(mixed.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_glu(activation: str, function: Callable[[float], float]) -> None:
    gate, up = 3 * random(1, 20), random(1, 20, seed=1)
    expected = [function(float(g)) * float(u) for g, u in zip(gate[0], up[0], strict=True)]
    assert ops.glu(gate, up, activation)[0].tolist() == pytest.approx(expected, abs=1e-5)  # type: ignore[arg-type]


# ---- the cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "error"), [("f32", 0.0), ("f16", 2**-11), ("bf16", 2**-8), ("int8", 0.5 / 127)])
def test_the_cache_keeps_what_its_type_can(kind: KvType, error: float) -> None:
    layer = KvLayer(n_kv_heads=2, head_dim=8)
    store, x = Store(6, layer, kind), random(3, 16)
    store.write(torch.tensor([4, 0, 2]), x)
    found = store.read(torch.tensor([4, 0, 2])).view(3, 16)
    largest = x.view(3, 2, 8).abs().amax(-1).repeat_interleave(8, -1) if kind == "int8" else x.abs()
    assert bool(((found - x).abs() <= largest * error * 1.0001).all())
    assert not store.read(torch.tensor([1, 3, 5])).any(), "other slots are untouched"
    held = sum(t.nbytes for t in (store._data, store._scales) if t is not None)
    assert 2 * held == 6 * slot_bytes(layer, kind, kind)


def test_int8_rounds_each_head_by_its_largest_value_ties_to_even() -> None:
    store = Store(2, KvLayer(n_kv_heads=2, head_dim=4), "int8")
    store.write(torch.tensor([1]), torch.tensor([[127.0, 0.5, 1.5, -2.5, 0.0, 0.0, 0.0, 0.0]]))
    assert store._data[1].tolist() == [[127, 0, 2, -2], [0, 0, 0, 0]]
    assert store._scales is not None
    assert store._scales[1].flatten().tolist() == [1.0, 0.0]


# ---- emulating the CPU -----------------------------------------------------------------------------------------


def test_activations_are_rounded_per_16_by_their_largest_value() -> None:
    x = torch.zeros(1, 64)
    x[0, :4] = torch.tensor([127.0, 0.5, 1.5, -2.5])
    x[0, 16:18] = torch.tensor([-254.0, 3.0])
    x[0, 32] = 2.0**-120
    x[0, 48:50] = torch.tensor([math.inf, 1.0])
    q, scale = ops.quantized_activations(x)
    assert q[0, :4].tolist() == [127, 0, 2, -2]
    assert q[0, 16:18].tolist() == [-127, 2]  # 1.5, to even
    assert not q[0, 32:].any()
    assert scale[0, :3].tolist() == [1.0, 2.0, 0.0]
    assert math.isnan(scale[0, 3])


def blocks(type_name: str, rows: int, cols: int) -> np.ndarray:
    """Random blocks of a type, `[rows, bytes]`: random bits, with scales that are ordinary numbers."""
    kind = TYPES[type_name]
    random = np.random.RandomState(7)
    data = random.randint(0, 256, (rows * cols // kind.block_size, kind.block_bytes), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}
    for offset in halves[type_name]:
        scales = random.uniform(0.01, 0.1, len(data)).astype("<f2")
        data[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return data.reshape(rows, -1)


def matmul_h(type_name: str, row: np.ndarray, q: list[int], a: list[float]) -> float:
    """One output as kernels/cpu/native/matmul.h writes it, in Python's floats and integers."""
    kind, acc = TYPES[type_name], 0.0
    s16 = [a[g] * sum(q[16 * g : 16 * g + 16]) for g in range(len(a))]
    for b, block in enumerate(row.reshape(-1, kind.block_bytes)):
        half = {i: float(block[i : i + 2].view("<f2")[0]) for i in (0, 2, kind.block_bytes - 2)}
        base = b * kind.block_size  # first column of the block

        def dot(u: list[int], first: int, base: int = base) -> int:
            return sum(u[first + k] * q[base + first + k] for k in range(16))

        g = base // 16
        if kind.block_size == 32:
            high = int.from_bytes(block[-20:-16].tobytes(), "little") if "Q5" in type_name else 0
            if type_name == "Q8_0":
                u = [int(x) for x in block[2:].view(np.int8)]
            else:
                u = [int(x) & 15 for x in block[-16:]] + [int(x) >> 4 for x in block[-16:]]
                u = [x | (high >> i & 1) << 4 for i, x in enumerate(u)]
            acc += half[0] * (dot(u, 0) * a[g] + dot(u, 16) * a[g + 1])
            zero = {"Q4_0": -8 * half[0], "Q5_0": -16 * half[0], "Q8_0": 0.0}.get(type_name, half[2])
            acc += zero * (s16[g] + s16[g + 1])
        elif type_name == "Q4_K":
            packed, t, m_sum = [int(x) for x in block[4:16]], 0.0, 0.0
            u = [int(x) >> shift & 15 for c in range(4) for shift in (0, 4) for x in block[16 + 32 * c : 48 + 32 * c]]
            for j in range(8):
                if j < 4:
                    sc, m = packed[j] & 63, packed[j + 4] & 63
                else:
                    sc = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
                    m = packed[j + 4] >> 4 | packed[j] >> 6 << 4
                t += sc * (dot(u, 32 * j) * a[g + 2 * j] + dot(u, 32 * j + 16) * a[g + 2 * j + 1])
                m_sum += m * (s16[g + 2 * j] + s16[g + 2 * j + 1])
            acc += half[0] * t - half[2] * m_sum
        else:
            assert type_name == "Q6_K"
            low, high_bits = [int(x) for x in block[:128]], [int(x) for x in block[128:192]]
            u = []
            for n in range(2):
                for part in range(4):
                    for k in range(32):
                        nibble = low[64 * n + 32 * (part % 2) + k] >> 4 * (part // 2) & 15
                        u.append(nibble | (high_bits[32 * n + k] >> 2 * part & 3) << 4)
            for j, sc in enumerate(block[192:208].view(np.int8)):
                acc += half[208] * int(sc) * (dot(u, 16 * j) * a[g + j] - 32 * s16[g + j])
    return acc


@pytest.mark.parametrize("type_name", ["Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K"])
def test_emulated_products_are_those_of_matmul_h(type_name: str) -> None:
    rows, cols = 3, 512
    data = blocks(type_name, rows, cols)
    weight = torch.from_numpy(dequantize(TYPES[type_name], data.tobytes(), (rows, cols)))
    x, bias = random(2, cols), random(rows, seed=3)
    y = ops.emulated_linear(x, weight, bias, type_name)
    q, scale = ops.quantized_activations(x)
    for t in range(2):
        for n in range(rows):
            expected = matmul_h(type_name, data[n], q[t].tolist(), scale[t].tolist()) + float(bias[n])
            size = float(x[t].abs() @ weight[n].abs())
            assert float(y[t, n]) == pytest.approx(expected, abs=1e-6 * size)


def test_float_weights_are_emulated_with_float_activations() -> None:
    x, weight = random(2, 64), random(3, 64, seed=1)
    exact = (x.double() @ weight.double().T).float()
    assert torch.equal(ops.emulated_linear(x, weight, None, "F16"), exact)
    assert not torch.allclose(ops.emulated_linear(x, weight, None, "Q8_0"), exact, atol=1e-4)


# ---- the contract ----------------------------------------------------------------------------------------------

WIDTH, VOCABULARY = 32, 11


def tiny_program() -> Program:
    """One attention layer, one product, and rows selected at the end."""
    table, head = Matrix("table", VOCABULARY, WIDTH), Matrix("head", VOCABULARY, WIDTH)
    x, attended, hidden, scaled = (Value(i, n, "tokens", WIDTH) for i, n in enumerate("xahs"))
    rows, logits = Value(4, "r", "rows", WIDTH), Value(5, "logits", "rows", VOCABULARY)
    steps: tuple[Op, ...] = (
        Embed(x, table),
        KvAppend(x, x, 0),
        Attention(attended, x, 0, n_heads=2, scale=0.25),
        Glu(hidden, attended, x, "silu"),
        Scale(scaled, hidden, 2.0),
        SelectRows(rows, scaled),
        Linear((logits,), rows, (head,), (None,)),
    )
    return Program("tiny", steps, (KvLayer(2, WIDTH // 2),), logits, VOCABULARY, 64)


class Weights:
    """A TensorSource whose head is Q8_0."""

    def has_tensor(self, name: str) -> bool:
        return name in ("table", "head")

    def tensor(self, name: str) -> Tensor:
        values = random(VOCABULARY, WIDTH, seed=len(name)).numpy()
        kind = TYPES["F32" if name == "table" else "Q8_0"]
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.name]).tobytes()
        return Tensor(name, kind, (VOCABULARY, WIDTH), Path("none"), 0, len(data), memoryview(data))


def config(kv: KvType = "f16") -> LoadConfig:
    return LoadConfig(16, 4, 2, 64, kv_blocks=8, block_size=4, kv_type_k=kv, kv_type_v=kv)


def test_logits_are_in_memory_at_their_address() -> None:
    model = ReferenceBackend().load(tiny_program(), Weights(), config())
    logits = model.step(batch_of([([1, 2, 3], 0, [6])]))
    raw = (ctypes.c_float * VOCABULARY).from_address(logits.address)
    assert (logits.rows, logits.vocab_size) == (1, VOCABULARY)
    assert list(raw) == logits.numpy()[0].tolist()


def test_emulation_changes_products_a_little() -> None:
    batch = batch_of([([1, 2, 3], 0, [6])])
    exact = ReferenceBackend().load(tiny_program(), Weights(), config()).step(batch).numpy()
    emulated = ReferenceBackend(emulate="cpu").load(tiny_program(), Weights(), config()).step(batch).numpy()
    difference = np.abs(exact - emulated).max()
    assert 0 < difference < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "int8"])
def test_attention_reads_this_steps_keys_in_the_caches_type(kv: KvType) -> None:
    """Token by token equals all at once, which it would not if the prompt's own keys were read unrounded."""
    model = ReferenceBackend().load(tiny_program(), Weights(), config(kv))
    whole = model.step(batch_of([([1, 2, 3, 4, 5, 6], 0, [6, 1])])).numpy().copy()
    for position, token in enumerate([1, 2, 3, 4, 5, 6]):
        last = model.step(batch_of([([token], position, [6, 1])])).numpy()
    np.testing.assert_allclose(last, whole, rtol=1e-5, atol=1e-5)


def test_the_plan_counts_every_weight_slot_and_live_activation() -> None:
    plan = ReferenceBackend().plan(tiny_program(), Weights(), config())
    assert plan.parts["weights"] == 2 * VOCABULARY * WIDTH * 4
    assert plan.parts["kv"] == 8 * 4 * 2 * WIDTH * 2
    # At the attention: its input, its output, scores twice, and keys and values repeated for each query head.
    assert plan.parts["activations"] == 4 * (2 * 16 * WIDTH + 2 * 2 * 16 * 64 + 2 * 2 * 64 * WIDTH // 2)
    assert plan.total == sum(plan.parts.values())
    # With one position there is little of that, and three values are live at the glu.
    plan = ReferenceBackend().plan(tiny_program(), Weights(), replace(config(), context=1))
    assert plan.parts["activations"] == 4 * 3 * 16 * WIDTH


def test_values_are_freed_after_their_last_use() -> None:
    names = [[value.name for value in dying] for dying in last_uses(tiny_program())]
    assert names == [[], [], [], ["x", "a"], ["h"], ["s"], ["r"]]


def test_progress_ends_with_all_bytes() -> None:
    seen: list[tuple[int, int]] = []
    ReferenceBackend().load(tiny_program(), Weights(), config(), lambda done, total: seen.append((done, total)))
    total = VOCABULARY * WIDTH * 4 + VOCABULARY * 34
    assert seen == [(VOCABULARY * WIDTH * 4, total), (total, total)]


def test_a_step_can_be_cancelled_between_ops_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ReferenceBackend().load(tiny_program(), Weights(), config())
    batch = batch_of([([1], 0, [0])])
    glu = ops.glu
    monkeypatch.setattr(ops, "glu", lambda *arguments: (model.cancel(), glu(*arguments))[1])
    with pytest.raises(Cancelled):
        model.step(batch)
    monkeypatch.undo()
    model.step(batch)


def test_a_closed_model_runs_no_step() -> None:
    model = ReferenceBackend().load(tiny_program(), Weights(), config())
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.step(batch_of([([1], 0, [0])]))


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        ([(list(range(11)) * 2, 0, [0, 1, 2, 3, 4, 5])], "tokens of the batch: 22"),
        ([([1], 64, list(range(8)) * 3)], "last position of the batch: 64"),
        ([([1], 0, [8])], "largest block of the batch: 8"),
        ([([1], 0, [i]) for i in range(3)], "sequences of the batch: 3"),
    ],
)
def test_a_batch_beyond_what_was_reserved_is_refused(
    sequences: list[tuple[list[int], int, list[int]]], words: str
) -> None:
    model = ReferenceBackend().load(tiny_program(), Weights(), config())
    with pytest.raises(ValueError, match=words):
        model.step(batch_of(sequences))


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    model = ReferenceBackend().load(tiny_program(), Weights(), config())
    for token in (-1, VOCABULARY):
        with pytest.raises(ValueError, match="token"):
            model.step(batch_of([([token], 0, [0])]))


def test_the_table_of_backends_names_what_there_is() -> None:
    assert isinstance(backend("reference"), ReferenceBackend)
    with pytest.raises(UnsupportedError, match="no backend 'tpu'") as error:
        backend("tpu")
    assert all(name in error.value.hint for name in BACKENDS)


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ReferenceBackend().availability().usable
    monkeypatch.setitem(sys.modules, "torch", None)
    found = ReferenceBackend().availability()
    assert not found.usable
    assert "torch" in found.reason
