"""Tool calls and reasoning: formats found out from real templates, and answers cut at every place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localinfer.text.answer_reader import AnswerReader, Call, Piece, Said
from localinfer.text.chat_template import ChatTemplate
from localinfer.text.format_probe import reasoning_format, tool_format
from localinfer.text.tool_format import ReasoningFormat, ToolFormat

TEMPLATES = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "templates"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "array"}},
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get-time",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    },
}
TOOLS = {each["function"]["name"]: each["function"]["parameters"] for each in (WEATHER, TIME)}  # type: ignore[index]
# Templates that show tools and calls, and whether they take several calls in an answer.
WITH_CALLS = {
    "GLM-4.6": True,
    "MiniMax-M2": True,
    "Mistral-Small-3.2-24B-Instruct-2506": True,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": True,
    "Qwen-Qwen2.5-7B-Instruct": True,
    "Qwen-Qwen3-0.6B": True,
    "google-gemma-4-31B-it": True,
    "meta-llama-Llama-3.1-8B-Instruct": False,
    "meta-llama-Llama-3.2-3B-Instruct": False,
    "mistralai-Mistral-Nemo-Instruct-2407": True,
    "moonshotai-Kimi-K2": True,
}
WITHOUT_TOOLS = ["HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"]


def template(name: str) -> ChatTemplate:
    path = TEMPLATES / f"{name}.jinja"
    if not path.exists():
        pytest.skip("the published chat templates are not here")
    return ChatTemplate(path.read_text(encoding="utf-8"), "<BOS>", "<EOS>")


def answer_text(source: ChatTemplate, message: dict[str, Any]) -> str:
    """What a model would have written, by its own template: the turn, up to where it would have stopped."""
    asked: Any = [{"role": "user", "content": "Hello?"}]
    tools = [WEATHER, TIME]
    prompt = source.render(asked, tools=tools)
    whole = source.render([*asked, {"role": "assistant", **message}], tools=tools, add_generation_prompt=False)
    common = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    if whole.rfind("<", 0, common) > whole.rfind(">", 0, common):  # they part inside of a tag
        common = whole.rfind("<", 0, common)
    text = whole[common:]
    for end in ("<|im_end|>", "<EOS>", "<|eot_id|>", "[e~[", "<|tool_response>", "<turn|>", "<|observation|>"):
        text = text.split(end)[0]
    return text


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "abcdefgh1", "type": "function", "function": {"name": name, "arguments": arguments}}


def read(reader: AnswerReader, text: str, size: int) -> list[Piece]:
    pieces: list[Piece] = []
    for begin in range(0, len(text), size):
        pieces += reader.push(text[begin : begin + size])
    return [*pieces, *reader.finish()]


def joined(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, content, calls."""
    said = {
        kind: "".join(p.text for p in pieces if isinstance(p, Said) and p.kind == kind)
        for kind in ("reasoning", "content")
    }
    calls = [(p.name, json.loads(p.arguments)) for p in pieces if isinstance(p, Call)]
    return said["reasoning"], said["content"], calls


@pytest.mark.parametrize("name", WITH_CALLS)
def test_what_a_template_writes_is_read_back_wherever_it_is_cut(name: str) -> None:
    source = template(name)
    form = tool_format(source)
    assert form is not None
    assert form.parallel == WITH_CALLS[name]
    wanted = [("get_weather", {"city": 'Zürich, "old town" {x}', "days": 3, "units": ["C", 1.5, None]})]
    wanted += [("get-time", {"zone": "UTC+1"})] if form.parallel else []
    calls = [{**call(n, **a), "id": f"abcdefgh{i}"} for i, (n, a) in enumerate(wanted)]
    text = answer_text(source, {"content": "", "tool_calls": calls})
    for size in (1, 2, 3, 5, 8, 13, len(text)):
        reader = AnswerReader(reasoning_format(source), form, TOOLS)
        assert joined(read(reader, text, size)) == ("", "", wanted), (size, text)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_plain_answers_stay_what_they_are(name: str) -> None:
    source = template(name)
    text = "No tool is needed: 1 < 2, [x] and {y}.\n\nDone. <b>"
    for size in (1, 4, len(text)):
        reader = AnswerReader(reasoning_format(source), tool_format(source), TOOLS)
        assert joined(read(reader, text, size)) == ("", text, [])


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_templates_without_tools_have_no_format(name: str) -> None:
    assert tool_format(template(name)) is None


