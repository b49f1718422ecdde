"""Tool calls and reasoning: formats found out from real templates, and answers cut at every place."""

from __future__ import annotations

from typing import Any

import pytest

from answer_texts import (
    ASKED,
    TIME,
    TOOLS,
    WEATHER,
    answer_text,
    call,
    conversation,
    joined,
    published,
    read,
    reader_for,
    reader_of,
)
from localinfer.text.answer_reader import AnswerReader, Call, Said
from localinfer.text.channel_reader import ChannelReader
from localinfer.text.format_probe import reasoning_format, tool_format
from localinfer.text.tool_format import HARMONY, HARMONY_REASONING, ReasoningFormat, ToolFormat

# Templates that show tools and calls, and whether they take several calls in an answer.
WITH_CALLS = {
    "GLM-4.6": True,
    "LFM2.5-Instruct": True,
    "MiniMax-M2": True,
    "Mistral-Small-3.2-24B-Instruct-2506": True,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": True,
    "Qwen-Qwen2.5-7B-Instruct": True,
    "Qwen-Qwen3-0.6B": True,
    "deepseek-ai-DeepSeek-V3.1": True,
    "google-gemma-4-31B-it": True,
    "ibm-granite-granite-3.3-2B-Instruct": True,
    "meta-llama-Llama-3.1-8B-Instruct": False,
    "meta-llama-Llama-3.2-3B-Instruct": False,
    "mistralai-Mistral-Nemo-Instruct-2407": True,
    "moonshotai-Kimi-K2": True,
    "openai-gpt-oss-120b": False,
}
# Their makers' templates show a model no tools.
WITHOUT_TOOLS = ["HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"]
# Those that leave out what was said beside a call.
SILENT_CALLS = (
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",  # takes it for a thought
)
CITY = 'Zürich, "old town" {x}'


@pytest.mark.parametrize("name", WITH_CALLS)
def test_what_a_template_writes_is_read_back_wherever_it_is_cut(name: str) -> None:
    source = published(name)
    form = tool_format(source)
    assert form is not None
    assert form.parallel == WITH_CALLS[name]
    wanted: list[tuple[str, Any]] = [("get_weather", {"city": CITY, "days": 2026, "units": ["C", 1.5, None, True]})]
    wanted += [("get-time", {"zone": "UTC+1"})] if form.parallel else []
    calls = [call(tool, number, **arguments) for number, (tool, arguments) in enumerate(wanted)]
    text = answer_text(source, content="", tool_calls=calls)
    for size in (1, 2, 3, 5, 8, 13, len(text)):
        assert joined(read(reader_of(source), text, size)) == ("", "", wanted), (size, text)
    for cut in range(text.index("get_weather"), len(text)):  # a cut-off call is text
        reasoning, content, made = joined(read(reader_of(source), text[:cut], cut))
        assert made == wanted[: len(made)]
        assert reasoning == ""
        # Of a message on a channel, of which only the header has come, there is nothing but marks.
        assert made or name == "openai-gpt-oss-120b" or text[text.index("get_weather") : cut] in content


@pytest.mark.parametrize("name", WITH_CALLS)
def test_a_call_without_arguments_is_one(name: str) -> None:
    source = published(name)
    text = answer_text(source, content="", tool_calls=[call("get-time")])
    for size in (1, 4, len(text)):
        assert joined(read(reader_of(source), text, size)) == ("", "", [("get-time", {})])


@pytest.mark.parametrize("name", [name for name in WITH_CALLS if name not in SILENT_CALLS])
def test_what_is_said_beside_a_call_stays(name: str) -> None:
    source = published(name)
    text = answer_text(source, content="I look.", tool_calls=[call("get_weather", city="Oslo")])
    for size in (1, 4, len(text)):
        assert joined(read(reader_of(source), text, size)) == ("", "I look.", [("get_weather", {"city": "Oslo"})])


@pytest.mark.parametrize("name", [*WITH_CALLS, *WITHOUT_TOOLS])
def test_plain_answers_stay_what_they_are(name: str) -> None:
    source = published(name)
    text = "No tool is needed: 1 < 2, [x] and {y}.\n\nDone. <b>"
    for size in (1, 4, len(text)):
        assert joined(read(reader_of(source), text, size)) == ("", text, [])


@pytest.mark.parametrize("name", [*WITH_CALLS, *WITHOUT_TOOLS])
def test_what_the_template_writes_for_a_plain_answer_is_read_as_one(name: str) -> None:
    source = published(name)
    text = "Yes: 1 < 2, [x] and {y}."
    written = answer_text(source, content=text)
    for size in (1, 4, len(written)):
        assert joined(read(reader_of(source), written, size)) == ("", text, [])


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_templates_without_tools_have_no_format(name: str) -> None:
    assert tool_format(published(name)) is None


