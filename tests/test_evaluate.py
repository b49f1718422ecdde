"""Perplexity and divergence against their definitions; figures and errors; probes; the command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from localinfer.cli.main import execute
from localinfer.engine.llm import LLM
from localinfer.errors import LocalInferError, MemoryPlanError
from localinfer.evaluate import divergence, halves, tool_calls
from localinfer.evaluate.divergence import Comparison, Reference, compare, loss
from localinfer.evaluate.figures import Figure, mean, quantiles
from localinfer.evaluate.halves import Head, batches, compute_states
from localinfer.evaluate.recall import PLACES, haystack, lengths_up_to, load_for_recall, recall
from localinfer.evaluate.texts import default_text
from localinfer.evaluate.windows import Windows, cut, windows_of
from localinfer.formats.gguf import open_gguf
from localinfer.kernels import backend as find_backend
from localinfer.kernels.base import LoadConfig, batch_of
from localinfer.kernels.host.divergence import COLUMNS, row_divergences, row_losses
from localinfer.models import record
from localinfer.text.tokenizer import load_tokenizer
from scripted_model import write_scripted_model
from tiny_models import VOCABULARY, by_name, transformers_model, write_gguf

Floats = npt.NDArray[np.float32]
FileOf = Callable[[str, str], Path]

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    folder = tmp_path_factory.mktemp("evaluate")

    @lru_cache
    def write(name: str, matrix_type: str) -> Path:
        return write_gguf(by_name(name), folder / f"{name}-{matrix_type}.gguf", matrix_type)

    return write


def tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.RandomState(7).randint(3, VOCABULARY, count)]


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# -- rows of logits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 8, 37, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_compared_as_defined(size: int, threads: int) -> None:
    random = np.random.RandomState(size)
    p, q = (random.standard_normal((5, size)).astype(np.float32) * 6 for _ in range(2))
    q[1] = p[1]
    targets = random.randint(size, size=5).tolist()
    found = row_divergences(p.ctypes.data, q.ctypes.data, size, targets, threads)
    ours = np.array(found).reshape(5, COLUMNS)
    log_p, log_q = log_softmax(p), log_softmax(q)
    rows = np.arange(5)
    np.testing.assert_allclose(ours[:, 0], -log_p[rows, targets], atol=1e-12)
    np.testing.assert_allclose(ours[:, 1], -log_q[rows, targets], atol=1e-12)
    np.testing.assert_allclose(ours[:, 2], (np.exp(log_p) * (log_p - log_q)).sum(-1), atol=1e-12)
    assert ours[:, 3].tolist() == (p.argmax(-1) == q.argmax(-1)).astype(float).tolist()
    assert ours[1, 2] == 0
    np.testing.assert_array_equal(row_losses(p.ctypes.data, size, targets, threads), ours[:, 0])


def test_small_differences_are_not_lost() -> None:
    """KL is half the variance of a small difference, to second order: here some 1e-9."""
    random = np.random.RandomState(1)
    p = (random.standard_normal((1, 50000)) * 3).astype(np.float32)
    q = p + (random.standard_normal(p.shape) * 1e-4).astype(np.float32)
    found = row_divergences(p.ctypes.data, q.ctypes.data, p.shape[1], [0])[2]
    weights, difference = np.exp(log_softmax(p)), q.astype(np.float64) - p
    expected = 0.5 * ((weights * difference**2).sum() - (weights * difference).sum() ** 2)
    assert found == pytest.approx(expected, rel=1e-3)
    assert 1e-10 < found < 1e-8


def test_extreme_logits() -> None:
    """Masked tokens are -inf; what is less likely than e^-700 counts as that, so that nothing is infinite."""
    p = np.array([[0.0, -np.inf, 3e38], [-5.0, -5.0, -np.inf]], np.float32)
    q = np.array([[0.0, -np.inf, 3e38], [-np.inf, -5.0, -np.inf]], np.float32)
    found = np.array(row_divergences(p.ctypes.data, q.ctypes.data, 3, [0, 1])).reshape(2, COLUMNS)
    assert found[0].tolist() == [700, 700, 0, 1]
    assert found[1, 2] == pytest.approx(0.5 * 700 - math.log(2))


def test_rows_that_make_no_sense() -> None:
    p = np.zeros((2, 9), np.float32)
    for bad in (np.nan, np.inf):
        q = p.copy()
        q[1, 8] = bad
        with pytest.raises(LocalInferError, match="not numbers"):
            row_divergences(p.ctypes.data, q.ctypes.data, 9, [0, 0])
        with pytest.raises(LocalInferError, match="not numbers"):
            row_losses(q.ctypes.data, 9, [0, 0])
    for target in (-1, 9):
        with pytest.raises(ValueError, match="target"):
            row_losses(p.ctypes.data, 9, [0, target])
        with pytest.raises(ValueError, match="target"):
            row_divergences(p.ctypes.data, p.ctypes.data, 9, [0, target])


# -- texts and windows -------------------------------------------------------------------------------------------------


def test_the_halves_of_the_text_have_no_sentence_in_common() -> None:
    halves_of_text = [default_text("evaluation"), default_text("calibration")]
    assert default_text() == halves_of_text[0]
    sentences = [{s for s in text.split(". ") if len(s) > 40} for text in halves_of_text]
    assert all(len(found) > 200 for found in sentences)
    assert not sentences[0] & sentences[1]
    assert sum(len(text.encode()) for text in halves_of_text) < 100_000


def test_windows() -> None:
    windows = cut(range(100), [7, 8], 34)
    assert [len(window) for window in windows.tokens] == [34, 34, 34]
    assert windows.tokens[1].tolist() == [7, 8, *range(32, 64)]
    assert (windows.size, windows.scored_from, windows.scored) == (34, 17, 16)
    assert windows.targets.tolist()[16:32] == list(range(48, 64))
    assert len(cut(range(100), [], 20, 2).tokens) == 2
    for ids, size, message in ((range(31), 34, "fewer than one window"), (range(100), 15, "too short")):
        with pytest.raises(LocalInferError, match=message):
            cut(ids, [7, 8], size)


def test_windows_begin_as_texts_do(file_of: FileOf) -> None:
    with open_gguf(file_of("llama", "F32")) as file:
        tokenizer = load_tokenizer(file.metadata)
    text = "the ship of the old sailor " * 10
    windows = windows_of(tokenizer, text, 32)
    begin = [tokenizer.bos_id] if tokenizer.add_bos else []
    assert windows.tokens[0].tolist() == [*begin, *tokenizer.encode(text, add_special=False, parse_special=False)][:32]


@pytest.mark.parametrize("size", [16, 50, 300])
def test_steps_cover_all_windows_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "STEP_TOKENS", 64)
    windows = cut(tokens(1000), [1], size)
    seen: list[list[int]] = []
    wanted = 0
    for batch in batches(windows):
        assert len(batch.tokens) <= 64
        assert len(batch.starts) - 1 <= halves._lanes(windows)
        for begin, end in pairwise(batch.starts):
            if batch.positions[begin] == 0:
                seen.append([])
            assert list(batch.positions[begin:end]) == list(range(len(seen[-1]), len(seen[-1]) + end - begin))
            seen[-1] += batch.tokens[begin:end]
        wanted += len(batch.logit_rows)
        assert all(windows.scored_from <= batch.positions[row] < size - 1 for row in batch.logit_rows)
    assert seen == [window.tolist() for window in windows.tokens]
    assert wanted == len(windows.targets)


# -- a model in two halves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma2", "granite", "phi3"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_two_halves_make_the_same_logits(
    name: str, backend: str, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the CPU backend bit by bit, though steps are cut in quite another way."""
    monkeypatch.setattr(halves, "STEP_TOKENS", 64)
    windows = cut(tokens(200), [1], 45)
    chosen = find_backend(backend)
    with open_gguf(file_of(name, "Q8_0")) as file:
        program = record(file.metadata, file, 48)
        model = chosen.load(program, file, LoadConfig(48, 48, 1, 48, 3))
        expected = [
            model.step(batch_of([(window, 0, range(3))], "all")).numpy()[windows.scored_from : -1].copy()
            for window in windows.tokens
        ]
        states = compute_states(file, windows, chosen)
        assert states.count == len(windows.targets)
        start, count = 10, states.count - 10
        head = Head(file, states, start, count, chosen, tile=17)
        found = [head.logits(first, min(17, count - first)).numpy().copy() for first in range(0, count, 17)]
        head.close()
        states.close()
    ours, all_of_it = np.concatenate(found), np.concatenate(expected)[start:]
    if backend == "cpu":
        assert np.array_equal(ours, all_of_it)
    else:
        np.testing.assert_allclose(ours, all_of_it, rtol=1e-4, atol=1e-4)


