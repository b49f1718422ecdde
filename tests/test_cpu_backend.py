"""The CPU backend against the reference, op by op on equal inputs, and its bits against themselves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.kernels.base import Batch, Cancelled, LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.cpu.native import isa_names
from localinfer.kernels.program import (
    Add,
    Attention,
    Glu,
    KvAppend,
    KvLayer,
    Linear,
    Program,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    Softcap,
)
from localinfer.kernels.reference.backend import ReferenceBackend
from op_programs import OpProgram

Array = npt.NDArray[Any]
ISAS = isa_names()
TOLERANCE = 1e-5
# With int8 values, attention's weights are rounded to 32767 steps: an exponential that differs in its last bit may fall
# on the other side of a boundary.
INT8_TOLERANCE = TOLERANCE + 1 / 32767


def random(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def run(backend: Any, program: Program, built: OpProgram, batches: Sequence[Batch], config: LoadConfig) -> Array:
    """The rows of every batch, one below the other."""
    executable = backend.load(program, built.tensors, config)
    try:
        return np.concatenate([executable.step(batch).numpy().copy() for batch in batches])
    finally:
        executable.close()


def whole(tokens: int) -> list[Batch]:
    return [batch_of([(range(tokens), 0, range(-(-tokens // 16)))], logits="all")]


def one_by_one(tokens: int) -> list[Batch]:
    blocks = range(-(-tokens // 16))
    return [batch_of([([t], t, blocks)], logits="all") for t in range(tokens)]


def check_op(program: Program, built: OpProgram, tolerance: float = TOLERANCE) -> None:
    """Close to the reference; the same bits on every instruction set, for whole and single steps, on 1 to 3 threads."""
    n = built.tokens
    expected = run(ReferenceBackend(emulate="cpu"), program, built, whole(n), built.config())
    first = run(CpuBackend(ISAS[0]), program, built, whole(n), built.config())
    scale = np.abs(expected).max()
    assert np.isfinite(expected).all()
    assert np.abs(first - expected).max() <= tolerance * scale
    for isa in ISAS:
        for threads in (1, 3):
            config = built.config(threads=threads)
            np.testing.assert_array_equal(run(CpuBackend(isa), program, built, whole(n), config), first)
            np.testing.assert_array_equal(run(CpuBackend(isa), program, built, one_by_one(n), config), first)


@pytest.mark.parametrize(("width", "group"), [(64, 64), (200, 200), (96, 24), (13, 13)])
def test_rms_norm(tmp_path: Path, width: int, group: int) -> None:
    built = OpProgram(tmp_path, 7)
    x = built.input(random((7, width), 1, 3.0))
    weight = built.vector(random((group,), 2))
    check_op(built.program(built.add(RmsNorm, width, x=x, weight=weight, eps=1e-5, group=group)), built)


def test_add_scale_and_softcap(tmp_path: Path) -> None:
    built = OpProgram(tmp_path, 5)
    a, b = built.input(random((5, 37), 1)), built.input(random((5, 37), 2, 20.0))
    total = built.add(Add, 37, a=a, b=b)
    scaled = built.add(Scale, 37, x=total, factor=1.75)
    check_op(built.program(built.add(Softcap, 37, x=scaled, cap=30.0)), built)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_glu_by_rows(tmp_path: Path, activation: str) -> None:
    built = OpProgram(tmp_path, 5)
    gate, up = built.input(random((5, 44), 1, 6.0)), built.input(random((5, 44), 2))
    check_op(built.program(built.add(Glu, 44, gate=gate, up=up, activation=activation)), built)


@pytest.mark.parametrize("pairs", ["adjacent", "halves"])
@pytest.mark.parametrize("rotated", [16, 12])
def test_rope(tmp_path: Path, pairs: Any, rotated: int) -> None:
    built = OpProgram(tmp_path, 40)
    x = built.input(random((40, 48), 1))
    spec = RopeSpec(tuple(10000 ** (-2 * i / rotated) for i in range(rotated // 2)), 1.25, pairs)
    check_op(built.program(built.add(Rope, 48, x=x, head_dim=16, rope=spec)), built)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32", "IQ4_NL", "MXFP4"])
def test_linear(tmp_path: Path, kind: str) -> None:
    """One matrix with a bias, one without, of a number of rows that threads cannot share evenly."""
    built = OpProgram(tmp_path, 19)
    source = {"IQ4_NL": "Q4_0", "MXFP4": "Q4_0"}.get(kind)
    x = built.input(random((19, 96), 1))
    values = random((45, 96), 2)
    if source is None:
        matrix = built.matrix(values, kind)
    else:  # types that gguf-py cannot write: random blocks with small scales
        block = {"IQ4_NL": 18, "MXFP4": 17}[kind]
        data = np.random.default_rng(3).integers(0, 255, (45, 3, block), np.uint8)
        data[..., : block - 16] = [0x00, 0x2C] if kind == "IQ4_NL" else [124]
        built.tensors.add_raw("blocks", data.tobytes(), kind, (45, 96))
        matrix = built.matrix(values)
        matrix = type(matrix)("blocks", 45, 96)
    other = built.matrix(random((45, 96), 4), "Q8_0")
    a, b = built.value(45), built.value(45)
    built.add_op(Linear((a, b), x, (matrix, other), (built.vector(random((45,), 5)), None)))
    check_op(built.program(built.add(Add, 45, a=a, b=b)), built)


def test_elementwise_ops_behind_a_linear_run_on_its_columns(tmp_path: Path) -> None:
    built = OpProgram(tmp_path, 9)
    x = built.input(random((9, 64), 1))
    gate, up, down = built.value(72), built.value(72), built.value(40)
    built.add_op(Linear((gate, up), x, tuple(built.matrix(random((72, 64), s), "Q8_0") for s in (2, 3)), (None, None)))
    hidden = built.add(Glu, 72, gate=gate, up=up, activation="silu")
    built.add_op(Linear((down,), hidden, (built.matrix(random((40, 72), 4), "F32"),), (None,)))
    check_op(built.program(built.add(Softcap, 40, x=down, cap=3.0)), built)


class AttentionCase:
    """q, k, v given per token; `check` compares with the reference and with itself."""

    def __init__(
        self, folder: Path, tokens: int, heads: int, layer: KvLayer, last_token: float | None = None, **options: Any
    ) -> None:
        """`last_token`, if given, is every element of the last token's key and value."""
        self.built = OpProgram(folder, tokens)
        self.tokens = tokens
        width = layer.n_kv_heads * layer.head_dim
        q = self.built.input(random((tokens, heads * layer.head_dim), 1))
        keys, values = random((tokens, width), 2), random((tokens, width), 3)
        if last_token is not None:
            keys[-1] = values[-1] = last_token
        k, v = self.built.input(keys), self.built.input(values)
        index = self.built.kv_layer(layer)
        self.built.add_op(KvAppend(k, v, index))
        settings = {"scale": layer.head_dim**-0.5, "window": layer.window} | options
        out = self.built.add(Attention, heads * layer.head_dim, q=q, layer=index, n_heads=heads, **settings)
        self.program = self.built.program(out)

    def run(self, backend: Any, batches: Sequence[Batch], **config: Any) -> Array:
        return run(backend, self.program, self.built, batches, self.built.config(**config))