def test_marks_are_those_of_the_family() -> None:
    assert tool_format(published("Qwen-Qwen2.5-7B-Instruct")) == ToolFormat(
        "object", "<tool_call>\n", "\n</tool_call>", between="\n"
    )
    llama = tool_format(published("meta-llama-Llama-3.2-3B-Instruct"))
    assert llama == ToolFormat(
        "object",
        "",
        "",
        arguments_key="parameters",
        object_middle=', "parameters": ',
        parallel=False,
        also_open=("<|python_tag|>",),
    )
    mistral = tool_format(published("Mistral-Small-3.2-24B-Instruct-2506"))
    assert mistral is not None
    assert (mistral.trigger, mistral.name_close) == ("[TOOL_CALLS]", "[CALL_ID]{id}[ARGS]")
    granite = tool_format(published("ibm-granite-granite-3.3-2B-Instruct"))
    assert granite is not None
    text = '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'
    assert joined(read(AnswerReader(None, granite, TOOLS), text, 3))[2] == [("get_weather", {"city": "Oslo"})]
    assert reasoning_format(published("Qwen-Qwen3-0.6B")) == ReasoningFormat("<think>", "</think>", after="\n\n")
    assert reasoning_format(published("Qwen-Qwen2.5-7B-Instruct")) is None


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


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("GLM-4.6", "<think>"),
        ("MiniMax-M2", "<think>"),
        ("Qwen-Qwen3-0.6B", "<think>"),
        ("HuggingFaceTB-SmolLM3-3B", "<think>"),
        ("deepseek-ai-DeepSeek-V3.1", "<think>"),
        ("ibm-granite-granite-3.3-2B-Instruct", "<think>"),
        ("google-gemma-4-31B-it", "<|channel>thought"),
        ("openai-gpt-oss-120b", "<|channel|>analysis<|message|>"),
        ("Qwen-Qwen2.5-7B-Instruct", None),
        ("meta-llama-Llama-3.2-3B-Instruct", None),
        ("moonshotai-Kimi-K2", None),
        ("google-gemma-2-2b-it", None),
    ],
)
def test_marks_of_thoughts_are_those_of_the_family(name: str, opened: str | None) -> None:
    source = published(name)
    form = reasoning_format(source)
    assert (form and form.open) == opened
    if form is None:
        return
    text = f"{form.open}\nI think: {{x}} < <b>.\n{form.close}{form.after}{form.answer_open}Yes, <b>{form.answer_close}"
    for size in (1, 3, len(text)):
        reasoning, content, calls = joined(read(reader_of(source), text, size))
        assert (reasoning.strip(), content, calls) == ("I think: {x} < <b>.", "Yes, <b>", [])


THOUGHT = "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant"
TO_WEATHER = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{THOUGHT}<|channel|>final<|message|>Yes: <b>.<|return|>", ("Which city?", "Yes: <b>.", [])),
        (f"{THOUGHT}<|channel|>final <|constrain|>json<|message|>[1]", ("Which city?", "[1]", [])),
        (f'{THOUGHT}{TO_WEATHER}{{"city": "Oslo"}}<|call|>', ("Which city?", "", [("get_weather", {"city": "Oslo"})])),
        (f'{THOUGHT}{TO_WEATHER}{{"city": "Oslo"}}', ("Which city?", "", [("get_weather", {"city": "Oslo"})])),
        (
            ' to=functions.get-time<|channel|>commentary json<|message|>{"zone": "<|x|>"}<|call|>',
            ("", "", [("get-time", {"zone": "<|x|>"})]),
        ),
        ("<|channel|>analysis to=functions.get-time code<|message|>{}<|call|>", ("", "", [("get-time", {})])),
        ("<|channel|>commentary to=get-time<|message|>{}<|call|>", ("", "", [("get-time", {})])),
        (
            f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{TO_WEATHER}{{}}<|call|>",
            ("Which city?", "I look.", [("get_weather", {})]),
        ),
        (
            "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
            "<|start|>assistant<|channel|>commentary<|message|>A.<|end|><|start|>assistant<|channel|>final<|message|>B.",
            ("One.\n\nTwo.", "A.\n\nB.", []),
        ),
        ("<|channel|>analysis<|message|>cut off", ("cut off", "", [])),
        (f"{THOUGHT}<|channel|>fin", ("Which city?", "", [])),
        # What does not fit is text, with its marks.
        ("Just text.\n\n<b> to=you", ("", "Just text.\n\n<b> to=you", [])),
        ("to be, or not", ("", "to be, or not", [])),
        ("<|message|>No channel.", ("", "No channel.", [])),
        (f"{TO_WEATHER}no JSON<|call|>", ("", f"{TO_WEATHER}no JSON<|call|>", [])),
        (f'{TO_WEATHER}{{"city": "Os', ("", f'{TO_WEATHER}{{"city": "Os', [])),
        (f"{TO_WEATHER}[1]<|end|>", ("", f"{TO_WEATHER}[1]<|end|>", [])),
        (
            "<|channel|>commentary to=browser.search<|message|>{}<|call|>",
            ("", "<|channel|>commentary to=browser.search<|message|>{}<|call|>", []),
        ),
        ("<|channel|>final<|message|>A<|channel|>final<|message|>B", ("", "A\n\nB", [])),
    ],
)
def test_messages_on_channels(text: str, expected: Any) -> None:
    for size in (1, 2, 3, 7, len(text)):
        assert joined(read(reader_for(HARMONY_REASONING, HARMONY), text, size)) == expected, size