# -- models compared ---------------------------------------------------------------------------------------------------


def definition(p: Floats, q: Floats, windows: Windows) -> dict[str, float]:
    """The figures of a comparison, from the logits at scored positions and the textbook."""
    log_p, log_q = log_softmax(p), log_softmax(q)
    rows, targets = np.arange(len(p)), np.array(windows.targets)
    kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    by_window = kl.reshape(len(windows.tokens), -1).mean(-1)
    return {
        "perplexity": float(np.exp(-log_q[rows, targets].mean())),
        "source_perplexity": float(np.exp(-log_p[rows, targets].mean())),
        "loss_difference": float((log_p - log_q)[rows, targets].mean()),
        "kl_mean": float(kl.mean()),
        "kl_mean_error": float(by_window.std(ddof=1) / math.sqrt(len(by_window))),
        "kl_median": float(np.sort(kl)[math.ceil(0.5 * len(kl)) - 1]),
        "kl_p99": float(np.sort(kl)[math.ceil(0.99 * len(kl)) - 1]),
        "kl_max": float(kl.max()),
        "top1": float((p.argmax(-1) == q.argmax(-1)).mean()),
    }


def transformers_logits(path: Path, name: str, windows: Windows) -> Floats:
    """Of the scored positions, by transformers, with the matrices of a file put into it."""
    import gguf

    tiny = by_name(name)
    model = transformers_model(tiny)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, model.config.num_hidden_layers)
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            values = stored[names.get_name(parameter_name, try_suffixes=(".weight", ".bias"))]
            parameter.copy_(torch.from_numpy(np.array(values)).reshape(parameter.shape))
        logits = [model(torch.tensor([window.tolist()])).logits[0].numpy() for window in windows.tokens]
    return np.concatenate([found[windows.scored_from : -1] for found in logits])