@pytest.mark.parametrize(
    ("heads", "layer", "options"),
    [
        (9, KvLayer(3, 64), {}),
        (4, KvLayer(1, 256), {}),
        (2, KvLayer(2, 20), {}),
        (8, KvLayer(1, 16), {"softcap": 4.0, "scale": 0.9}),
        (4, KvLayer(2, 32, window=40), {}),
        (30, KvLayer(1, 24, window=300), {}),
    ],
)
@pytest.mark.parametrize("kind", ["f16", "bf16", "int8"])
def test_attention(tmp_path: Path, heads: int, layer: KvLayer, options: dict[str, Any], kind: Any) -> None:
    n = 530  # more than two chunks
    case = AttentionCase(tmp_path, n, heads, layer, **options)
    types = {"kv_type_k": kind, "kv_type_v": kind}
    expected = case.run(ReferenceBackend(emulate="cpu"), whole(n), **types)
    first = case.run(CpuBackend(ISAS[-1]), whole(n), **types)
    tolerance = INT8_TOLERANCE if kind == "int8" else TOLERANCE
    assert np.abs(first - expected).max() <= tolerance * np.abs(expected).max()

    blocks = list(range(34))
    for size in (1, 7, 256):
        step = 97 if size == 1 else size
        chunks = []
        for begin in range(0, n, step):
            end = min(begin + step, n)
            if size == 1:  # some tokens alone, the rest in one go
                chunks.append(batch_of([([begin], begin, blocks)], logits="all"))
                begin += 1
            if begin < end:
                chunks.append(batch_of([(range(begin, end), begin, blocks)], logits="all"))
        for threads in (1, 3):
            again = case.run(CpuBackend(ISAS[-1]), chunks, threads=threads, **types)
            np.testing.assert_array_equal(again, first)
    if layer.head_dim <= 32:
        np.testing.assert_array_equal(case.run(CpuBackend("portable"), whole(n), **types), first)