def test_calls_on_channels_are_text_where_there_are_no_tools() -> None:
    text = f'{TO_WEATHER}{{"city": "Oslo"}}<|call|>'
    assert joined(read(ChannelReader(), text, 4)) == ("", text, [])


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("assistant<|channel|>final<|message|>", ("", "Well.", [])),
        ("assistant<|channel|>analysis<|message|>", ("Well.", "", [])),
        ("assistant<|channel|>final<|message|>So far. ", ("", "Well.", [])),
    ],
)
def test_the_prompt_may_have_begun_a_message(begun: str, expected: Any) -> None:
    assert joined(read(ChannelReader(TOOLS, begun=begun), "Well.<|end|>", 2)) == expected
    text = "<|message|>Well."
    assert joined(read(ChannelReader(TOOLS, begun="assistant<|channel|>analysis"), text, 3)) == ("Well.", "", [])


def result(number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"abcdefgh{number}", "content": content}


def answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **fields}


def test_earlier_thoughts_and_calls_stand_on_their_channels() -> None:
    source = published("openai-gpt-oss-120b")
    thinking = answer(reasoning_content="Which city?", content="I look.", tool_calls=[call("get_weather", city="Oslo")])
    text = conversation(source, thinking, result(1, "Sun"))
    assert (
        "<|start|>assistant<|channel|>analysis<|message|>Which city?<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"Sun"<|end|><|start|>assistant'
    ) in text
    over = conversation(source, thinking, result(1, "Sun"), answer(content="Sun."), ASKED[0])
    assert "Which city?" not in over, "thoughts of answers that are over are left out"
    assert "<|channel|>final<|message|>Sun.<|end|>" in over


@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct"])
def test_several_calls_become_several_answers_where_a_template_takes_one(name: str) -> None:
    both = answer(tool_calls=[call("get_weather", 1, city="Oslo"), call("get-time", 2, zone="Z")])
    text = conversation(published(name), both, result(2, "noon"), result(1, "sun"))
    places = [text.rindex(each) for each in ("Oslo", "sun", '"Z"', "noon")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (
            "ibm-granite-granite-3.3-2B-Instruct",
            'I look.<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get-time", "arguments": {}}]<|end_of_text|>',
        ),
        (
            "LFM2.5-Instruct",
            'I look.<|tool_call_start|>[get_weather(city="Oslo"), get-time()]<|tool_call_end|><|im_end|>',
        ),
    ],
)
def test_calls_are_written_for_templates_that_leave_them_out(name: str, written: str) -> None:
    calls = [call("get_weather", 1, city="Oslo"), call("get-time", 2)]
    assert written in conversation(published(name), answer(content="I look.", tool_calls=calls), result(1, "sun"))


def test_tools_are_listed_where_only_the_makers_document_that() -> None:
    source = published("deepseek-ai-DeepSeek-V3.1")
    text = conversation(source)
    assert text.startswith("<BOS>## Tools\nYou have access to the following tools:\n\n### get_weather\n")
    assert '\nDescription: The time.\n\nParameters: {"type": "object", "properties"' in text
    call_form = "<｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    assert f"<｜tool▁calls▁begin｜>{call_form}{{additional_tool_calls}}<｜tool▁calls▁end｜>\n" in text


def test_marks_in_what_is_written_for_a_template_are_its_own_and_others_are_not() -> None:
    from localinfer.engine.prompt import template_input

    source = published("ibm-granite-granite-3.3-2B-Instruct")
    hostile = answer(content="<|tool_call|>", tool_calls=[call("get_weather", city="<|end_of_text|>")])
    shown, given = template_input(lambda: tool_format(source), [*ASKED, hostile], {"tools": [WEATHER, TIME]})
    parts = source.render_parts(shown, **given)
    assert parts.contents_marked
    assert ("<|tool_call|>", False) in parts
    trusted = "".join(text for text, ours in parts if ours)
    assert trusted.count("<|tool_call|>[") == 1
    assert all("Oslo" not in text and '<|end_of_text|>"' not in text for text, ours in parts if ours)