def test_a_comparison_is_what_transformers_and_the_definition_give(file_of: FileOf) -> None:
    source, model = file_of("qwen3", "F32"), file_of("qwen3", "Q4_0")
    windows = cut(tokens(400), [], 64)
    logits = [transformers_logits(path, "qwen3", windows) for path in (source, model)]
    expected = definition(logits[0], logits[1], windows)
    for backend, tolerance in (("reference", 2e-3), ("cpu", 0.1)):  # activations are int8
        found = compare(model, source, windows, backend=backend)
        assert (found.windows, found.window, found.positions) == (6, 64, 6 * 31)
        for name, value in expected.items():
            figure = getattr(found, name.removesuffix("_error"))
            ours = figure.error if name.endswith("_error") else getattr(figure, "value", figure)
            slack = 0.02 if name in ("top1", "loss_difference") else 0
            assert ours == pytest.approx(value, rel=tolerance, abs=slack), name
        alone = loss(model, windows, backend=backend)
        assert alone.perplexity == found.perplexity


def test_a_model_is_not_apart_from_itself(file_of: FileOf) -> None:
    path = file_of("llama", "Q8_0")
    found = compare(path, path, tokens(600))  # a window of the usual length
    assert found.kl_mean.value == found.kl_max == found.loss_difference.value == 0
    assert found.top1.value == 1