@pytest.mark.parametrize("block_size", [8, 32, 256])
def test_attention_does_not_depend_on_the_block_size(tmp_path: Path, block_size: int) -> None:
    case = AttentionCase(tmp_path, 300, 6, KvLayer(2, 40))
    first = case.run(CpuBackend(), whole(300))
    count = -(-300 // block_size)
    scattered = [count + 3 - i for i in range(count)]
    batch = [batch_of([(range(300), 0, scattered)], logits="all")]
    again = case.run(CpuBackend(), batch, block_size=block_size, kv_blocks=count + 5)
    np.testing.assert_array_equal(again, first)


def test_sequences_in_one_step_do_not_see_each_other(tmp_path: Path) -> None:
    """Three sequences at different depths, prefill and decode mixed, against each of them alone."""
    case = AttentionCase(tmp_path, 400, 6, KvLayer(2, 32))
    tables = [list(range(0, 25)), list(range(30, 55)), list(range(60, 85))]
    prompts = [range(0, 300), range(100, 103), range(300, 317)]
    alone = [
        case.run(CpuBackend(), [batch_of([(p, 0, t)], logits="all")]) for p, t in zip(prompts, tables, strict=True)
    ]
    first = batch_of([(prompts[i][:-1], 0, tables[i]) for i in range(3)], logits="all")
    second = batch_of([(prompts[i][-1:], len(prompts[i]) - 1, tables[i]) for i in range(3)], logits="all")
    for threads in (1, 2, 5):
        together = case.run(CpuBackend(), [first, second], threads=threads)
        begin = 0
        for i, prompt in enumerate(prompts):
            end = begin + len(prompt) - 1
            np.testing.assert_array_equal(together[begin:end], alone[i][:-1])
            np.testing.assert_array_equal(together[len(first.tokens) + i], alone[i][-1])
            begin = end


@pytest.mark.parametrize("kind", ["f16", "bf16", "int8"])
def test_garbage_behind_the_last_position_is_never_read(tmp_path: Path, kind: Any) -> None:
    """A block that held NaN gives the same bits as a fresh one."""
    case = AttentionCase(tmp_path, 64, 2, KvLayer(1, 16))
    types = {"kv_type_k": kind, "kv_type_v": kind}
    executable = CpuBackend().load(case.program, case.built.tensors, case.built.config(**types))
    clean = executable.step(batch_of([(range(5), 0, [0])], logits="all")).numpy().copy()
    executable.close()

    (tmp_path / "again").mkdir()
    poisoned = AttentionCase(tmp_path / "again", 64, 2, KvLayer(1, 16), last_token=np.nan)
    executable = CpuBackend().load(poisoned.program, poisoned.built.tensors, poisoned.built.config(**types))
    executable.step(batch_of([([63] * 16, 0, [0])], logits="all"))
    np.testing.assert_array_equal(executable.step(batch_of([(range(5), 0, [0])], logits="all")).numpy(), clean)
    executable.close()


def test_plan_equals_what_is_reserved(tmp_path: Path) -> None:
    case = AttentionCase(tmp_path, 400, 6, KvLayer(2, 32))
    plan = CpuBackend().plan(case.program, case.built.tensors, case.built.config())
    executable = CpuBackend().load(case.program, case.built.tensors, case.built.config())
    assert executable.memory == plan
    assert plan.parts["kv"] >= 160 * 16 * 2 * 32 * 2 * 2
    executable.close()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (batch_of([([64], 0, [0])]), "vocabulary"),
        (batch_of([([-1], 0, [0])]), "vocabulary"),
        (batch_of([([1], 2000, range(126))]), "context"),
        (batch_of([([1], 16, [0])]), "cover a position"),
        (batch_of([([1], 0, [160])]), "outside the pool"),
        (batch_of([([1], 0, [-1])]), "outside the pool"),
        (batch_of([([1], 0, [0])] * 9), "sequences"),
        (batch_of([([1] * 65, 0, range(5))]), "planned"),
        (batch_of([]), "no tokens"),
        (batch_of([([1, 2], 0, [0]), ([], 0, [1])]), "no tokens"),
    ],
)
def test_a_wrong_batch_is_refused(tmp_path: Path, batch: Batch, words: str) -> None:
    case = AttentionCase(tmp_path, 64, 2, KvLayer(1, 16))
    executable = CpuBackend().load(case.program, case.built.tensors, case.built.config())
    with pytest.raises(ValueError, match=words):
        executable.step(batch)
    executable.close()


