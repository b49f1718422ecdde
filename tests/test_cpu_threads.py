"""Several models at the same time, each used by a thread of its own, all of them on one pool of threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from localinfer import LLM, SamplingParams
from localinfer.kernels.base import Batch, Cancelled, Executable, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.program import Linear
from op_programs import OpProgram
from tiny_models import by_name, write_gguf

PROMPTS = [[1, *range(5, 70)], [1, *range(200, 120, -1)]]
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True)
ROUNDS = 6
PATIENCE = 120  # seconds after which something hangs, also under a sanitizer

Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of different widths, depths and weight types."""
    folder = tmp_path_factory.mktemp("threads")
    return [
        write_gguf(by_name("llama"), folder / "llama.gguf", "Q8_0"),
        write_gguf(by_name("gemma3"), folder / "gemma3.gguf", "F32"),
    ]


def load(path: Path, threads: int = 2) -> LLM:
    return LLM(path, context=256, threads=threads, prefix_cache=False)


def answer(llm: LLM, prompt: list[int]) -> Tokens:
    return llm.generate(prompt, PARAMS).tokens


@pytest.fixture(scope="module")
def alone(paths: list[Path]) -> list[Tokens]:
    """What each model answers to its prompt with one thread and nothing beside it."""
    answers = []
    for path, prompt in zip(paths, PROMPTS, strict=True):
        with load(path, threads=1) as llm:
            answers.append(answer(llm, prompt))
    assert all(len(set(tokens)) > 10 for tokens in answers)
    return answers


@pytest.fixture
def models(paths: list[Path]) -> Iterator[list[LLM]]:
    loaded = [load(path) for path in paths]
    yield loaded
    for llm in loaded:
        llm.close()


def at_the_same_time(*jobs: Callable[[], None]) -> None:
    """Runs each in a thread; their first error is raised here, and a hang is a failure."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        try:
            start.wait(PATIENCE)
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def answers_stay(llm: LLM, prompt: list[int], expected: Tokens, rounds: int = ROUNDS) -> Callable[[], None]:
    def job() -> None:
        for _ in range(rounds):
            assert answer(llm, prompt) == expected

    return job


def test_two_models_answer_as_each_alone(models: list[LLM], alone: list[Tokens]) -> None:
    at_the_same_time(*map(answers_stay, models, PROMPTS, alone))


def test_a_model_is_loaded_and_closed_while_another_answers(paths: list[Path], alone: list[Tokens]) -> None:
    done = threading.Event()
    loads = 0

    def keep_loading() -> None:
        nonlocal loads
        while not done.is_set() or loads < 3:
            with load(paths[1]) as other:
                assert other.generate(PROMPTS[1], PARAMS, max_tokens=2).tokens == alone[1][:2]
            loads += 1

    with load(paths[0]) as llm:
        stay = answers_stay(llm, PROMPTS[0], alone[0])

        def keep_answering() -> None:
            try:
                stay()
            finally:
                done.set()

        at_the_same_time(keep_answering, keep_loading)
    assert loads >= 3


def test_cancelling_one_answer_leaves_the_other(models: list[LLM], alone: list[Tokens]) -> None:
    underway, over = threading.Event(), threading.Event()
    cancelled: list[Tokens] = []
    llm, prompt = models[0], PROMPTS[0]

    def be_cancelled() -> None:
        try:
            for _ in range(5 * ROUNDS):  # on a busy machine a cancel may come after the last token
                underway.clear()
                with llm.stream(prompt, PARAMS, max_tokens=190) as stream:
                    for _ in stream:
                        underway.set()
                if stream.completion.finish_reason == "cancelled":
                    cancelled.append(stream.completion.tokens)
                if len(cancelled) == ROUNDS:
                    break
        finally:
            over.set()
            underway.set()

    def cancel() -> None:
        while not over.is_set():
            assert underway.wait(PATIENCE)
            llm.cancel()

    at_the_same_time(be_cancelled, cancel, answers_stay(models[1], PROMPTS[1], alone[1]))
    assert len(cancelled) == ROUNDS
    assert answer(llm, prompt) == alone[0]
    longest = max(cancelled, key=len)
    assert all(longest[: len(tokens)] == tokens for tokens in cancelled)
    assert longest[: len(alone[0])] == alone[0][: len(longest)]


def test_more_threads_than_cores_finish_with_the_same_tokens(paths: list[Path], alone: list[Tokens]) -> None:
    """Barriers that only spin would take minutes here."""

    def job() -> None:
        with load(paths[0], threads=8) as llm:
            assert answer(llm, PROMPTS[0]) == alone[0]

    at_the_same_time(job)


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_all_models_share_one_pool(paths: list[Path], alone: list[Tokens]) -> None:
    """The pool grows to what the model with most threads needs, and the others leave the rest alone."""
    with load(paths[0], threads=8):
        before = threads_of_this_process()
        with load(paths[0], threads=3) as three, load(paths[1], threads=2) as two:
            assert answer(three, PROMPTS[0]) == alone[0]
            assert answer(two, PROMPTS[1]) == alone[1]
            assert threads_of_this_process() == before


def long_step(folder: Path) -> tuple[Executable, Batch]:
    """A step of a minute that looks at `cancel` every few milliseconds."""
    folder.mkdir()
    built = OpProgram(folder, 64)
    x = built.input(np.ones((64, 256), np.float32))
    matrix = built.matrix(np.eye(256, dtype=np.float32))
    for _ in range(5000):
        out = built.value(256)
        built.add_op(Linear((out,), x, (matrix,), (None,)))
        x = out
    executable = CpuBackend("portable").load(built.program(x), built.tensors, built.config())
    return executable, batch_of([(range(64), 0, range(4))])


def test_a_step_that_waits_for_its_turn_can_be_cancelled(tmp_path: Path) -> None:
    """Two steps of a minute at the same time: the later one ends at once when it is cancelled.

    The pauses make it wait for its turn; on a machine so busy that it should run first, it ends at once as well.
    """
    (first, batch), (second, _) = long_step(tmp_path / "first"), long_step(tmp_path / "second")
    first_over, second_over = threading.Event(), threading.Event()

    def step(executable: Executable, over: threading.Event, pause: float) -> None:
        time.sleep(pause)
        with pytest.raises(Cancelled):
            executable.step(batch)
        over.set()

    def cancel() -> None:
        time.sleep(0.4)
        second.cancel()
        assert second_over.wait(PATIENCE)
        assert not first_over.is_set()
        first.cancel()

    at_the_same_time(lambda: step(first, first_over, 0), lambda: step(second, second_over, 0.2), cancel)
    first.close()
    second.close()
