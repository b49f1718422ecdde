"""Calibration statistics: what the reference backend sees, in the same bits however the work is shared."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localinfer.errors import FormatError, LocalInferError
from localinfer.evaluate import halves
from localinfer.evaluate.halves import batches
from localinfer.evaluate.windows import windows_of
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import LoadConfig
from localinfer.kernels.cpu.native import isa_names
from localinfer.kernels.cpu.statistics import InputSums
from localinfer.kernels.program import Matrix, Vector
from localinfer.kernels.reference.executable import ReferenceExecutable
from localinfer.models import record
from localinfer.quantize import calibration
from localinfer.quantize.calibration import Statistics, block_of, collect, load_statistics
from localinfer.text.tokenizer import load_tokenizer
from tiny_models import by_name, write_gguf

TEXT = "There were ten ships in the harbour, and nobody knew whose they were. " * 8
WINDOW = 40
TOLERANCE = 1e-3  # of activations, where keys and values are halves: see test_cpu_families.py

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FileOf = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    folder = tmp_path_factory.mktemp("calibration")

    @lru_cache
    def write(name: str, matrix_type: str) -> Path:
        return write_gguf(by_name(name), folder / f"{name}-{matrix_type}.gguf", matrix_type)

    return write


class Watching(ReferenceExecutable):
    """Keeps the inputs of all matrix products, by the tensor's name."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: dict[str, list[torch.Tensor]] = defaultdict(list)

    def _linear(self, x: torch.Tensor, matrix: Matrix, bias: Vector | None) -> torch.Tensor:
        if matrix.start == 0:  # a slice of a fused tensor sees the same
            self.seen[matrix.name].append(x.double())
        return super()._linear(x, matrix, bias)


def seen_by_reference(path: Path) -> dict[str, np.ndarray]:
    with open_gguf(path) as file:
        windows = windows_of(load_tokenizer(file.metadata), TEXT, WINDOW)
        program = record(file.metadata, file, WINDOW)
        config = LoadConfig(halves.STEP_TOKENS, halves.STEP_TOKENS, 32, WINDOW, kv_blocks=64)
        model = Watching(program, file, config, "cpu")
    for batch in batches(windows, everything=True):
        model.step(batch)
    return {name: torch.cat(parts).numpy() for name, parts in model.seen.items()}


@pytest.mark.parametrize(
    ("name", "matrix_type"), [("llama", "F32"), ("phi3", "Q8_0"), ("gemma2", "Q4_0"), ("qwen3", "F16")]
)
def test_sums_are_those_of_the_reference(name: str, matrix_type: str, file_of: FileOf) -> None:
    path = file_of(name, matrix_type)
    found = collect(path, TEXT, grams=True, window=WINDOW)
    expected = seen_by_reference(path)
    assert set(found.tensors) == set(expected)
    for tensor, x in expected.items():
        importance, hessian = found.importance(tensor), found.hessian(tensor)
        assert importance is not None
        assert hessian is not None
        assert importance.dtype == np.float32
        (gram,) = hessian.grams
        # Rounded activations may fall to the other side of a boundary: what a few of 400 tokens can change.
        tolerance = TOLERANCE if matrix_type in ("F32", "F16") else 2e-2
        np.testing.assert_allclose(importance, (x**2).mean(0), rtol=tolerance, atol=tolerance * (x**2).mean())
        np.testing.assert_allclose(gram, x.T @ x, atol=tolerance * (x**2).sum(0).max())
        assert np.array_equal(gram, gram.T)
    assert found.importance("token_embd.weight") is None or "token_embd.weight" in expected  # a tied head


