"""`Executable.hidden` and `Executable.copy_blocks`: every family, both backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localinfer.errors import UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Cancelled, Executable, KvType, LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.program import Linear, Program, Scale, Softcap
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.models import record
from op_programs import OpProgram
from tiny_models import TINY_MODELS, TinyModel, by_name, write_gguf

Array = np.ndarray[Any, Any]
TABLE = [5, 4, 6, 0, 7, 1, 2, 3]  # blocks in an order that would show a mix-up
BACKENDS = (CpuBackend, ReferenceBackend)
TOLERANCE = 1e-3  # relative to the largest number, for F32 weights, as in test_cpu_families.py


pytestmark = pytest.mark.usefixtures("one_torch_thread")


FileOf = Callable[..., Path]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    folder = tmp_path_factory.mktemp("hidden")

    @lru_cache
    def write(tiny: TinyModel, matrix_type: str = "F32") -> Path:
        return write_gguf(tiny, folder / f"{tiny.name}-{matrix_type}.gguf", matrix_type)

    return write


def load(backend: Any, path: Path, tiny: TinyModel, **settings: Any) -> Executable:
    with open_gguf(path) as file:
        config = LoadConfig(**({"max_tokens": 64, "max_rows": 3, "max_sequences": 2, "threads": 1} | settings),
                            context=tiny.context, kv_blocks=16)  # fmt: skip
        executable: Executable = backend.load(record(file.metadata, file, tiny.context), file, config)
    return executable


def states(model: Executable, tokens: Sequence[int], chunk: int = 64) -> Array:
    """The hidden states of every token, `[tokens, size]`, in steps of `chunk` tokens: more rows than `max_rows`."""
    steps = [
        model.hidden(batch_of([(tokens[i : i + chunk], i, TABLE)], "all")).numpy().copy()
        for i in range(0, len(tokens), chunk)
    ]
    return np.concatenate(steps)


def last_logits(model: Executable, tokens: Sequence[int], first: int = 0, table: Sequence[int] = TABLE) -> Array:
    return model.step(batch_of([(tokens, first, table)])).numpy().copy()


def head_of(program: Program, weights: dict[str, torch.Tensor], hidden: Array) -> Array:
    """What the ops behind `Program.hidden` make of it, in the reference's arithmetic."""
    x = torch.from_numpy(hidden)
    for op in program.ops[len(program.up_to_hidden()) :]:
        match op:
            case Linear():
                bias = None if op.biases[0] is None else weights[op.biases[0].name]
                x = torch.nn.functional.linear(x, weights[op.matrices[0].name], bias)
            case Scale():
                x = x * op.factor
            case Softcap():
                x = op.cap * torch.tanh(x / op.cap)
            case _:
                raise AssertionError(f"{op} belongs to no head")
    return x.numpy()


each_family = pytest.mark.parametrize("tiny", TINY_MODELS, ids=[m.name for m in TINY_MODELS])