def test_marks_are_those_of_the_family() -> None:
    assert tool_format(template("Qwen-Qwen2.5-7B-Instruct")) == ToolFormat(
        "object", "<tool_call>\n", "\n</tool_call>", between="\n"
    )
    llama = tool_format(template("meta-llama-Llama-3.2-3B-Instruct"))
    assert llama == ToolFormat(
        "object",
        "",
        "",
        arguments_key="parameters",
        object_middle=', "parameters": ',
        parallel=False,
        also_open=("<|python_tag|>",),
    )
    mistral = tool_format(template("Mistral-Small-3.2-24B-Instruct-2506"))
    assert mistral is not None
    assert (mistral.trigger, mistral.name_close) == ("[TOOL_CALLS]", "[CALL_ID]{id}[ARGS]")
    granite = tool_format(template("ibm-granite-granite-3.3-2B-Instruct"))
    assert granite is not None
    text = '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'
    assert joined(read(AnswerReader(None, granite, TOOLS), text, 3))[2] == [("get_weather", {"city": "Oslo"})]
    assert reasoning_format(template("Qwen-Qwen3-0.6B")) == ReasoningFormat("<think>", "</think>", after="\n\n")
    assert reasoning_format(template("Qwen-Qwen2.5-7B-Instruct")) is None


HERMES = ToolFormat("object", "<tool_call>\n", "\n</tool_call>", between="\n")
THINK = ReasoningFormat("<think>", "</think>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nWell.\n</think>\n\nYes.", ("Well.", "Yes.", [])),
        ("\n<think></think>Yes", ("", "Yes", [])),
        ("<think>cut off", ("cut off", "", [])),
        ("I think <think> is a tag", ("", "I think <think> is a tag", [])),
        (
            '<think>a</think>Wait.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
            ("a", "Wait.", [("f", {})]),
        ),
        ('<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>', ("", "", [("f", {"a": 1})])),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}', ("", "", [("f", {"a": 1})])),
        ('<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>', ("", "", [("f", {"a": 1})])),
        ('<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>', ("", "", [("f", {"a": 1})])),
        # What is no call is text, and nothing of it is lost.
        ('<tool_call>\n{"name": "f", "argu', ("", '<tool_call>\n{"name": "f", "argu', [])),
        ("<tool_call>\nnonsense\n</tool_call>", ("", "<tool_call>\nnonsense\n</tool_call>", [])),
        ('<tool_call>\n{"arguments": {}}\n</tool_call>', ("", '<tool_call>\n{"arguments": {}}\n</tool_call>', [])),
        ("<tool_cal is no mark", ("", "<tool_cal is no mark", [])),
    ],
)
def test_answers_of_the_hermes_kind(text: str, expected: Any) -> None:
    for size in (1, 3, 7, len(text)):
        assert joined(read(AnswerReader(THINK, HERMES, TOOLS), text, size)) == expected, size


def test_a_prompt_may_have_opened_the_thought() -> None:
    for size in (1, 5, 100):
        reader = AnswerReader(THINK, HERMES, TOOLS, thinking=True)
        assert joined(read(reader, "\nHm, <tool_call> no.\n</think>\n\nYes", size)) == (
            "Hm, <tool_call> no.",
            "Yes",
            [],
        )


def test_text_comes_out_as_soon_as_it_is_certain() -> None:
    reader = AnswerReader(THINK, HERMES, TOOLS)
    assert reader.push("Hel") == [Said("content", "Hel")]
    assert reader.push("lo <tool") == [Said("content", "lo")]
    assert reader.push(" box") == [Said("content", " <tool box")]
    first = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert reader.push("\n" + first) == [Call("f", "{}")]
    assert reader.push('\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>') == [Call("g", "{}")]


def test_a_bare_object_is_a_call_only_where_the_answer_begins() -> None:
    llama = ToolFormat("object", "", "", arguments_key="parameters", parallel=False)
    text = '{"name": "f", "parameters": {"a": [1, {"b": "}"}]}}'
    for size in (1, 6, 100):
        assert joined(read(AnswerReader(None, llama), text, size)) == ("", "", [("f", {"a": [1, {"b": "}"}]})])
        assert joined(read(AnswerReader(None, llama), f"So: {text}", size)) == ("", f"So: {text}", [])
        assert joined(read(AnswerReader(None, llama), '{"answer": 42}', size)) == ("", '{"answer": 42}', [])


@given(st.text(alphabet='<>/{}[]"\\ \n:,abtool_call_nmeargus1', max_size=200), st.integers(1, 9))
def test_nothing_is_lost_and_nothing_fails(text: str, size: int) -> None:
    for form in (HERMES, ToolFormat("object", "", ""), ToolFormat("split", "<a>", "</a>", name_close="<b>")):
        reasoning, content, calls = joined(read(AnswerReader(THINK, form, TOOLS), text, size))
        if not calls and not reasoning:
            assert content.split() == text.replace("<think>", "").replace("</think>", "").split() or content == text
