"""`bench --determinism`, on a model that is made up: what it counts, and that it notices a token that load changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localinfer.bench import determinism
from localinfer.bench.determinism import MUST_OCCUR, Answer, Counts, Report, compare
from localinfer.bench.workload import workload
from localinfer.cli.main import execute
from localinfer.engine.sampler import Sampler
from localinfer.engine.speculation import Speculation
from localinfer.formats.gguf import GGUFFile, open_gguf
from localinfer.text.tokenizer import Tokenizer, load_tokenizer
from tiny_models import by_name, write_gguf

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(by_name("llama"), tmp_path_factory.mktemp("determinism") / "model.gguf")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same vocabulary, that knows nothing of the first."""
    return write_gguf(by_name("llama-tied"), tmp_path_factory.mktemp("determinism") / "draft.gguf")


@pytest.fixture
def file(path: Path) -> Iterator[GGUFFile]:
    with open_gguf(path) as file:
        yield file


@pytest.fixture
def tokenizer(file: GGUFFile) -> Tokenizer:
    return load_tokenizer(file.metadata)


def quickly(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Only the variants whose names begin so, and half of the requests."""
    every = determinism.variants
    monkeypatch.setattr("localinfer.bench.workload.REQUESTS", 16)
    monkeypatch.setattr(
        determinism, "variants", lambda *given: [each for each in every(*given) if each.name.startswith(names)]
    )


def test_no_token_differs_in_any_crowd(path: Path, draft: Path, capsys: Capture) -> None:
    code = execute(["bench", str(path), "--determinism", "--draft", str(draft), "--json"])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["different"] == 0
    assert code == 0, printed.err
    assert report["requests"] == sum(each["requests"] for each in report["variants"].values()) >= 8 * 32
    assert report["tokens"] > 1000
    for kind in MUST_OCCUR:
        assert report[kind] > 0, kind
    drafted = report["variants"]["batches of 8, draft model"]
    assert drafted["speculated"] > 0
    assert "batches of 32" in printed.err, "it says what it is doing"


def test_the_table_has_a_row_for_every_variant_and_the_sum(
    path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch, "batches of 4")
    code = execute(["bench", str(path), "--determinism"])
    printed = capsys.readouterr()
    assert code == 1, "steps of some kinds did not occur"
    assert "preempted, speculated, rejected" in printed.err
    assert "different" in printed.out
    assert "batches of 4, cache cold and warm" in printed.out
    assert "all" in printed.out


def test_a_sampler_that_depends_on_the_load_is_noticed(
    file: GGUFFile, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch, "batches of 2")
    drawn = iter(range(10**9))
    draw = Sampler.draw

    def dependent(self: Sampler, *given: Any) -> Any:
        token, logprob = draw(self, *given)
        return (token + (next(drawn) % 200 == 0)) % 256, logprob

    monkeypatch.setattr(Sampler, "draw", dependent)
    assert compare(file, tokenizer).total.different > 0


def test_drafts_that_are_believed_are_noticed(
    file: GGUFFile, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch, "batches of 8, prompt lookup")

    def believed(self: Speculation, sequence: Any) -> None:
        self._drafts[sequence].accepted += 1
        self._kv.commit(sequence, sequence.computed + 1)
        sequence.tokens[-1] = (sequence.tokens[-1] + 1) % 256

    monkeypatch.setattr(Speculation, "accept", believed)
    assert compare(file, tokenizer).total.different > 0


def test_differences_are_counted_token_by_token() -> None:
    def different(one: Answer, *others: Answer) -> int:
        counts = Counts()
        determinism._compare([one], list(others), counts)
        return counts.different

    answer = Answer((1, 2, 3), "abc", (), "length")
    assert different(answer, answer) == 0
    assert different(answer, answer._replace(tokens=(1, 5, 3))) == 1
    assert different(answer, answer._replace(tokens=(1,))) == 2
    assert different(answer, answer._replace(tokens=(1, 2, 3, 4))) == 1
    assert different(answer, answer._replace(text="abd")) == 1
    assert different(answer, answer._replace(finish_reason="stop")) == 1
    assert different(answer) == 1
    assert different(answer, answer, answer) == 1


def test_it_passes_only_if_every_kind_of_step_occurred() -> None:
    report = Report()
    report.add("one", Counts(1, 5, 0, 9, 1, 1, 1, 1, 0))
    assert (report.missing, report.passed) == (["rejected"], False)
    report.add("two", Counts(1, 5, 0, 9, 0, 0, 0, 0, 1))
    assert (report.missing, report.passed) == ([], True)
    report.add("three", Counts(1, 5, 1))
    assert not report.passed
    assert report.as_data()["requests"] == 3


def test_the_workload_is_recorded_and_mixed(tokenizer: Tokenizer) -> None:
    cases = workload(tokenizer, 256)
    assert cases == workload(tokenizer, 256)
    assert len(cases) == 32
    kinds = [case.params for case in cases]
    assert any(params.temperature == 0 for params in kinds)
    assert any(params.temperature > 0 for params in kinds)
    assert any(params.penalizes for params in kinds)
    assert any(params.n > 1 for params in kinds)
    assert any(params.beam_width for params in kinds)
    assert any(params.logit_bias for params in kinds)
    assert any(params.looks_back for params in kinds)
    assert any(params.xtc_probability for params in kinds)
    assert any(params.dynatemp_range for params in kinds)
    assert {params.mirostat for params in kinds} == {0, 1, 2}
    assert any(case.stops for case in cases)
    assert all(len(case.prompt) + (case.params.max_tokens or 0) <= 256 for case in cases)
    assert len({params.seed for params in kinds}) == 32
