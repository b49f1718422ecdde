"""The Python API, as its users touch it."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import localinfer
from localinfer import LLM, LocalInferError, SamplingParams
from localinfer.engine import load as loading
from localinfer.engine.load import CHAT_DEFAULTS, chat_defaults, choose_backend
from localinfer.engine.memory import free_memory
from localinfer.errors import ContextLengthError, FormatError, UnsupportedError
from localinfer.formats.gguf import GGUFFile
from localinfer.kernels import BACKENDS, backend
from localinfer.kernels.base import Availability
from scripted_model import ANSWER, HIDDEN, write_scripted_model

HELLO = [{"role": "user", "content": "hello"}]
FOREVER = [{"role": "user", "content": "forever"}]
TEXT = "".join(ANSWER)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("llm") / "chat.gguf")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("llm") / "base.gguf", template="", context=64)


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def llm(request: pytest.FixtureRequest, chat_model: Path) -> Iterator[LLM]:
    availability = backend(request.param).availability()
    assert availability.usable, availability.reason
    torch.set_num_threads(1)  # the tensors are too small for more
    with LLM(chat_model, backend=request.param, context=256) as llm:
        yield llm


def test_chat_answers(llm: LLM) -> None:
    completion = llm.chat(HELLO, temperature=0)
    assert completion.text == TEXT
    assert completion.finish_reason == "stop"
    assert len(completion.tokens) == len(ANSWER) + 1  # the end token is counted
    assert completion.prompt_tokens == len(llm.chat_tokens(HELLO))
    assert completion.logprobs is None
    assert completion.prefill_seconds > 0
    assert completion.decode_tokens_per_second > 0


def test_chat_streams(llm: LLM) -> None:
    stream = llm.chat(HELLO, stream=True, temperature=0)
    with pytest.raises(LocalInferError, match="not complete"):
        _ = stream.completion
    chunks = list(stream)
    assert [chunk.text for chunk in chunks if chunk.text] == ANSWER
    assert [chunk.finish_reason for chunk in chunks] == [None] * len(ANSWER) + ["stop"]
    assert stream.completion.text == TEXT
    assert stream.completion.tokens == tuple(token for chunk in chunks for token in chunk.tokens)
    assert list(stream) == []


def test_each_turn_processes_only_new_tokens(llm: LLM) -> None:
    first = llm.chat(HELLO, temperature=0)
    more = {"role": "user", "content": "more"}
    second = llm.chat([*HELLO, first.message, more], temperature=0)
    # All but the last token of the first turn (which was drawn, but not processed).
    assert second.cached_tokens == first.prompt_tokens + len(first.tokens) - 1
    assert second.text == TEXT
    third = llm.chat([*HELLO, first.message, more, second.message, more], temperature=0)
    assert third.cached_tokens == second.prompt_tokens + len(second.tokens) - 1


def test_tokens_of_a_message_count_only_where_they_are_its_content(llm: LLM) -> None:
    answer = llm.chat(HELLO, temperature=0)
    more = {"role": "user", "content": "more"}
    text_only = [*HELLO, {"role": "assistant", "content": TEXT}, more]
    plain = llm.chat_tokens(text_only)
    with_tokens = llm.detokenize(llm.chat_tokens([*HELLO, answer.message, more]))
    assert with_tokens == llm.detokenize(plain).replace("▁", " ")  # which this vocabulary spells in bytes
    assert llm.chat_tokens([*HELLO, answer.message, more]) != plain, "the test model's answers encode to themselves"
    for changes in ({"content": TEXT + "?"}, {"content": f" {TEXT}"}, {"tokens": [1, 2]}, {"tokens": [-1, 10**12]}):
        message = {**answer.message, **changes}
        without = {key: value for key, value in message.items() if key != "tokens"}
        assert llm.chat_tokens([*HELLO, message, more]) == llm.chat_tokens([*HELLO, without, more])
    # A person who says the same is not the model.
    echo = [{"role": "user", "content": TEXT}, answer.message, more]
    assert llm.chat_tokens(echo)[: len(llm.chat_tokens(echo[:1]))] == llm.chat_tokens(echo[:1])


def test_generate_continues_text_or_tokens(llm: LLM) -> None:
    completion = llm.generate("x", max_tokens=3, logprobs=True)
    assert completion.text == "".join(ANSWER[:3])
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 3
    assert all(entry.logprob <= 0 for entry in completion.logprobs)
    assert tuple(entry.token for entry in completion.logprobs) == completion.tokens
    assert llm.generate(llm.tokenize("x"), SamplingParams(max_tokens=3)).tokens == completion.tokens
    assert llm.tokenize("x")[0] == llm.tokenizer.bos_id
    assert llm.detokenize(llm.tokenize("xy", add_special=False)) == "xy"


def test_special_tokens_in_messages_are_text(llm: LLM) -> None:
    ids = llm.chat_tokens([{"role": "user", "content": "<|forever|>"}])
    assert llm.tokenizer.token_id("<|forever|>") not in ids[:-1]


def test_a_template_that_hides_the_messages_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = "{% for m in messages %}<|user|>{{ m.content | length }}:{{ m.content }}{% endfor %}<|assistant|>"
    with LLM(write_scripted_model(tmp_path / "hides.gguf", template=template), context=256) as llm:
        llm.chat(HELLO, max_tokens=1)
        assert llm.notes == (), "without anything like a special token there is nothing to tell apart"
        for _ in range(2):
            ids = llm.chat_tokens([{"role": "user", "content": "<|forever|>"}])
            assert llm.tokenizer.token_id("<|forever|>") in ids
        assert len(llm.notes) == 1
        assert capsys.readouterr().err == f"note: {llm.notes[0]}\n"
        assert "special tokens" in llm.notes[0]


def test_parameters_by_name_win_over_the_object(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, seed=5)
    assert len(llm.generate("x", params, max_tokens=1).tokens) == 1
    assert llm.generate("x", params).seed == 5
    # A seed that was not given is told, and gives the same again.
    free = llm.generate("x", temperature=3.0, max_tokens=20, ignore_eos=True)
    assert llm.generate("x", temperature=3.0, max_tokens=20, ignore_eos=True, seed=free.seed).tokens == free.tokens


def test_unknown_arguments_are_errors(llm: LLM, chat_model: Path) -> None:
    with pytest.raises(LocalInferError, match="no sampling parameter 'temprature'"):
        llm.generate("x", temprature=1)
    with pytest.raises(LocalInferError, match="no sampling parameter 'tools'"):
        llm.chat(HELLO, tools=[])
    with pytest.raises(TypeError):
        LLM(chat_model, contxt=5)  # type: ignore[call-arg]


def test_stop_texts_are_not_part_of_the_answer(llm: LLM) -> None:
    completion = llm.chat(HELLO, temperature=0, stop=(", wi",))
    assert completion.text == "Hello"
    assert completion.finish_reason == "stop"
    assert "', wi'" in completion.finish_detail


def test_what_does_not_fit_is_refused_before_anything_runs(llm: LLM) -> None:
    for start in (llm.generate, llm.stream):
        with pytest.raises(ContextLengthError, match=r"301 tokens.*holds 256") as caught:
            start("x" * 300)
        assert "max_tokens" not in caught.value.hint
    with pytest.raises(ContextLengthError, match=r"2 tokens and 255 more.*holds 256") as caught:
        llm.generate("x", max_tokens=255)
    assert "lower max_tokens" in caught.value.hint
    assert llm.generate("x", max_tokens=254).text.startswith("Hello")


def test_a_full_context_ends_the_answer_and_says_so(llm: LLM) -> None:
    completion = llm.chat(FOREVER, temperature=0)
    assert completion.finish_reason == "length"
    assert "context of 256" in completion.finish_detail
    assert completion.prompt_tokens + len(completion.tokens) == 256


def test_an_answer_can_be_cancelled_from_another_thread(llm: LLM) -> None:
    stream = llm.chat(FOREVER, stream=True, temperature=0)
    next(stream)
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    thread.join()
    rest = list(stream)
    assert rest[-1].finish_reason == "cancelled"
    assert len(stream.completion.tokens) < 5
    assert llm.chat(HELLO, temperature=0).text == TEXT


def test_cancel_ends_every_answer(llm: LLM) -> None:
    streams = [llm.chat(FOREVER, stream=True, temperature=0) for _ in range(2)]
    next(streams[0])
    llm.cancel()
    for stream in streams:
        assert list(stream)[-1].finish_reason == "cancelled"


def test_leaving_or_dropping_a_stream_ends_it(llm: LLM) -> None:
    with llm.chat(FOREVER, stream=True, temperature=0) as stream:
        next(stream)
    dropped = llm.chat(FOREVER, stream=True, temperature=0)
    next(dropped)
    request = dropped._request
    del dropped
    gc.collect()
    assert llm.chat(HELLO, temperature=0).text == TEXT
    assert request.finish_reason == "cancelled"
    assert not llm._engine.has_work


def test_streams_may_be_read_in_turns(chat_model: Path) -> None:
    with LLM(chat_model, context=256, max_sequences=2) as llm:
        streams = [llm.chat(HELLO, stream=True, temperature=0) for _ in range(3)]
        texts = ["", "", ""]
        for _ in range(len(ANSWER) + 1):
            for i in (2, 0, 1):
                chunk = next(streams[i], None)
                texts[i] += chunk.text if chunk else ""
        assert texts == [TEXT] * 3


def test_a_base_model_does_not_chat_without_a_template(base_model: Path) -> None:
    with LLM(base_model) as llm:
        assert llm.context == 64
        with pytest.raises(UnsupportedError, match="no chat template"):
            llm.chat(HELLO)
        assert llm.generate("x").text == TEXT
    with LLM(base_model, chat_template="{{ messages[0].content }}<|assistant|>") as llm:
        assert llm.chat(HELLO, temperature=0).text == TEXT


def test_a_closed_model_says_so(chat_model: Path) -> None:
    llm = LLM(chat_model, context=64)
    stream = llm.chat(HELLO, stream=True)
    llm.close()
    llm.close()
    with pytest.raises(LocalInferError, match="closed"):
        llm.generate("x")
    with pytest.raises(LocalInferError, match="closed"):
        next(stream)


def test_names_and_files_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="no model nonsense"):
        LLM("nonsense")
    with pytest.raises(LocalInferError, match="no file"):
        LLM(tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(FormatError):
        LLM(tmp_path / "bad.gguf")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"context": "64"}, r"context is '64' \(str\)"),
        ({"threads": -1}, "threads is -1"),
        ({"threads": 2.5}, "threads is 2.5"),
        ({"kv_type": "f8"}, "kv_type is 'f8'"),
        ({"kv_type": ("f16",)}, "kv_type is"),
        ({"kv_type": "int8,f8"}, "kv_type is 'f8'"),
        ({"kv_type": "f16,f16,f16"}, "kv_type is 'f16,f16,f16'"),
        ({"backend": ["cpu"]}, "backend is"),
        ({"chat_template": 5}, "chat_template is 5"),
    ],
)
def test_arguments_that_make_no_sense_are_named(chat_model: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalInferError, match=words):
        LLM(chat_model, **arguments)


def test_a_model_is_named_by_a_text_or_a_path() -> None:
    for bad in (5, None, b"model.gguf"):
        with pytest.raises(LocalInferError, match=r"model is .*must be the name of an installed model"):
            LLM(bad)  # type: ignore[arg-type]


def test_a_file_that_is_not_loaded_does_not_stay_open(chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Path] = []
    close = GGUFFile.close
    monkeypatch.setattr(GGUFFile, "close", lambda file: (closed.append(file.paths[0]), close(file)))
    with pytest.raises(LocalInferError):
        LLM(chat_model, threads=-1)
    assert closed == [chat_model]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda llm: llm.generate(b"abc"), r"the prompt is b'abc' \(bytes\), but must be a sequence of token ids"),
        (lambda llm: llm.generate(5), "the prompt is 5"),
        (lambda llm: llm.generate(["a"]), "a token id of the prompt is 'a'"),
        (lambda llm: llm.generate("x", {"seed": 1}), "params is .*must be a SamplingParams"),
        (lambda llm: llm.generate("x", stop=[1]), "an item of stop is 1"),
        (lambda llm: llm.generate("x", max_tokens="5"), "max_tokens is '5'"),
        (lambda llm: llm.tokenize(b"x"), r"text is b'x' \(bytes\)"),
        (lambda llm: llm.detokenize(["x"]), "a token id of tokens is 'x'"),
        (lambda llm: llm.detokenize([10**9]), "a token id of tokens is 1000000000"),
        (lambda llm: llm.chat("hi"), r"messages is 'hi' \(str\), but must be a list of messages"),
        (lambda llm: llm.chat(HELLO[0]), r"messages is .* \(dict\)"),
        (lambda llm: llm.chat(["hi"]), r"messages\[0\] is 'hi'"),
        (lambda llm: llm.chat([*HELLO, {"content": "hi"}]), r'messages\[1\]\["role"\] is None'),
        (lambda llm: llm.chat([{"role": "user", "content": 5}]), r'messages\[0\]\["content"\] is 5'),
        (lambda llm: llm.chat([{**HELLO[0], "tokens": ["a"]}]), r"a token id of messages\[0\].* is 'a'"),
        (lambda llm: llm.chat([{**HELLO[0], "tokens": 5}]), r'messages\[0\]\["tokens"\] is 5'),
        (lambda llm: llm.chat(HELLO, template_variables=["a"]), "template_variables is"),
    ],
)
def test_what_is_no_prompt_is_named_and_harms_nothing(llm: LLM, ask: Callable[[LLM], Any], words: str) -> None:
    with pytest.raises(LocalInferError, match=words):
        ask(llm)
    assert llm.chat(HELLO, temperature=0).text == TEXT


def test_an_error_of_ours_ends_one_answer_and_not_the_model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = llm.chat(HELLO, stream=True, temperature=0)
    monkeypatch.setattr(stream._request.choices[0].decoder, "push", lambda token: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(stream)
    assert list(stream) == []
    assert llm.chat(HELLO, temperature=0).text == TEXT


def test_a_stream_whose_outputs_are_lost_says_so(llm: LLM) -> None:
    stream = llm.chat(HELLO, stream=True, temperature=0, max_tokens=1)
    llm._engine.step()
    with pytest.raises(LocalInferError, match="the rest of the answer was lost"):
        next(stream)


def test_a_second_thread_is_told_that_it_is_one(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []

    def ask() -> None:
        try:
            llm.chat(HELLO)
        except LocalInferError as error:
            errors.append(error.message)

    step = llm._engine.step

    def step_while_another_thread_asks() -> Any:
        if not errors:
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        return step()

    monkeypatch.setattr(llm._engine, "step", step_while_another_thread_asks)
    assert llm.chat(HELLO, temperature=0).text == TEXT
    assert errors == ["two threads use one model at the same time"]
    monkeypatch.undo()
    assert llm.chat(HELLO, temperature=0).text == TEXT
    assert not llm._engine.has_work


def test_a_model_too_large_for_the_memory_is_refused(chat_model: Path) -> None:
    with pytest.raises(LocalInferError, match="MiB are free"):
        LLM(chat_model, context=free_memory() // 4096, max_sequences=64)


def test_more_context_than_the_model_was_made_for_is_said(base_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(base_model, context=128) as llm:
        assert any("more than the 64" in note for note in llm.notes)
    assert "more than the 64" in capsys.readouterr().err


def test_the_backend_is_chosen_and_a_fallback_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unusable:
        name = "cpu"

        def availability(self) -> Availability:
            return Availability(False, "of a test")

    assert choose_backend("auto")[0].name == "cpu"
    assert choose_backend("auto")[1] == ""
    with pytest.raises(UnsupportedError, match="no backend 'gpu'"):
        choose_backend("gpu")
    monkeypatch.setattr(loading, "find_backend", lambda name: Unusable() if name == "cpu" else backend(name))
    chosen, note = choose_backend("auto")
    assert chosen.name == "reference"
    assert "cpu is not usable (of a test)" in note
    with pytest.raises(UnsupportedError, match="of a test"):
        choose_backend("cpu")


def test_chat_samples_as_the_file_recommends() -> None:
    assert chat_defaults({}) == CHAT_DEFAULTS
    assert CHAT_DEFAULTS.temperature > 0
    recommended = chat_defaults({"general.sampling.temp": 0.25, "general.sampling.top_k": 30})
    assert recommended == SamplingParams(temperature=0.25, top_k=30)
    llama_cpp = {"general.sampling.penalty_repeat": 1.1, "general.sampling.penalty_last_n": -1}
    assert chat_defaults(llama_cpp) == SamplingParams(temperature=CHAT_DEFAULTS.temperature, repetition_penalty=1.1)
    assert chat_defaults({**llama_cpp, "general.sampling.penalty_last_n": 0}).repetition_penalty == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", -1.0), ("temp", math.nan), ("top_k", math.nan), ("top_k", math.inf), ("penalty_last_n", -math.inf)],
)
def test_a_recommendation_that_makes_no_sense_is_an_error_of_the_file(key: str, value: float) -> None:
    with pytest.raises(FormatError, match=r"general\.sampling"):
        chat_defaults({f"general.sampling.{key}": value})


FIVE_LINES = """
from localinfer import LLM
with LLM(PATH) as llm:
    for chunk in llm.chat([{"role": "user", "content": "Hello!"}], stream=True):
        print(chunk.text, end="", flush=True)