def test_types_of_keys_and_values_are_compared(file_of: FileOf) -> None:
    path, windows = file_of("llama", "Q8_0"), cut(tokens(400), [1], 64)
    with Reference(path, windows) as reference:
        losses = {
            kind: reference.compare(path, kv_types=(kind, kind)).kl_mean.value for kind in ("f16", "bf16", "int8")
        }
        assert losses["f16"] == 0 < losses["bf16"] < losses["int8"] < 0.1
        assert reference.compare(path, kv_types=("f16", "int8")).kl_mean.value < losses["int8"]


def test_figures_depend_on_neither_threads_nor_tiles_nor_segments(
    file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source, windows = file_of("llama", "Q4_0"), file_of("llama", "F32"), cut(tokens(400), [1], 48)
    expected = compare(model, source, windows, threads=1)
    monkeypatch.setattr(halves, "STEP_TOKENS", 100)
    monkeypatch.setattr(halves, "LOGIT_BYTES", 1)  # eight rows at a time
    monkeypatch.setattr(divergence, "SEGMENT_BYTES", 4 * 64 * 20)
    reports: list[tuple[str, int, int]] = []
    found = compare(model, source, windows, threads=2, report=lambda *report: reports.append(report))
    assert found == expected
    for what in (f"running {model.name}", f"running {source.name}", "comparing"):
        done = [report[1] for report in reports if report[0] == what]
        assert done == sorted(done)
        assert done[-1] == reports[[report[0] for report in reports].index(what)][2]


def test_open_files_stay_open(file_of: FileOf) -> None:
    windows = cut(tokens(200), [1], 64)
    with open_gguf(file_of("llama", "F32")) as file:
        first = loss(file, windows)
        assert compare(file, file, windows).perplexity == first.perplexity


def test_models_that_cannot_be_compared(file_of: FileOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, windows = file_of("llama", "F32"), cut(tokens(200), [1], 64)
    other = write_scripted_model(tmp_path / "scripted.gguf")
    with pytest.raises(LocalInferError, match="vocabulary is another one"), Reference(path, windows) as reference:
        reference.compare(other)
    with monkeypatch.context() as patch:
        patch.setattr(divergence, "compute_states", pytest.fail)  # said before either of them has run
        with pytest.raises(LocalInferError, match="vocabulary is another one"):
            compare(other, path, windows)
    with pytest.raises(LocalInferError, match="token id"):
        compare(path, path, [VOCABULARY] * 600)
    monkeypatch.setattr(halves, "free_memory", lambda: 1000)
    with pytest.raises(MemoryPlanError, match="MiB are free"):
        loss(path, windows)


def test_a_model_that_computes_no_numbers(file_of: FileOf, tmp_path: Path) -> None:
    with open_gguf(file_of("llama", "F32")) as file:
        norm = file.tensor("output_norm.weight")
        raw = bytearray(norm.path.read_bytes())
    raw[norm.offset : norm.offset + norm.nbytes] = np.full(norm.shape, 3e38, np.float32).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(raw)
    with pytest.raises(LocalInferError, match="not numbers"):
        loss(tmp_path / "damaged.gguf", cut(tokens(200), [1], 64))


# -- figures -----------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_independent_windows() -> None:
    """Values within a window are alike: as if there were one of them, which is what the error says."""
    random = np.random.RandomState(3)
    level = random.standard_normal(400)
    values = (level[:, None] + 0.01 * random.standard_normal((400, 50))).ravel().tolist()
    figure = mean(values, 400)
    assert figure.value == pytest.approx(np.mean(values))
    assert figure.error == pytest.approx(1 / math.sqrt(400), rel=0.1)
    (median,) = quantiles(values, 400, [0.5])
    assert median.error == pytest.approx(math.sqrt(math.pi / 2) / math.sqrt(400), rel=0.25)  # of a normal median


def test_errors_cover_the_truth() -> None:
    """In about two of three samples the true value lies within one standard error."""
    random = np.random.RandomState(5)
    inside = np.zeros(2)
    for _ in range(60):
        values = random.exponential(size=60 * 20)
        found = [mean(values.tolist(), 60), quantiles(values.tolist(), 60, [0.5])[0]]
        for number, (figure, truth) in enumerate(zip(found, (1, math.log(2)), strict=True)):
            assert figure.error is not None
            inside[number] += abs(figure.value - truth) <= figure.error
    assert np.all(inside / 60 > 0.5)
    assert np.all(inside / 60 < 0.85)


def test_one_window_tells_no_error() -> None:
    assert mean([1.0, 3.0], 1) == Figure(2.0, None)
    assert quantiles([4.0, 1.0, 2.0, 3.0], 1, (0.5, 0.99)) == [Figure(2.0, None), Figure(4.0, None)]
    assert Figure(2.0, None).scaled(4.0, 2.0) == Figure(4.0, None)
    assert Figure(2.0, 0.1).scaled(4.0, -4.0) == Figure(4.0, 0.4)


def test_figures_for_json(file_of: FileOf) -> None:
    found = compare(file_of("llama", "Q4_0"), file_of("llama", "F32"), cut(tokens(300), [1], 64))
    data = json.loads(json.dumps(found.as_data()))
    assert set(data) == set(Comparison._fields)
    assert data["kl_mean"] == {"value": found.kl_mean.value, "error": found.kl_mean.error}
    assert data["kl_max"] == found.kl_max


# -- probes ------------------------------------------------------------------------------------------------------------


def test_the_haystack_has_every_fact_where_it_should_be(file_of: FileOf, tmp_path: Path) -> None:
    path = write_scripted_model(tmp_path / "scripted.gguf")
    numbers = [str(11111 * (n % 9 + 1)) for n in range(len(PLACES))]
    with load_for_recall(str(path), 3000) as llm:
        ids = haystack(llm, numbers, 3000)
        assert 2980 < len(ids) <= 3000
        text = llm.detokenize(ids).replace("▁", " ")  # which it has no token for
    found = [
        text.index(f"\n\nThe code of {place} is {number}.\n\n") for place, number in zip(PLACES, numbers, strict=True)
    ]
    assert found == sorted(found)
    for position, expected in zip(found, range(1, 11), strict=True):
        assert position / len(text) == pytest.approx(expected / 11, abs=0.1)


class FixedNumbers:
    """Every other number is the one that the scripted model says."""

    def __init__(self) -> None:
        self.asked = 0

    def randrange(self, start: int, stop: int) -> str:
        self.asked += 1
        return "Hello" if self.asked % 2 else "12345"


def test_recall_counts_right_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_scripted_model(tmp_path / "scripted.gguf")  # says Hello, wide 🌍! to everything
    with load_for_recall(str(path), 600) as llm:
        (found,) = recall(llm, [600])
        assert found.right == (False,) * 10
        assert found.accuracy == Figure(0.0, 0.0)
        monkeypatch.setattr("localinfer.evaluate.recall.Random", lambda seed: FixedNumbers())
        monkeypatch.setattr("localinfer.evaluate.recall.haystack", lambda llm, numbers, length: llm.tokenize("Go on"))
        (found,) = recall(llm, [600])
        assert found.right == (True, False) * 5
    data = found.as_data()
    assert data["accuracy"] == {"value": 0.5, "error": pytest.approx(math.sqrt(0.25 / 10))}
    assert list(data["right_at_depth"].items())[:2] == [("0.09", True), ("0.18", False)]


def test_lengths_double() -> None:
    assert lengths_up_to(512) == [512]
    assert lengths_up_to(4096) == [512, 1024, 2048, 4096]
    assert lengths_up_to(1500) == [512, 1024, 1500]
    with pytest.raises(LocalInferError, match="too short"):
        lengths_up_to(100)


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        ("", 0),
        ("I cannot do that.", 0),
        ('{"name": "set_timer"', 0),
        ("[1]", 0),
        ('{"a": {"name": "set_timer"}}', 1),
        ('{"name": "get_weather", "arguments": {}}', 1),
        ('{"name": "set_timer"}', 2),
        ('{"name": "set_timer", "arguments": {"minutes": 10}}', 2),
        ('{"name": "set_timer", "arguments": {"minutes": "10", "label": "tea"}}', 2),
        ('{"name": "set_timer", "arguments": {"minutes": 10, "label": "tea", "more": 1}}', 2),
        ('{"name": "set_timer", "arguments": {"minutes": 10, "label": "tea"}}', 3),
        ('Sure!\n```json\n{"name": "set_timer", "arguments": {"label": " Tea.", "minutes": 10.0}}\n```', 3),
        ('<tool_call>{"name": "set_timer", "arguments": {"minutes": 10, "label": "tea"}}</tool_call> {', 3),
        ("{" * 5000, 0),
    ],
)
def test_how_much_of_a_call_is_right(answer: str, level: int) -> None:
    assert tool_calls.level(answer, "set_timer", {"minutes": 10, "label": "tea"}) == level


