"""Grammars: what may come next, token by token, and answers that fit because nothing else could be drawn."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localinfer import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.text.grammar import Grammar, Grammars, choice, json_schema
from scripted_model import ANSWER, write_scripted_model

PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "mood": {"enum": ["good", "bad"]}},
    "required": ["age", "mood"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_scripted_model(tmp_path_factory.mktemp("grammar") / "tiny.gguf")
    with LLM(path, context=512, threads=1, max_sequences=4, kv_tokens=2048) as llm:
        yield llm


@pytest.fixture(scope="module")
def grammars(llm: LLM) -> Grammars:
    return Grammars(llm.tokenizer, llm.tokenizer.vocab_size + 40)  # as if the logits were padded


def byte_token(llm: LLM, byte: int) -> int:
    token = llm.tokenizer.token_id(f"<0x{byte:02X}>")
    assert token is not None
    return token


def fits(grammars: Grammars, grammar: Grammar, llm: LLM, text: str) -> bool:
    """Whether the text is allowed token by token, and may end there."""
    matcher = grammars.matcher(grammar)
    for token in [*(byte_token(llm, byte) for byte in text.encode()), llm.tokenizer.eos_id]:
        if matcher.complete and token == llm.tokenizer.eos_id:
            return True
        assert token is not None
        if not matcher.allowed()[token // 32] >> token % 32 & 1:
            return False
        assert matcher.take(token)
    return True


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (json_schema(PERSON), ['{"age": 7, "mood": "bad"}', '{"age":120,"mood":"good"}'], ['{"age": 121', "{}", "x"]),
        (Grammar("json_object"), ["{}", '{"a": [1, null, "é"]}'], ["[1]", '"a"', "{a:1}"]),
        (Grammar("regex", "[ab]+c?"), ["abba", "ac"], ["c", "acc", ""]),
        (choice(["left", "right"]), ["left", "right"], ["le", "up", "leftright"]),
        (Grammar("gbnf", 'root ::= "yes" | "no" " "?'), ["yes", "no "], ["maybe", "yes "]),
        (Grammar("lark", 'start: "a" start "b" | "c"'), ["c", "aacbb"], ["aacb", "ab"]),
    ],
)
def test_only_what_fits_may_come(
    grammars: Grammars, llm: LLM, grammar: Grammar, good: list[str], bad: list[str]
) -> None:
    assert [fits(grammars, grammar, llm, text) for text in good] == [True] * len(good)
    assert [fits(grammars, grammar, llm, text) for text in bad] == [False] * len(bad)


def test_padding_of_the_logits_is_never_allowed(grammars: Grammars, llm: LLM) -> None:
    bits = grammars.matcher(Grammar("regex", "(.|\n)*")).allowed()
    size = llm.tokenizer.vocab_size
    assert all(not bits[token // 32] >> token % 32 & 1 for token in range(size, size + 40))


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "{", "no JSON"),
        ("json_schema", "[1]", "must be an object"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"type": "string", "format": "moon-phase"}', "moon-phase"),
        ("regex", "(a", "regular expression cannot be used"),
        ("regex", "(?=a)b", "regular expression cannot be used"),
        ("lark", "start: other", "other"),
        ("gbnf", "root ::= other", "other"),
        ("choice", "[]", "at least one"),
        ("choice", '["a", 1]', "texts"),
        ("poem", "", "is not known"),
    ],
)
def test_what_cannot_be_enforced_is_refused(grammars: Grammars, kind: Any, text: str, words: str) -> None:
    with pytest.raises(LocalInferError, match=re.escape(words)):
        grammars.matcher(Grammar(kind, text))


def test_a_grammar_of_absurd_length_is_refused() -> None:
    with pytest.raises(LocalInferError, match="characters"):
        Grammar("regex", "a" * 2_000_000)


def test_matchers_of_one_grammar_do_not_disturb_each_other(grammars: Grammars, llm: LLM) -> None:
    first, second = (grammars.matcher(choice(["ab", "ac"])) for _ in range(2))
    a, b = (byte_token(llm, byte) for byte in b"ab")
    start = list(second.allowed())
    assert first.take(a)
    assert list(second.allowed()) == start
    assert first.allowed()[b // 32] >> b % 32 & 1


# --- answers -------------------------------------------------------------------------------------------------------


def test_an_answer_fits_whatever_the_model_would_say(llm: LLM) -> None:
    free = llm.chat([{"role": "user", "content": "hi"}], temperature=0)
    assert free.text == "".join(ANSWER)
    bound = llm.chat([{"role": "user", "content": "hi"}], temperature=0, grammar=json_schema(PERSON))
    assert set(json.loads(bound.text)) == {"age", "mood"}
    assert (bound.finish_reason, bound.finish_detail) == ("stop", "the grammar allows nothing more")


def test_where_the_answer_may_end_or_go_on_the_model_decides(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "hi"}], temperature=0, grammar=Grammar("regex", r"Hello, wide.*"))
    assert answer.text == "".join(ANSWER)
    assert answer.finish_reason == "stop"


def test_sampled_answers_fit_and_each_of_several_by_itself(llm: LLM) -> None:
    grammar = Grammar("regex", "[a-f]{3,9}-[0-9]{2}")
    answer = llm.chat([{"role": "user", "content": "hi"}], temperature=5.0, seed=4, n=4, grammar=grammar)
    texts = [answer.text, *(other.text for other in answer.others)]
    assert all(re.fullmatch(grammar.text, text) for text in texts), texts
    assert len(set(texts)) > 1
    again = llm.chat([{"role": "user", "content": "hi"}], temperature=5.0, seed=4, grammar=grammar)
    assert again.text == texts[0], "the first answer is that of a request for one"


def test_max_tokens_cuts_a_bound_answer_and_says_so(llm: LLM) -> None:
    answer = llm.generate("x", grammar=Grammar("regex", "a{40}"), max_tokens=5)
    assert (answer.text, answer.finish_reason) == ("a" * 5, "length")


def test_min_tokens_does_not_leave_the_sampler_without_a_token(llm: LLM) -> None:
    answer = llm.generate("x", grammar=choice(["yes"]), min_tokens=20)
    assert (answer.text, answer.finish_reason) == ("yes", "stop")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_end_that_is_only_possible_ends_it(llm: LLM, ignore_eos: bool) -> None:
    answer = llm.generate("x", grammar=Grammar("regex", "(Hello)?"), ignore_eos=ignore_eos, max_tokens=9)
    assert (answer.text, answer.finish_reason) == ("Hello", "stop")


def test_drafts_change_nothing(tmp_path: Path) -> None:
    path = write_scripted_model(tmp_path / "tiny.gguf")
    grammar = Grammar("regex", "( tick){3,20}( tock| wide)+!")
    answers = []
    for speculation in ("off", "ngram"):
        with LLM(path, context=256, threads=1, speculation=speculation) as llm:
            answers.append(llm.generate(" tick tick tick", grammar=grammar, temperature=2.0, seed=8, max_tokens=60))
    assert answers[0].tokens == answers[1].tokens
    assert re.match("( tick){3}", answers[0].text)


def test_a_beam_search_and_another_kind_of_object_are_refused(llm: LLM) -> None:
    with pytest.raises(LocalInferError, match="beam search"):
        llm.generate("x", grammar=choice(["a"]), beam_width=2)
    with pytest.raises(LocalInferError, match="grammar"):
        SamplingParams(grammar='root ::= "a"')  # type: ignore[arg-type]


def test_random_schemas_are_followed(llm: LLM) -> None:
    """A drawing model that knows nothing: only the grammar makes JSON of what it says."""
    chance = random.Random(5)
    for number in range(25):
        schema, checks = _random_schema(chance, 0)
        sampling = {"temperature": 50.0, "seed": number, "max_tokens": 400}
        answer = llm.generate("x", grammar=json_schema(schema), **sampling)
        if answer.finish_reason == "stop":
            assert checks(json.loads(answer.text)), (schema, answer.text)


def _random_schema(chance: random.Random, depth: int) -> tuple[Any, Any]:
    """A schema, and a check of values written here and not by llguidance."""
    kind = chance.choice(["integer", "enum", "boolean", "string"] + ["object", "array"] * (depth < 2))
    if kind == "integer":
        low, high = sorted((chance.randint(-50, 50), chance.randint(-50, 50)))
        schema = {"type": "integer", "minimum": low, "maximum": high}
        return schema, lambda v: isinstance(v, int) and low <= v <= high
    if kind == "enum":
        values = [chance.choice([1, "a", None, True, "é\n"]) for _ in range(3)]
        return {"enum": values}, lambda v: v in values
    if kind == "boolean":
        return {"type": "boolean"}, lambda v: isinstance(v, bool)
    if kind == "string":
        most = chance.randint(0, 8)
        return {"type": "string", "maxLength": most}, lambda v: isinstance(v, str) and len(v) <= most
    if kind == "array":
        inner, check = _random_schema(chance, depth + 1)
        most = chance.randint(0, 3)
        schema = {"type": "array", "items": inner, "maxItems": most}
        return schema, lambda v: isinstance(v, list) and len(v) <= most and all(check(x) for x in v)
    parts = {f"k{i}": _random_schema(chance, depth + 1) for i in range(chance.randint(1, 3))}
    schema = {
        "type": "object",
        "properties": {name: part for name, (part, _) in parts.items()},
        "required": list(parts),
        "additionalProperties": False,
    }
    return schema, lambda v: set(v) == set(parts) and all(check(v[name]) for name, (_, check) in parts.items())


# --- thoughts ------------------------------------------------------------------------------------------------------

THINKING = ["<think>\n", "It", " is", " seven", ".\n</think>\n\n", "Seven", "!"]
THINKING_TEMPLATE = """\
{%- for message in messages %}{{ '<|' + message['role'] + '|>' }}
{%- if message['reasoning_content'] %}{{ '<think>\n' + message['reasoning_content'] + '\n</think>\n\n' }}{% endif %}
{{- message['content'] + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("thinker") / "tiny.gguf"
    write_scripted_model(path, template=THINKING_TEMPLATE, answer=THINKING)
    with LLM(path, context=512, threads=1, max_sequences=4, kv_tokens=2048) as llm:
        llm.prepare_grammars()
        yield llm


def thought_and_answer(llm: LLM, **sampling: Any) -> tuple[str, str]:
    answer = llm.chat([{"role": "user", "content": "hi"}], temperature=0, max_tokens=60, **sampling)
    thought, _, said = answer.text.partition("</think>")
    return thought.removeprefix("<think>").strip(), said.strip()


def test_a_grammar_leaves_the_thought_alone(thinker: LLM) -> None:
    assert thought_and_answer(thinker) == ("It is seven.", "Seven!")
    assert thought_and_answer(thinker, grammar=Grammar("regex", "[0-9]{3}"))[0] == "It is seven."
    assert re.fullmatch("[0-9]{3}", thought_and_answer(thinker, grammar=Grammar("regex", "[0-9]{3}"))[1])


@pytest.mark.parametrize(("budget", "thought"), [(2, "It is"), (1, "It"), (0, ""), (50, "It is seven.")])
def test_a_budget_ends_the_thought(thinker: LLM, budget: int, thought: str) -> None:
    assert thought_and_answer(thinker, thinking_budget=budget)[0] == thought
    bound = thought_and_answer(thinker, thinking_budget=budget, grammar=choice(["six", "eight"]))
    # Where it may not think, nothing stands before the answer.
    assert bound in [(thought, "six"), (thought, "eight"), ("six", ""), ("eight", "")]
    answer = thinker.chat(
        [{"role": "user", "content": "hi"}], temperature=0, max_tokens=60, thinking_budget=budget, n=2
    )
    assert answer.text == answer.others[0].text


def test_a_model_that_does_not_think_keeps_any_budget(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "hi"}], temperature=0, thinking_budget=0)
    assert answer.text == "".join(ANSWER)
    with pytest.raises(LocalInferError, match="thinking_budget"):
        SamplingParams(thinking_budget=-1)
