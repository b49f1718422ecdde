"""Every family on the CPU backend: close to the reference, and the same bits however the work is cut and shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Executable, LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.models import record
from tiny_models import TINY_MODELS, TinyModel, write_gguf

TABLE = [5, 4, 6, 0, 7, 1, 2, 3]  # blocks in an order that would show a mix-up

# Differences are relative to the largest logit. Keys and values are halves on both sides, and for Q8_0 activations are
# int8: where a float sum in another order falls on the other side of a rounding boundary, a step of it remains.
F32_TOLERANCE = 1e-3  # seen: up to 2e-4 (gemma3-linear), mostly below 6e-5
Q8_TOLERANCE = 1e-5  # seen: below 3e-6 until the first such step (row 3 at the earliest), up to 2e-2 behind it
ROWS_BEFORE_A_STEP = 3


pytestmark = pytest.mark.usefixtures("one_torch_thread")


FileOf = Callable[[TinyModel, str], Path]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    """The GGUF file of a tiny model with matrices of one type, written once."""
    folder = tmp_path_factory.mktemp("families")

    @lru_cache
    def write(tiny: TinyModel, matrix_type: str) -> Path:
        return write_gguf(tiny, folder / f"{tiny.name}-{matrix_type}.gguf", matrix_type)

    return write


def load(backend: Any, path: Path, tiny: TinyModel, threads: int = 1) -> Executable:
    with open_gguf(path) as file:
        program = record(file.metadata, file, tiny.context)
        config = LoadConfig(64, 64, 1, tiny.context, kv_blocks=16, threads=threads)
        executable: Executable = backend.load(program, file, config)
    return executable


def run(model: Executable, tokens: Sequence[int], chunk: int) -> np.ndarray:
    """The logits after every token, `[tokens, vocabulary]`, in steps of `chunk` tokens."""
    steps = [
        model.step(batch_of([(tokens[i : i + chunk], i, TABLE)], "all")).numpy().copy()
        for i in range(0, len(tokens), chunk)
    ]
    return np.concatenate(steps)


def logits(backend: Any, path: Path, tiny: TinyModel) -> np.ndarray:
    """Those of the model's own tokens, in one step."""
    model = load(backend, path, tiny)
    result = run(model, tiny.tokens(), 64)
    model.close()
    return result


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


each_family = pytest.mark.parametrize("tiny", TINY_MODELS, ids=[m.name for m in TINY_MODELS])


@each_family
def test_float_weights_give_the_logits_of_the_reference(tiny: TinyModel, file_of: FileOf) -> None:
    path = file_of(tiny, "F32")
    expected, found = (logits(backend, path, tiny) for backend in (ReferenceBackend(), CpuBackend()))
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() <= F32_TOLERANCE * np.abs(expected).max()


@each_family
def test_quantized_weights_give_the_logits_of_the_reference(tiny: TinyModel, file_of: FileOf) -> None:
    """As the reference that rounds alike, and where a rounding fell otherwise, no further from exact than it is."""
    path = file_of(tiny, "Q8_0")
    exact, alike, found = (
        logits(backend, path, tiny) for backend in (ReferenceBackend(), ReferenceBackend(emulate="cpu"), CpuBackend())
    )
    first = slice(0, ROWS_BEFORE_A_STEP)
    assert np.abs(found[first] - alike[first]).max() <= Q8_TOLERANCE * np.abs(exact).max()
    assert rms(found - exact) <= 1.1 * rms(alike - exact)


@pytest.mark.parametrize("matrix_type", ["F32", "Q8_0"])
@each_family
def test_bits_do_not_depend_on_chunks_or_threads(tiny: TinyModel, matrix_type: str, file_of: FileOf) -> None:
    path, tokens = file_of(tiny, matrix_type), tiny.tokens()
    whole = logits(CpuBackend(), path, tiny)
    for threads in (1, 2):
        model = load(CpuBackend(), path, tiny, threads)
        for chunk in (1, 17, 64):
            np.testing.assert_array_equal(run(model, tokens, chunk), whole, f"pieces of {chunk}, {threads} threads")
        model.close()