def test_every_task_is_solved_by_what_it_asks_for() -> None:
    for _, function, arguments in tool_calls.TASKS:
        assert arguments.keys() == tool_calls.FUNCTIONS[function].keys()
        assert tool_calls.level(json.dumps({"name": function, "arguments": arguments}), function, arguments) == 3


@pytest.mark.parametrize("template", [True, False])
def test_tool_calls_are_asked_for(template: bool, tmp_path: Path) -> None:
    options = {} if template else {"template": ""}
    path = write_scripted_model(tmp_path / "scripted.gguf", **options)
    with LLM(path, context=2048, max_sequences=4) as llm:
        found = tool_calls.tool_calls(llm)
    assert found.asked == 12
    assert found.json == found.function == found.arguments == Figure(0.0, 0.0)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command(file_of: FileOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, source = file_of("llama", "Q4_0"), file_of("llama", "F32")
    text = tmp_path / "text.txt"
    text.write_text("the old sailor had a ship of his own " * 40, encoding="utf-8")
    common = ["--text", str(text), "--window", "64", "--windows", "4"]
    assert execute(["eval", str(model), "--against", str(source), *common, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert found["model"] == str(model)
    assert found["text"]["name"] == str(text)
    assert found["predictions"]["against"] == str(source)
    assert found["predictions"]["positions"] == 4 * 31
    assert found["predictions"]["kl_mean"]["value"] > 0
    assert "\r" not in out.err

    assert execute(["eval", str(model), *common, "--kv-type", "f16,int8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert found["kv_type"] == "f16,int8"
    assert found["against"].startswith("itself")
    assert 0 < found["kl_mean"]["value"] < 0.1

    assert execute(["eval", str(model), *common]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "\tvalue\tstandard error"
    assert [line.split("\t")[0] for line in lines[1:]] == ["perplexity", "loss, nats"]


def test_the_command_with_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scripted_model(tmp_path / "scripted.gguf")
    arguments = ["eval", str(path), "--windows", "1", "--recall", "600", "--tool-calls"]
    assert execute([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["length"] for one in found["recall"]] == [512, 600]
    assert found["tool_calls"]["asked"] == 12
    assert found["text"]["name"] == "default"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--text", "/nowhere"], 1, "cannot be read"),
        (["--text", "LATIN1"], 1, "not valid UTF-8 at byte"),
        (["--against", "no-such-model"], 1, "no-such-model"),
        (["--window", "3"], 2, "--window"),
        (["--window", "100000"], 1, "fewer than one window"),
        (["--kv-type", "f17"], 2, "--kv-type"),
        (["--recall", "100"], 1, "too short"),
    ],
)
def test_wrong_command_lines(
    arguments: list[str], code: int, message: str, file_of: FileOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin1 = tmp_path / "latin1.txt"
    latin1.write_bytes("häuser ".encode("latin-1") * 100)
    given = [str(latin1) if argument == "LATIN1" else argument for argument in arguments]
    more = [] if "--window" in given or "--text" in given else ["--window", "64", "--windows", "1"]
    assert execute(["eval", str(file_of("llama", "F32")), *given, *more]) == code
    assert message in capsys.readouterr().err
