"""lm-eval, the harness that published figures come from, measures models through our server: on a task of its own kind
that lies in a folder, with no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from localinfer import LLM
from served_app import served

MODEL = Path(__file__).parent / "data" / "presidents-1m"
QUESTIONS: list[dict[str, Any]] = [
    {"question": "The President of the United", "choices": [" States", " Kingdom", " whale"], "answer": 0},
    {"question": "Fellow citizens of the Senate and", "choices": [" sea", " House of Representatives"], "answer": 1},
    {"question": "the Congress of the", "choices": [" blue", " United States", " yellow"], "answer": 1},
]
CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
target_delimiter: ""
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WORDS = """
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
# What `lm_eval --model local-completions` does, without its own thousands of tasks, which take long to read.
# transformers looks for a package called kernels, and may find the folder of an editable install of localinfer.
HARNESS = """
import json, sys
sys.modules["kernels"] = None
import lm_eval
from lm_eval.tasks import TaskManager
url, tokenizer, tasks, result = sys.argv[1:]
found = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={
        "model": "presidents", "base_url": url + "/v1/completions", "num_concurrent": 4,
        "tokenizer_backend": "huggingface", "tokenizer": tokenizer,
    },
    tasks=["choice", "words"],
    task_manager=TaskManager(include_path=tasks, include_defaults=False),
    bootstrap_iters=0,
)
json.dump({name: found[name] for name in ("results", "samples")}, open(result, "w"), default=str)
"""


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_lm_eval_measures_a_served_model(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(f"{json.dumps(question)}\n" for question in QUESTIONS))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name, text in (("choice", CHOICE), ("words", WORDS)):
        (tasks / f"{name}.yaml").write_text(text.replace("QUESTIONS", str(questions)))
    llm = LLM(MODEL, context=256, max_sequences=4, threads=1)
    llm.name = "presidents"
    likelihoods = [[log_likelihood(llm, q["question"], choice) for choice in q["choices"]] for q in QUESTIONS]
    starts = [llm.tokenize(q["question"], add_special=False) for q in QUESTIONS]  # lm-eval puts no BOS in front
    answers = [llm.generate(ids, max_tokens=6, stop=(".",)).text for ids in starts]
    with served(llm) as server:
        command = [sys.executable, "-c", HARNESS, server.url, str(MODEL), str(tasks), str(tmp_path / "result.json")]
        environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_DATASETS_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "result.json").read_text())

    told = [[float(response[0]) for response in s["filtered_resps"]] for s in found["samples"]["choice"]]
    for theirs, ours in zip(told, likelihoods, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)
    right = [
        max(range(len(ours)), key=ours.__getitem__) == q["answer"]
        for ours, q in zip(likelihoods, QUESTIONS, strict=True)
    ]
    assert found["results"]["choice"]["acc,none"] == sum(right) / len(right) == 1
    assert [s["filtered_resps"][0] for s in found["samples"]["words"]] == answers
    assert found["results"]["words"]["exact_match,none"] == pytest.approx(
        sum(answer == q["choices"][q["answer"]] for answer, q in zip(answers, QUESTIONS, strict=True)) / 3
    )


def log_likelihood(llm: LLM, text: str, continuation: str) -> float:
    """Of a continuation, by the model itself."""
    count = len(llm.tokenize(text, add_special=False))
    ids = llm.tokenize(text + continuation, add_special=False)
    told = llm.generate(ids, max_tokens=1, prompt_logprobs=0).prompt_logprobs
    assert told is not None
    return sum(entry.logprob for entry in told[count:] if entry is not None)