"""


def test_five_lines_stream_an_answer_without_heavy_imports(chat_model: Path) -> None:
    code = FIVE_LINES.replace("PATH", repr(str(chat_model)))
    code += "\nimport sys; print(); print(*(m for m in ('numpy', 'torch', 'transformers', 'gguf') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    answer, heavy, _ = done.stdout.split("\n")
    assert answer.startswith("Hello")
    assert heavy == ""


def test_the_package_names_what_it_offers() -> None:
    assert {"LLM", "SamplingParams", "LocalInferError"} <= set(localinfer.__all__)
    for name in localinfer.__all__:
        assert getattr(localinfer, name)


def test_several_answers_come_side_by_side(llm: LLM) -> None:
    asked: dict[str, Any] = {"n": 3, "temperature": 5.0, "seed": 1, "max_tokens": 6, "ignore_eos": True}
    stream = llm.stream("x", **asked)
    texts = {0: "", 1: "", 2: ""}
    tokens: dict[int, tuple[int, ...]] = {0: (), 1: (), 2: ()}
    for chunk in stream:
        texts[chunk.index] += chunk.text
        tokens[chunk.index] += chunk.tokens
    completion = stream.completion
    answers = [completion, *completion.others]
    assert [answer.text for answer in answers] == list(texts.values())
    assert [answer.tokens for answer in answers] == list(tokens.values())
    assert len({answer.tokens for answer in answers}) == 3
    assert llm.generate("x", **asked).others[1].tokens == answers[2].tokens
    assert llm.generate("x", **{**asked, "n": 1}).tokens == completion.tokens


def test_the_prompts_log_probabilities_and_the_likeliest_tokens(llm: LLM) -> None:
    ids = llm.tokenize("x")
    completion = llm.generate(ids, max_tokens=2, prompt_logprobs=1, top_logprobs=2)
    assert completion.prompt_logprobs is not None
    assert completion.logprobs is not None
    assert [entry and entry.token for entry in completion.prompt_logprobs] == [None, *ids[1:]]
    assert [len(entry.top) for entry in completion.logprobs] == [2, 2]
    assert completion.logprobs[0].top[0][0] == completion.tokens[0]
    assert llm.generate(ids, max_tokens=2).prompt_logprobs is None


def test_embeddings_depend_on_the_text_alone(llm: LLM) -> None:
    vector = llm.embed("xyz")
    assert len(vector) == HIDDEN
    assert llm.embed(llm.tokenize("xyz")) == vector
    assert llm.embed("xyy") != vector
    assert llm.embed("xyz", pooling="last") != vector
    with pytest.raises(LocalInferError, match="pooling is 'sum'"):
        llm.embed("x", pooling="sum")  # type: ignore[arg-type]
    assert llm.generate("x", max_tokens=1).tokens
