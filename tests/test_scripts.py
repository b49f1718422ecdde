"""The comparison scripts: their statistics, the random model writer, what they count; no peer and no timing needed."""

from __future__ import annotations

import hashlib
import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from localinfer import kernels, models
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import LoadConfig, batch_of

Load = Callable[[str], Any]  # a script by name, as a module
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a script by name as the scripts import each other."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == SCRIPTS:
            del sys.modules[name]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random") / "tiny.gguf"
    subprocess.run([sys.executable, SCRIPTS / "write_random_model.py", "tiny", path], check=True, capture_output=True)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "bench_quantize",
        "build_llama_cpp",
        "check_plan",
        "compare_exact",
        "compare_greedy",
        "compare_llama_cpp",
        "compare_quantizers",
        "write_random_model",
    ],
)
def test_help_says_how_to_run_it(
    script: Load, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        script(name).main()
    assert f"python scripts/{name}.py" in capsys.readouterr().out


def test_scripts_start_the_installed_command_wherever_they_are_run(script: Load) -> None:
    """In the repository's root, too, where a folder has the package's name."""
    command = [*script("command").LOCALINFER, "doctor", "--json"]
    done = subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ratios_are_paired_by_round(script: Load) -> None:
    measure = script("measure")
    # In the slow second round both sides took four times as long: the ratio of medians would not see a ratio of 2.
    assert measure.median_ratio([2, 8, 2], [1, 4, 1]) == 2
    assert measure.median_ratio([1, 10, 3], [1, 1, 1]) == 3
    with pytest.raises(ValueError, match="cannot be paired"):
        measure.median_ratio([1, 2], [1])


def test_standard_errors(script: Load) -> None:
    measure = script("measure")
    assert measure.mean_and_error([1, 2, 3, 4]) == (2.5, pytest.approx(math.sqrt(5 / 3 / 4)))
    assert measure.mean_and_error([7]) == (7, 0)
    noise = [0.1, 5.0, 2.0, 9.0]
    mean, error = measure.paired_difference([n + 1 for n in noise], noise)
    assert (mean, error) == (pytest.approx(1), pytest.approx(0, abs=1e-12))  # what both share does not count


def test_table_lines_up(script: Load) -> None:
    lines = script("measure").table(("name", "rate"), [("a", 12.3456), ("longer", 7)]).splitlines()
    assert lines == ["name     rate", "------  -----", "a       12.35", "longer      7"]


def test_divergence_and_agreement(script: Load) -> None:
    comparison = script("compare_exact").Comparison()
    exact = np.log(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], np.float32))
    other = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], np.float32)) + 3  # logits are free up to a constant
    comparison.add(exact, other)
    assert comparison.divergence == pytest.approx([0, 0.25 * math.log(2)], abs=1e-6)
    assert comparison.agreement == [1, 0]


def test_chunks_start_with_begin_of_text(script: Load) -> None:
    chunks_of = script("compare_exact").chunks_of
    assert chunks_of(list(range(10)), [99], 4, 8) == [[99, 0, 1, 2], [99, 3, 4, 5]]
    with pytest.raises(SystemExit, match="12 positions, 13 were asked for"):
        chunks_of(list(range(10)), [99], 4, 13)


def test_prose_is_only_sentences(script: Load) -> None:
    long = "Every word of this paragraph counts, so it is a little longer than it would otherwise have to be, " * 2
    text = f"# Title\n\n```sh\n{long}\n```\n\n| {long} |\n\nshort\n\n- see [the guide](http://x): {long}\n"
    assert script("prose").paragraphs(text) == [f"see the guide: {long}".strip()]


def test_llama_q_and_k_rows_return_to_halves(script: Load) -> None:
    halves = np.arange(8, dtype=np.float32).reshape(8, 1)  # two heads of rows 0-3 and 4-7
    stored = halves.reshape(2, 2, 2, 1).swapaxes(1, 2).reshape(8, 1)  # as GGUF writers permute: 0 2 1 3 ...
    assert stored[:4, 0].tolist() == [0, 2, 1, 3]
    assert (script("exact_model").halves_from_pairs(stored, 2) == halves).all()


def test_random_model_is_reproducible(tiny: Path) -> None:
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    assert digest == "3c6b3a521250e4c6d554bbac782649b583b41d81eebe3511b1a1e4f2afa2b0ac"