def test_positions_must_follow_each_other_and_logit_rows_ascend(tmp_path: Path) -> None:
    case = AttentionCase(tmp_path, 64, 2, KvLayer(1, 16))
    executable = CpuBackend().load(case.program, case.built.tensors, case.built.config())
    batch = batch_of([([1, 2], 0, [0])])
    batch.positions[1] = 0
    with pytest.raises(ValueError, match="consecutive"):
        executable.step(batch)
    batch = batch_of([([1, 2], 0, [0])], logits="all")
    batch.logit_rows[1] = 0
    with pytest.raises(ValueError, match="ascending"):
        executable.step(batch)
    executable.close()


def test_a_step_can_be_cancelled_from_another_thread(tmp_path: Path) -> None:
    """Steps are long enough (a wide float matrix) that some cancel falls into one; the model works on afterwards."""
    built = OpProgram(tmp_path, 256)
    x = built.input(random((256, 512), 1))
    for seed in range(2, 10):
        out = built.value(512)
        built.add_op(Linear((out,), x, (built.matrix(random((512, 512), seed, 0.05)),), (None,)))
        x = out
    program = built.program(x)
    executable = CpuBackend("portable").load(program, built.tensors, built.config())
    expected = executable.step(whole(256)[0]).numpy().copy()
    cancelled = threading.Event()

    def keep_cancelling() -> None:
        while not cancelled.wait(0.002):
            executable.cancel()

    canceller = threading.Thread(target=keep_cancelling)
    canceller.start()
    steps = (executable.step(whole(256)[0]) for _ in range(50))
    with pytest.raises(Cancelled):
        list(steps)
    cancelled.set()
    canceller.join()
    with contextlib.suppress(Cancelled):  # the last cancel may have come between two steps
        executable.step(whole(256)[0])
    np.testing.assert_array_equal(executable.step(whole(256)[0]).numpy(), expected)
    executable.close()


def test_a_cancel_between_steps_stops_the_next_one_once(tmp_path: Path) -> None:
    case = AttentionCase(tmp_path, 64, 2, KvLayer(1, 16))
    for backend in (CpuBackend(), ReferenceBackend()):
        executable = backend.load(case.program, case.built.tensors, case.built.config())
        executable.cancel()
        with pytest.raises(Cancelled):
            executable.step(whole(5)[0])
        assert executable.step(whole(5)[0]).rows == 5
        executable.close()
        executable.cancel()  # nothing happens


def test_values_beyond_the_range_of_f16_do_not_reach_earlier_tokens(tmp_path: Path) -> None:
    """An infinity in the cache, times the probability 0 that an earlier token gives it, would be NaN."""
    case = AttentionCase(tmp_path, 8, 2, KvLayer(1, 16), last_token=1e6)
    first = case.run(CpuBackend(), whole(8))
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(case.run(CpuBackend(), one_by_one(8)), first)
    expected = case.run(ReferenceBackend(), whole(8))
    assert np.abs(first - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_a_model_loaded_before_fork_says_so_in_the_child(tmp_path: Path) -> None:
    case = AttentionCase(tmp_path, 64, 2, KvLayer(1, 16))
    executable = CpuBackend().load(case.program, case.built.tensors, case.built.config())
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of fork in a process with threads
        child = os.fork()
    if child == 0:
        try:
            executable.step(whole(5)[0])
        except LocalInferError as error:
            os.write(write, error.message.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert b"fork" in os.read(read, 1000)
    os.close(read)
    executable.close()


@pytest.mark.skipif("LOCALINFER_NATIVE_DIR" in os.environ, reason="a sanitizer needs more address space than is left")
def test_more_threads_than_the_system_has_are_refused() -> None:
    """The ones that were started end; the pool goes on, and can still grow."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "from localinfer.kernels.cpu.native import library\n"
        "pool = library().li_cpu_pool_create()\n"
        "print(library().li_cpu_pool_grow(pool, 100000), library().li_cpu_pool_grow(pool, 3))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "-1 0\n"), done.stderr


def test_unknown_instruction_sets_and_block_sizes_are_refused(tmp_path: Path) -> None:
    case = AttentionCase(tmp_path, 64, 2, KvLayer(1, 16))
    with pytest.raises(UnsupportedError, match="avx9000"):
        CpuBackend("avx9000").load(case.program, case.built.tensors, case.built.config())
    with pytest.raises(UnsupportedError, match="KV blocks of 12"):
        CpuBackend().load(case.program, case.built.tensors, case.built.config(block_size=12))