@each_family
def test_the_head_turns_hidden_states_into_the_logits(tiny: TinyModel, file_of: FileOf) -> None:
    path, tokens = file_of(tiny), tiny.tokens()
    with open_gguf(path) as file:
        program = record(file.metadata, file, tiny.context)
    reference = load(ReferenceBackend(), path, tiny)
    expected = last_logits(reference, tokens)
    weights = reference._weights  # type: ignore[attr-defined]
    found = [head_of(program, weights, states(load(b(), path, tiny), tokens)[-1:]) for b in BACKENDS]
    np.testing.assert_allclose(found[1], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.abs(found[0] - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("matrix_type", ["F32", "Q8_0"])
@each_family
def test_bits_do_not_depend_on_chunks_threads_or_room_for_rows(
    tiny: TinyModel, matrix_type: str, file_of: FileOf
) -> None:
    path, tokens = file_of(tiny, matrix_type), tiny.tokens()
    whole = states(load(CpuBackend(), path, tiny, max_rows=64), tokens)
    assert np.isfinite(whole).all()
    assert np.unique(whole, axis=0).shape == whole.shape
    for threads, rows in ((1, 3), (2, 1), (2, 5)):
        model = load(CpuBackend(), path, tiny, threads=threads, max_rows=rows)
        for chunk in (1, 17, 64):
            np.testing.assert_array_equal(states(model, tokens, chunk), whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hidden_steps_write_the_cache_and_return_the_wanted_rows(backend: Any, file_of: FileOf) -> None:
    """Two sequences side by side; the logits of the next token are those behind an ordinary prefill."""
    tiny = by_name("llama")
    path, tokens = file_of(tiny, "Q8_0"), tiny.tokens()
    model, again = load(backend(), path, tiny), load(backend(), path, tiny)
    last_logits(model, tokens[:-1])
    expected = last_logits(model, tokens[-1:], len(tokens) - 1)

    batch = batch_of([(tokens[:-1], 0, TABLE), (tokens[5:9], 0, [9])], "all")
    wanted = [0, 2, len(tokens) - 2, len(tokens) + 1]
    everything = again.hidden(batch).numpy().copy()
    batch.logit_rows = batch.logit_rows[:0] + type(batch.logit_rows)("i", wanted)
    some = again.hidden(batch)
    assert (some.rows, some.size) == (4, everything.shape[1])
    np.testing.assert_allclose(some.numpy(), everything[wanted], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last_logits(again, tokens[-1:], len(tokens) - 1), expected, rtol=1e-5, atol=1e-5)
    batch.logit_rows = batch.logit_rows[:0]
    assert again.hidden(batch).numpy().shape == (0, some.size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_rows_and_programs_without_hidden_states_are_refused(
    backend: Any, file_of: FileOf, tmp_path: Path
) -> None:
    tiny = by_name("llama")
    model = load(backend(), file_of(tiny), tiny)
    with pytest.raises(ValueError, match=r"planned|beyond"):
        model.step(batch_of([([1, 2, 3, 4], 0, TABLE)], "all"))  # max_rows bounds logits
    with pytest.raises(ValueError, match=r"planned|beyond"):
        model.hidden(batch_of([([1] * 65, 0, TABLE)], "all"))
    built = OpProgram(tmp_path, 5)
    x = built.input(np.ones((5, 32), np.float32))
    model = backend().load(built.program(x), built.tensors, built.config())
    with pytest.raises(UnsupportedError, match="hidden states"):
        model.hidden(batch_of([([1], 0, [0])]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_hidden_step_leaves_the_next_one_whole(backend: Any, file_of: FileOf) -> None:
    tiny = by_name("llama")
    model = load(backend(), file_of(tiny), tiny)
    expected = states(model, tiny.tokens())
    model.cancel()
    with pytest.raises(Cancelled):
        states(model, tiny.tokens())
    np.testing.assert_array_equal(states(model, tiny.tokens()), expected)


def test_the_plan_counts_the_hidden_states(file_of: FileOf) -> None:
    tiny = by_name("llama")
    path = file_of(tiny)
    with open_gguf(path) as file:
        program = record(file.metadata, file, tiny.context)
        config = LoadConfig(512, 1, 1, tiny.context, kv_blocks=16, threads=1)
        plan = CpuBackend().plan(program, file, config)
        executable = CpuBackend().load(program, file, config)
        without = Program(**{**vars(program), "hidden": None})
        bare = CpuBackend().plan(without, file, config)
    assert executable.memory == plan
    assert program.hidden is not None
    assert plan.parts["activations"] - bare.parts["activations"] >= 512 * program.hidden.width * 4


@pytest.mark.parametrize("kv", ["f16", "bf16", "int8"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_goes_on_in_copied_blocks(backend: Any, kv: KvType, file_of: FileOf) -> None:
    """The copies hold the same bits, and writing to them leaves the originals alone."""
    tiny = by_name("gemma3")
    path, tokens = file_of(tiny, "Q8_0"), tiny.tokens()[:40]
    model = load(backend(), path, tiny, kv_type_k=kv, kv_type_v=kv)
    last_logits(model, tokens[:35])
    model.copy_blocks([(5, 10), (4, 15), (6, 11)])
    copies = [10, 15, 11]
    forked = last_logits(model, [1, 2, 3, 4, 5], 35, copies)
    expected = last_logits(model, tokens[35:], 35)

    fresh = load(backend(), path, tiny, kv_type_k=kv, kv_type_v=kv)
    last_logits(fresh, tokens[:35])
    np.testing.assert_array_equal(last_logits(fresh, tokens[35:], 35), expected)
    last_logits(fresh, tokens[:35])
    np.testing.assert_array_equal(last_logits(fresh, [1, 2, 3, 4, 5], 35), forked)


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_are_made_in_order_and_never_outside_the_pool(backend: Any, file_of: FileOf) -> None:
    tiny = by_name("llama")
    path, tokens = file_of(tiny), tiny.tokens()[:16]
    model = load(backend(), path, tiny)
    last_logits(model, tokens)
    expected = last_logits(model, [3], 16)
    for pairs in ([(5, 16)], [(16, 5)], [(-1, 5)], [(5, -1)], [(9, 5), (5, 99)]):
        with pytest.raises(ValueError, match="outside the pool"):
            model.copy_blocks(pairs)
    model.copy_blocks([])
    model.copy_blocks([(5, 5), (5, 8), (8, 13), (9, 8)])
    np.testing.assert_array_equal(last_logits(model, [3], 16, [13, 1]), expected)
    np.testing.assert_array_equal(last_logits(model, [3], 16), expected)
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.copy_blocks([(0, 1)])
