"""Calibration and mixed precision, on a checkpoint that was really trained."""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localinfer.errors import LocalInferError
from localinfer.evaluate.divergence import compare
from localinfer.evaluate.texts import default_text
from localinfer.evaluate.windows import Windows, windows_of
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Tensor
from localinfer.kernels.quantize.quantizer import Hessian
from localinfer.kernels.types import TYPES
from localinfer.quantize import pipeline
from localinfer.quantize.allocate import Option
from localinfer.quantize.calibrate import known_from
from localinfer.quantize.convert import Calibration, GGUFJob
from localinfer.quantize.mixed import Measured, bits_of, bytes_of
from localinfer.quantize.pipeline import Result, Wishes, probes_path, quantize
from localinfer.quantize.recipes import Choice
from localinfer.quantize.sensitivity import product_error
from localinfer.text.tokenizer import load_tokenizer
from reports import Lines

SOURCE = Path(__file__).parent / "data" / "presidents-1m"


@pytest.fixture(autouse=True)
def few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sensitivities are measured over less text, for speed."""
    monkeypatch.setattr(pipeline, "_PROBE_TOKENS", (256, 256))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shorter calibration text, for speed."""
    path = tmp_path_factory.mktemp("text") / "calibration.txt"
    path.write_text(default_text("calibration")[:12000], encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint as one GGUF file."""
    path = tmp_path_factory.mktemp("source") / "m-f16.gguf"
    return quantize(Wishes(SOURCE, "f16", output=path, measure=False), Lines()).path


@pytest.fixture(scope="module")
def mixed(source: Path, text: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A file of 4.5 bits per weight, and its statistics beside it."""
    folder = tmp_path_factory.mktemp("mixed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_PROBE_TOKENS", (256, 256))
        return run(source, folder / "out.gguf", to="4.5bpw", calibrate=text, keep=folder / "kept.safetensors")


def run(source: Path, output: Path, **wishes: Any) -> Result:
    return quantize(Wishes(source, output=output, **({"measure": False} | wishes)), Lines())


def divergence(made: Path, source: Path) -> float:
    with open_gguf(source) as file:
        windows = windows_of(load_tokenizer(file.metadata), default_text("evaluation"), 128, 12)
    return compare(made, source, windows).kl_mean.value


class Unmeasured(Lines):
    def progress(self, what: str, done: int, total: int) -> None:
        raise AssertionError(what)


def test_what_does_not_fit_is_refused(source: Path) -> None:
    tensor = Tensor("a.weight", TYPES["F16"], (64, 256), Path(), 0, 0, memoryview(b""))
    options = {"a.weight": [Option("Q2_K", 84 * 64, 1.0)]}
    measured = Measured({"a.weight": tensor}, {}, [], options, Windows((array("i", [1, 2, 3, 4]),), 1))
    assert [choice.type for choice in measured.mix(84 * 64).choices] == ["Q2_K"]
    with pytest.raises(LocalInferError, match="does not fit"):
        measured.mix(84 * 64 - 1)
    with pytest.raises(LocalInferError, match="does not fit"):  # before anything is calibrated or measured
        quantize(Wishes(source, "2.5bpw"), Unmeasured())


def test_more_than_the_largest_types_take_is_said(source: Path, text: str, tmp_path: Path) -> None:
    lines = Lines()
    wishes = Wishes(source, "99bpw", output=tmp_path / "out.gguf", calibrate=text, measure=False)
    result = quantize(wishes, lines)
    assert set(result.types) == {"F32", "Q8_0"}
    size = sum(nbytes for _, nbytes in result.types.values())
    bits = f"{size / 1e6:.1f} MB ({8 * size / result.weights:.2f}bpw)"
    assert f"99bpw is more than the largest types take: all tensors get those, {bits}" in lines.said


def test_sizes_and_bits_are_read() -> None:
    assert [bytes_of(text) for text in ("6GB", "500mb", "4 GiB", "1.5k", "123456")] == [
        6 * 10**9,
        500 * 10**6,
        4 * 2**30,
        1500,
        123456,
    ]
    assert bits_of("4.2bpw") == 4.2
    assert bits_of("q4_k_m") is None
    for wrong in ("", "GB", "-3GB", "6XB", "0"):
        with pytest.raises(LocalInferError, match="is no size"):
            bytes_of(wrong)


def test_a_size_that_is_none_is_said_before_calibrating(source: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="is no size"):
        quantize(Wishes(source, fit="bananas", output=tmp_path / "out.gguf"), Unmeasured())


def test_a_calibration_text_that_is_none_is_said(source: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"cannot read the calibration text .*missing: No such file"):
        run(source, tmp_path / "out.gguf", to="q4_0", calibrate=str(tmp_path / "missing"))
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(LocalInferError, match=r"latin is not valid UTF-8 at byte 3"):
        run(source, tmp_path / "out.gguf", to="q4_0", calibrate=str(tmp_path / "latin"))


def test_the_error_of_a_product_is_that_of_the_inputs_that_were_seen() -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((200, 12)).astype(np.float32)
    difference = random.standard_normal((5, 12)).astype(np.float32)
    expected = float(np.square(inputs @ difference.T).sum())
    gram = inputs.T @ inputs
    assert product_error(difference, Calibration(hessian=Hessian((gram,)))) == pytest.approx(expected, rel=1e-4)
    blocks = Hessian((gram[:8, :8], gram[8:, 8:]))
    apart = sum(float(np.square(inputs[:, part] @ difference[:, part].T).sum()) for part in (slice(8), slice(8, 12)))
    assert product_error(difference, Calibration(hessian=blocks)) == pytest.approx(apart, rel=1e-4)
    squares = np.square(inputs).mean(0)
    expected = float((np.square(difference) * squares).sum())
    assert product_error(difference, Calibration(importance=squares)) == pytest.approx(expected, rel=1e-4)


def test_calibration_brings_the_model_nearer_to_its_source(source: Path, text: str, tmp_path: Path) -> None:
    plain = run(source, tmp_path / "plain.gguf", to="q2_k").path
    weighted = run(source, tmp_path / "weighted.gguf", to="q2_k", calibrate=text, feedback=False).path
    fed_back = run(source, tmp_path / "fed.gguf", to="q2_k", calibrate=text).path
    found = [divergence(path, source) for path in (plain, weighted, fed_back)]
    assert found[1] < found[0]
    assert found[2] < 0.9 * found[0]


def test_calibrated_bytes_do_not_depend_on_threads(source: Path, text: str, tmp_path: Path) -> None:
    first = run(source, tmp_path / "a.gguf", to="q3_k_m", calibrate=text, threads=1).path
    second = run(source, tmp_path / "b.gguf", to="q3_k_m", calibrate=text, threads=3).path
    assert first.read_bytes() == second.read_bytes()
    found = json.loads((tmp_path / "a.gguf.provenance.json").read_text())
    assert found["calibration"]["feedback"] is True
    assert len(found["calibration"]["sha256"]) == 64
    assert found["tensors"]["blk.0.ffn_up.weight"]["method"] == "feedback-1"
    assert found["tensors"]["blk.0.ffn_up.weight"]["calibrated"] is True
    assert found["tensors"]["blk.0.attn_norm.weight"]["calibrated"] is False


def test_a_mixed_file_fits_and_is_nearer_than_a_recipe_of_its_size(source: Path, text: str, tmp_path: Path) -> None:
    recipe = run(source, tmp_path / "recipe.gguf", to="q3_k_m", calibrate=text)
    mixed = run(source, tmp_path / "mixed.gguf", fit=str(recipe.size), calibrate=text, measure=True)
    assert 0.97 * recipe.size < mixed.size <= recipe.size
    assert divergence(mixed.path, source) < divergence(recipe.path, source)
    found = mixed.provenance.recipe
    assert found["mixed"] == "mixed-1"
    assert set(found["probes"]) <= set(mixed.provenance.tensors)
    assert len(mixed.types) > 2
    quality = mixed.provenance.quality
    assert quality is not None
    assert 0.2 < quality["kl_mean"]["value"] / found["expected_kl"] < 5, "measured prices tell what to expect"


def test_bits_per_weight_are_those_of_all_tensors(mixed: Result) -> None:
    size = sum(nbytes for _, nbytes in mixed.types.values())
    assert 4.3 < 8 * size / mixed.weights <= 4.5


def test_an_interrupted_measurement_is_gone_on_with(source: Path, text: str, tmp_path: Path) -> None:
    class Interrupting(Lines):
        def progress(self, what: str, done: int, total: int) -> None:
            if what == "measuring sensitivity" and done == 4:
                raise KeyboardInterrupt

    wishes = Wishes(source, "4bpw", output=tmp_path / "out.gguf", calibrate=text, measure=False)
    with pytest.raises(KeyboardInterrupt):
        quantize(wishes, Interrupting())
    journal = probes_path(tmp_path / "out.gguf")
    lines = journal.read_text().splitlines()
    assert len(lines) == 1 + 4
    name, kind, divergence = json.loads(lines[1])
    lines[1] = json.dumps([name, kind, 100 * divergence])  # to see that it is not measured again
    journal.write_text("\n".join(lines) + "\n")
    found = quantize(wishes, Lines()).provenance.recipe["probes"]
    assert found[name] == [kind, float(f"{100 * divergence:.4g}")]
    assert not journal.exists()


def test_single_tensors_can_be_left_out_of_the_choice(source: Path, text: str, tmp_path: Path) -> None:
    wanted = {"token_embd.weight": ("Q8_0",), "*.ffn_down.weight": ("Q2_K", "Q3_K")}
    result = run(source, tmp_path / "out.gguf", to="5bpw", calibrate=text, tensors=wanted)
    types = {name: record.type for name, record in result.provenance.tensors.items()}
    assert types["token_embd.weight"] == "Q8_0"
    assert {types[f"blk.{i}.ffn_down.weight"] for i in range(2)} <= {"Q2_K", "Q3_K"}


# ---- made again ----------------------------------------------------------------------------------------------


def test_a_mixed_file_is_made_again_from_what_it_says(source: Path, text: str, mixed: Result) -> None:
    """Types and methods from its provenance, statistics that were kept or are collected again: the same bytes."""
    records = mixed.provenance.tensors
    with open_gguf(source) as model:
        for statistics in (text, str(mixed.path.with_name("kept.safetensors"))):
            known = known_from(statistics, model, True, 0, Lines())
            assert known.describe() == mixed.provenance.calibration
            for name, record in records.items():
                tensor = model.tensor(name)
                choice = Choice(name, tensor.shape, tensor.type.name, record.type)
                job = GGUFJob(tensor, choice, known.of(name))
                assert job.method == record.method
                data = b"".join(part.data for piece in job.pieces() for part in job.convert(*piece, 2))
                assert hashlib.sha256(data).hexdigest() == record.sha256


def test_a_calibrated_folder_is_the_same_every_time(text: str, tmp_path: Path) -> None:
    wishes = Wishes(SOURCE, "int4", calibrate=text, measure=False)
    made = [quantize(replace(wishes, output=tmp_path / name, threads=n), Lines()) for n, name in enumerate("ab")]
    assert {record.method for record in made[0].provenance.tensors.values()} == {"copy", "int4-group-feedback-1"}
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]