def test_the_bits_depend_on_neither_threads_nor_steps_nor_instructions(
    file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of("llama", "Q8_0")
    expected = collect(path, TEXT, grams=True, window=WINDOW, threads=1).sha256
    for isa in isa_names():
        for threads, step in ((1, 7), (2, 64), (3, 256)):
            monkeypatch.setenv("LOCALINFER_CPU_ISA", isa)
            monkeypatch.setattr(halves, "STEP_TOKENS", step)
            assert collect(path, TEXT, grams=True, window=WINDOW, threads=threads).sha256 == expected, (
                isa,
                threads,
                step,
            )


def test_another_text_gives_other_statistics(file_of: FileOf) -> None:
    path = file_of("llama", "F32")
    one, other = (collect(path, text, window=WINDOW) for text in (TEXT, TEXT.upper()))
    assert one.sha256 != other.sha256
    assert one.origin["text_sha256"] != other.origin["text_sha256"]
    assert one.origin["tokens"] == WINDOW * (one.inputs[0].rows // WINDOW) == one.inputs[0].rows


def test_blocks_are_parts_of_the_whole(file_of: FileOf) -> None:
    whole, parts = (InputSums(37, block) for block in (37, 16))
    x = np.random.RandomState(1).standard_normal((300, 37)).astype(np.float32)
    for sums in (whole, parts):
        sums.add(x.ctypes.data, 100)
        sums.add(x[100:].ctypes.data, 200)
    (full,) = whole.symmetric_grams()
    np.testing.assert_allclose(full, x.T.astype(np.float64) @ x, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(whole.squares, (x.astype(np.float64) ** 2).sum(0), rtol=1e-14)
    first = 0
    for gram in parts.symmetric_grams():
        side = slice(first, first + len(gram))
        assert np.array_equal(gram, full[side, side])
        first = side.stop
    assert first == 37
    assert InputSums(8).symmetric_grams() == []


def test_every_sum_is_one_chain() -> None:
    """Squares in double, products as fused multiply-adds in float32, row after row."""
    sums = InputSums(1, 1)
    x = np.array([3e3, 1e-3, 7.0, 1e4], np.float32)
    sums.add(x.ctypes.data, 4)
    square, product = 0.0, np.float32(0)
    for value in x.tolist():
        square += value * value
        product = np.float32(value * value + float(product))  # exact in double, rounded once
    assert sums.squares[0] == square
    assert sums.grams[0][0, 0] == product


def test_how_many_columns_belong_together() -> None:
    widths = [576, 576, 1536]
    assert block_of(widths, 2**30) == 1536
    assert block_of(widths, 4 * (2 * 576**2 + 1024**2 + 512**2)) == 1024
    assert block_of(widths, 4 * (2 * 576**2 + 1024**2 + 512**2) - 1) == 512
    assert block_of(widths, 1) == 128


def test_a_block_limit_is_kept(file_of: FileOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BLOCKS", (32,))
    found = collect(file_of("llama", "F32"), TEXT, grams=True, window=WINDOW, gram_bytes=1)
    hessian = found.hessian("blk.0.ffn_down.weight")
    assert hessian is not None
    assert [len(gram) for gram in hessian.grams] == [32, 32, 32]


def test_what_is_saved_is_read_again(file_of: FileOf, tmp_path: Path) -> None:
    found = collect(file_of("llama", "F32"), TEXT, grams=True, window=WINDOW)
    found.save(tmp_path / "statistics")
    plain = tmp_path.with_name("plain")
    plain.touch()
    assert (tmp_path / "statistics").stat().st_mode == plain.stat().st_mode  # for others as for oneself
    again = load_statistics(tmp_path / "statistics")
    assert again.sha256 == found.sha256
    assert again.describe() == found.describe()
    assert again.tensors == found.tensors
    for tensor in found.tensors:
        assert np.array_equal(again.importance(tensor), found.importance(tensor))
        ours, theirs = again.hessian(tensor), found.hessian(tensor)
        assert ours is not None
        assert theirs is not None
        assert np.array_equal(ours.grams[0], theirs.grams[0])
    assert [path.name for path in tmp_path.iterdir()] == ["statistics"]

    from safetensors.numpy import load_file  # somebody else's reader

    arrays = load_file(tmp_path / "statistics")
    assert np.array_equal(arrays["0.squares"], found.inputs[0].squares)


def _changed(raw: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A statistics file whose description is changed."""
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    described = json.loads(header["__metadata__"]["localinfer.statistics"])
    change(described)
    header["__metadata__"]["localinfer.statistics"] = json.dumps(described)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + raw[8 + size :]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(schema=99),
        lambda d: d.pop("inputs"),
        lambda d: d["inputs"][0].update(cols=63),
        lambda d: d["inputs"][0].update(rows=0),
        lambda d: d["inputs"][0].pop("tensors"),
        lambda d: d["inputs"].append(d["inputs"][0]),
    ],
)
def test_a_damaged_statistics_file_is_refused(
    change: Callable[[dict[str, Any]], None], file_of: FileOf, tmp_path: Path
) -> None:
    path = tmp_path / "statistics"
    collect(file_of("llama", "F32"), TEXT, window=WINDOW).save(path)
    path.write_bytes(_changed(path.read_bytes(), change))
    with pytest.raises(FormatError, match="statistics"):
        load_statistics(path)


def test_numbers_that_are_none_are_refused(file_of: FileOf, tmp_path: Path) -> None:
    path = tmp_path / "statistics"
    found = collect(file_of("llama", "F32"), TEXT, window=WINDOW)
    found.inputs[3].squares[5] = np.nan
    Statistics(found.inputs, found.origin).save(path)
    with pytest.raises(FormatError, match="not a number"):
        load_statistics(path)


def test_a_short_text_is_refused(file_of: FileOf) -> None:
    with pytest.raises(LocalInferError, match="fewer than one window"):
        collect(file_of("llama", "F32"), "too short", window=WINDOW)