def test_random_weights_have_the_promised_spread(tiny: Path) -> None:
    reader = gguf.GGUFReader(tiny)
    types = set()
    for tensor in reader.tensors:
        if len(tensor.shape) == 2:
            types.add(tensor.tensor_type.name)
            weight = gguf.dequantize(tensor.data, tensor.tensor_type) * math.sqrt(int(tensor.shape[0]))
            assert abs(float(weight.mean())) < 0.03
            assert float(weight.std()) == pytest.approx(1, abs=0.05), tensor.name
    assert types == {"Q4_K", "Q6_K"}


@pytest.mark.parametrize(
    ("layers", "more"), [(8, [0, 3, 6, 7]), (28, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27])]
)
def test_mixture_of_q4_k_m(script: Load, layers: int, more: list[int]) -> None:
    more_bits = script("write_random_model").more_bits
    assert [i for i in range(layers) if more_bits(i, layers)] == more


def test_work_is_counted_from_the_program(script: Load, tiny: Path) -> None:
    ours = script("ours")
    with open_gguf(tiny) as file:
        program = models.record(file.metadata, file, 64)
        read, per_token, per_row = ours.matmul_work(program, file)
    q, kv, gate, head = 256 * 256, 128 * 256, 512 * 256, 1024 * 256
    # Only rows whose logits are wanted pass the last layer's output projection and feed-forward part.
    assert per_token == 8 * (2 * q + 2 * kv + 3 * gate) - (q + 3 * gate)
    assert per_row == head + q + 3 * gate
    q4, q6 = 144 / 256, 210 / 256
    wide = 4 * (kv + gate) * (q6 - q4)  # v and down of layers 0, 3, 6, 7
    assert read == 8 * (2 * q + 2 * kv + 3 * gate) * q4 + wide + head * q6
    # 8 layers of 2 heads of 64, K and V, two bytes each
    assert ours.kv_bytes_read(program, 0) == 8 * 2 * 2 * 64 * 2
    assert ours.kv_bytes_read(program, 9) == 10 * ours.kv_bytes_read(program, 0)


def test_open_model_steps_like_one_whole_prefill(script: Load, tiny: Path) -> None:
    ours = script("ours")
    tokens = list(range(40))
    model = ours.OpenModel(tiny, 1, [48, 48], "reference", chunk=16)
    model.process(tokens[:39], 0, 1)
    logits = model.process(tokens[39:], 39, 1).numpy().copy()
    model.close()
    with open_gguf(tiny) as file:
        program = models.record(file.metadata, file, 48)
        config = LoadConfig(max_tokens=40, max_rows=1, max_sequences=1, context=48, kv_blocks=3)
        executable = kernels.backend("reference").load(program, file, config)
        whole = executable.step(batch_of([(tokens, 0, range(3))])).numpy().copy()
        executable.close()
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, whole, atol=2e-3)  # K and V of f16 round differently in another order of sums


def test_verdicts_accept_the_ratio_or_the_share(script: Load) -> None:
    verdicts = script("compare_llama_cpp").verdicts
    ratios = ("prefill_ratio", "decode_ratio", "decode_4096_ratio", "start_ratio", "peak_memory_ratio")
    slow = dict(zip(ratios, (1, 1, 1, 1, 2), strict=True))
    shares = {"bandwidth_share": 0.5, "bandwidth_share_4096": 0.5, "integer_share": 0.5}
    assert not any(good for _, good, _ in verdicts(slow | shares))
    assert [good for _, good, _ in verdicts(slow | dict.fromkeys(shares, 0.9))] == [True, True, True, False, False]
    fast = {
        "prefill_ratio": 3,
        "decode_ratio": 2,
        "decode_4096_ratio": 3,
        "start_ratio": 0.7,
        "peak_memory_ratio": 1.15,
    }
    assert all(good for _, good, _ in verdicts(fast | shares))


def test_probe_compiles_and_reports(script: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = script("peer")
    monkeypatch.setattr(peer, "DEFAULT_FOLDER", tmp_path)
    program = peer.compile_native(peer.NATIVE / "probe.cpp")
    assert program == peer.compile_native(peer.NATIVE / "probe.cpp")  # the second time from the folder
    seconds, peak, processor = peer.run_timed([program, "1"])
    assert seconds > 0
    assert processor > 0
    assert peak > 512 << 20  # it reads half a gigabyte


def test_a_missing_peer_is_explained(script: Load, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"hint: python scripts/build_llama_cpp\.py"):
        script("peer").binary(tmp_path, "llama-bench")
