"""Formats of calls and thoughts in the manner of further families, each as a small template of our own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer_texts import TOOLS, WEATHER, answer_text, call, conversation, formats, joined, read, reader_for, reader_of
from localinfer.text.answer_reader import AnswerReader
from localinfer.text.chat_template import ChatTemplate
from localinfer.text.format_probe import reasoning_format, tool_format
from localinfer.text.tool_format import HARMONY, HARMONY_REASONING, ReasoningFormat, ToolFormat

_LIST = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
_TURNS = """{%% for m in messages %%}<|im_start|>{{ m.role }}
{%% if m.role == 'assistant' %%}%s{%% else %%}{{ m.content }}{%% endif %%}<|im_end|>
{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant
{%% endif %%}"""


def family(written: str, *, listed: str = _LIST) -> ChatTemplate:
    """A template that writes an assistant's message `m` so."""
    return ChatTemplate(listed + _TURNS % written, "<BOS>", "<EOS>")


def calls(written: str, between: str = "", *, opened: str = "", closed: str = "") -> str:
    """Writes the content and the calls of a message, each as `written`, where `c` is its function."""
    each = f"{{% for t in m.tool_calls %}}{{% set c = t.function %}}{written}"
    each += f"{{% if not loop.last %}}{between}{{% endif %}}{{% endfor %}}"
    return f"{{{{ m.content }}}}{{% if m.tool_calls %}}{opened}{each}{closed}{{% endif %}}"


_PAIRS = "{% for k, v in c.arguments.items() %}%s{% endfor %}"
_VALUE = "{{ v if v is string else v | tojson }}"
_PYTHON = """{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}=\
{% if v is none or v is boolean %}{{ v }}{% else %}{{ v | tojson }}{% endif %}\
{% if not loop.last %}, {% endif %}{% endfor %})"""

FAMILIES = {
    "hermes": family(
        calls('<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>', "\n")
    ),
    "llama 3": family(calls('{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}')),
    "qwen3-coder": family(
        calls(
            "<tool_call>\n<function={{ c.name }}>\n"
            + _PAIRS.replace("%s", f"<parameter={{{{ k }}}}>\n{_VALUE}\n</parameter>\n")
            + "</function>\n</tool_call>",
            "\n",
        )
    ),
    "glm": family(
        calls(
            "<tool_call>{{ c.name }}\n"
            + _PAIRS.replace("%s", f"<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{_VALUE}</arg_value>\n")
            + "</tool_call>",
            "\n",
        )
    ),
    "typed pairs": family(
        calls(
            '<invoke name="{{ c.name }}">\n'
            + _PAIRS.replace(
                "%s",
                '<parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
                + _VALUE
                + "</parameter>\n",
            )
            + "</invoke>\n",
            opened="\n\n<function_calls>\n",
            closed="</function_calls>",
        )
    ),
    "functionary 3.1": family(calls("<function={{ c.name }}>{{ c.arguments | tojson }}</function>")),
    "deepseek r1": family(
        calls(
            "<｜tool▁call▁begin｜>{{ t.type }}<｜tool▁sep｜>{{ c.name }}\n```json\n{{ c.arguments | tojson }}\n```"
            "<｜tool▁call▁end｜>",
            "\n",
            opened="<｜tool▁calls▁begin｜>",
            closed="<｜tool▁calls▁end｜>",
        )
    ),
    "mistral": family(calls("[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}")),
    "solar": family(
        calls(
            "<|tool_call:begin|>{{ t.id }}<|tool_call:name|>{{ c.name }}<|tool_call:args|>{{ c.arguments | tojson }}"
            "<|tool_call:end|>",
            opened="<|tool_calls|>",
        )
    ),
    "kimi": family(
        calls(
            "<|call_begin|>functions.{{ c.name }}:{{ loop.index0 }}<|args|>{{ c.arguments | tojson }}<|call_end|>",
            opened="<|section_begin|>",
            closed="<|section_end|>",
        )
    ),
    "apertus": family(
        calls(
            '{"{{ c.name }}": {{ c.arguments | tojson }}}', ", ", opened="<|tools_prefix|>[", closed="]<|tools_suffix|>"
        )
    ),
    "command r7b": family(
        "{% if m.tool_calls %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>"
        + calls(
            '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", '
            '"parameters": {{ c.arguments | tojson }}}',
            ",\n    ",
            opened="<|START_ACTION|>[\n    ",
            closed="\n]<|END_ACTION|>",
        )
        + "{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}"
    ),
    "nemotron": family(
        calls(
            '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}',
            ", ",
            opened="<TOOLCALL>[",
            closed="]</TOOLCALL>",
        )
    ),
    "wrapped": family(
        calls(
            '{"type": "function", "function": {"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}}',
            "\n",
            opened="<calls>\n",
            closed="\n</calls>",
        )
    ),
    "gemma": family(
        calls(
            "<|tool_call>call:{{ c.name }}{{ '{' }}"
            '{% for k, v in c.arguments | dictsort %}{{ k }}:{% if v is string %}<|"|>{{ v }}<|"|>'
            "{% elif v is sequence %}[{% for e in v %}"
            '{% if e is string %}<|"|>{{ e }}<|"|>{% else %}{{ e | tojson }}{% endif %}'
            "{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}"
            "{% if not loop.last %},{% endif %}{% endfor %}}<tool_call|>"
        )
    ),
    "lfm2": family(calls(_PYTHON, ", ", opened="<|tool_call_start|>[", closed="]<|tool_call_end|>")),
    "olmo 3": family(calls(_PYTHON, "\n", opened="<function_calls>\n", closed="\n</function_calls>")),
    "llama 4": family(calls(_PYTHON, ", ", opened="[", closed="]")),
}
FAMILIES["functionary 3.2"] = ChatTemplate(
    _LIST
    + """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% if m.content %}>>>all\n{{ m.content }}{% endif %}\
{% for t in m.tool_calls or [] %}>>>{{ t.function.name }}\n{{ t.function.arguments | tojson }}{% endfor %}\
{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n>>>{% endif %}""",
    "<BOS>",
    "<EOS>",
)
CITY = 'Zürich, "old town" {x}'
WANTED: list[tuple[str, Any]] = [
    ("get_weather", {"city": CITY, "days": 2026, "units": ["C", 1.5, None, True]}),
    ("get-time", {"zone": "UTC+1"}),
]
CALLS = [call(tool, number, **arguments) for number, (tool, arguments) in enumerate(WANTED)]


def new_reader(name: str) -> Any:
    form = formats(FAMILIES[name])[1]
    begun = form.call_open if form is not None and form.plain_name else ""
    return reader_of(FAMILIES[name], **({"begun": begun} if begun else {}))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_template_writes_is_read_back_wherever_it_is_cut(name: str) -> None:
    source = FAMILIES[name]
    form = tool_format(source)
    assert form is not None
    assert form.parallel
    for made, expected in ((CALLS, WANTED), (CALLS[:1], WANTED[:1]), ([call("get-time")], [("get-time", {})])):
        text = answer_text(source, content="", tool_calls=made)
        for size in (1, 2, 3, 7, len(text)):
            assert joined(read(new_reader(name), text, size)) == ("", "", expected), (size, text)


@pytest.mark.parametrize("name", FAMILIES)
def test_text_beside_calls_is_text(name: str) -> None:
    source = FAMILIES[name]
    said = "So: 1 < 2, [x] and {y}.\n\nDone."
    plain = answer_text(source, content=said)
    both = answer_text(source, content=said, tool_calls=CALLS)
    for size in (1, 5, len(both)):
        assert joined(read(new_reader(name), plain, size)) == ("", said, [])
        if tool_format(source).trigger:  # type: ignore[union-attr]
            assert joined(read(new_reader(name), both, size)) == ("", said, WANTED)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_follows_calls_is_text(name: str) -> None:
    text = answer_text(FAMILIES[name], content="", tool_calls=CALLS)
    for size in (1, 5, len(text)):
        assert joined(read(new_reader(name), f"{text}\n\nThat is all, [really].", size)) == (
            "",
            "That is all, [really].",
            WANTED,
        )


def _forms() -> dict[str, tuple[ReasoningFormat | None, ToolFormat | None]]:
    found = {name: formats(source) for name, source in FAMILIES.items() if name != "functionary 3.2"}
    thinking = ReasoningFormat("<think>", "</think>", after="\n\n")
    found |= {name: (found[name][0] or thinking, found[name][1]) for name in ("hermes", "glm", "qwen3-coder")}
    return {**found, "harmony": (HARMONY_REASONING, HARMONY)}


FORMS = _forms()
HARMONY_ANSWER = (
    "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Oslo"}<|call|>'
)
ANSWERS = {
    name: answer_text(FAMILIES[name], content="I look.", tool_calls=CALLS) if name in FAMILIES else HARMONY_ANSWER
    for name in FORMS
}
ANSWERS |= {name: f"<think>\nWell.\n</think>\n\n{ANSWERS[name]}" for name in ("hermes", "glm", "qwen3-coder")}
damage = st.lists(
    st.tuples(
        st.sampled_from(("delete", "repeat", "insert", "mark")),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 30),
        st.text(alphabet="<>/{}[]()\"'\\ \n:,=|ab1", max_size=8),
    ),
    max_size=4,
)


def damaged(name: str, changes: list[tuple[str, float, int, str]]) -> str:
    text = ANSWERS[name]
    reasoning, form = FORMS[name]
    marks = [mark for each in (reasoning, form) if each is not None for mark in each.marks if mark]
    marks = marks or ["{"]
    for kind, where, size, new in changes:
        place = int(where * (len(text) + 1))
        if kind == "delete":
            text = text[:place] + text[place + size :]
        elif kind == "repeat":
            text = text[:place] + text[place : place + size] * 2 + text[place + size :]
        else:
            text = text[:place] + (new if kind == "insert" else marks[size % len(marks)]) + text[place:]
    return text


@given(st.sampled_from(sorted(FORMS)), damage, st.integers(1, 40))
def test_damage_never_fails_and_cuts_make_no_difference(
    name: str, changes: list[tuple[str, float, int, str]], size: int
) -> None:
    text = damaged(name, changes)
    whole = joined(read(reader_for(*FORMS[name]), text, max(len(text), 1)))
    assert joined(read(reader_for(*FORMS[name]), text, 1)) == whole
    assert joined(read(reader_for(*FORMS[name]), text, size)) == whole


@given(st.sampled_from(sorted(FORMS)), damage, st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_damage_loses_no_words(name: str, changes: list[tuple[str, float, int, str]], places: list[float]) -> None:
    text = damaged(name, changes)
    words = [f"wörd{number}" for number in range(len(places))]
    for word, where in zip(words, places, strict=True):
        text = text[: int(where * len(text))] + word + text[int(where * len(text)) :]
    reasoning, content, made = joined(read(reader_for(*FORMS[name]), text, 5))
    found = f"{reasoning} {content} {made}"
    for word in words:
        if text.count(word) and not _in_header(text, word):
            assert word in found


def _in_header(text: str, word: str) -> bool:
    """Whether the word stands in what names a channel, an id or a number: such is no text."""
    before, _, _ = text.partition(word)
    header = re.search(r'<\|channel\|>[^<]*$|<\|start\|>[^<]*$|<\|constrain\|>[^<]*$|"id"|_id": "[^"]*$', before)
    return header is not None or re.search(r"<\|tool_call:begin\|>[^<]*$|string=\"[^>]*$", before) is not None


@given(st.text(alphabet='<>/{}[]"\\ \n:,abtool_call_nmeargus1', max_size=200), st.integers(1, 9))
def test_any_text_comes_out(text: str, size: int) -> None:
    for name in ("hermes", "llama 3", "glm", "lfm2"):
        reasoning, content, made = joined(read(reader_for(*FORMS[name]), text, size))
        if not made and not reasoning and "think>" not in text:
            assert content.strip() == text.strip()


PYTHON = ToolFormat("python", "", "", open="<|s|>", close="<|e|>", listed=True)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("a=1, b='x'", {"a": 1, "b": "x"}),
        ('a=-1.5e3, b="it\'s"', {"a": -1500.0, "b": "it's"}),
        ("a='it\\'s \\n \\u00e9 \\x41 \\d'", {"a": "it's \n é A \\d"}),
        ("a=None, b=True, c=false, d=null", {"a": None, "b": True, "c": False, "d": None}),
        ("a=[1, [2, 'x'],], b=(1, 2), c={'k': {\"l\": [ ]}}", {"a": [1, [2, "x"]], "b": [1, 2], "c": {"k": {"l": []}}}),
        ("a='''two\nlines''', b=''", {"a": "two\nlines", "b": ""}),
        ("a = ')', b = '[f(a=1)]'", {"a": ")", "b": "[f(a=1)]"}),
        ("", {}),
    ],
)
def test_values_as_python_has_them(text: str, arguments: Any) -> None:
    for size in (1, 3, 100):
        assert joined(read(AnswerReader(None, PYTHON), f"<|s|>[f({text})]<|e|>", size)) == ("", "", [("f", arguments)])


@pytest.mark.parametrize("text", ["[f(1)]", "[f(a=)]", "[f(a=b)]", "[f(a=1 b=2)]", "[f(a=1, a=2)]", "f", "[f(a=1)"])
def test_what_is_no_call_in_python_is_text(text: str) -> None:
    for size in (1, 100):
        assert joined(read(AnswerReader(None, PYTHON), f"<|s|>{text}<|e|>", size)) == ("", f"<|s|>{text}<|e|>", [])


def test_models_that_write_python_may_write_json() -> None:
    text = '<|s|>[{"name": "f", "arguments": {"a": 1}}]<|e|>'
    for size in (1, 100):
        assert joined(read(AnswerReader(None, PYTHON), text, size)) == ("", "", [("f", {"a": 1})])


def test_arguments_are_typed_by_the_schema_of_the_tool() -> None:
    form = formats(FAMILIES["glm"])[1]
    pairs = [
        ("city", "007"),
        ("days", "3"),
        ("units", "['C', None]"),
        ("more", "null"),
        ("text", "[no JSON"),
        ("n", "08"),
    ]
    written = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
    [(_, arguments)] = joined(AnswerReader(None, form, TOOLS).whole(f"<tool_call>get_weather\n{written}</tool_call>"))[
        2
    ]
    assert arguments == {"city": "007", "days": 3, "units": ["C", None], "more": None, "text": "[no JSON", "n": "08"}


def test_a_value_keeps_its_white_space() -> None:
    form = formats(FAMILIES["qwen3-coder"])[1]
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n  a\n\n</parameter>\n</function>\n</tool_call>"
    assert joined(AnswerReader(None, form, TOOLS).whole(text))[2] == [("get_weather", {"city": "\n  a\n"})]


PHI = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
{% if m.role == 'system' and m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}<|end|>{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def test_tools_may_be_shown_in_a_field_of_the_system_message() -> None:
    source = ChatTemplate(PHI, "<BOS>", "<EOS>")
    form = tool_format(source)
    assert form is not None
    assert form.trigger == "<|tool_call|>"
    text = conversation(source, {"role": "assistant", "content": "", "tool_calls": CALLS})
    assert text.startswith('<|system|><|tool|>[{"name": "get_weather", "description": ')
    assert '<|assistant|><|tool_call|>[{"name": "get_weather", "arguments": {"city": ' in text
    assert joined(read(reader_of(source), answer_text(source, content="", tool_calls=CALLS), 3))[2] == WANTED


def test_tools_may_be_shown_under_another_name() -> None:
    source = family(
        "{{ m.content }}", listed="{% if xml_tools %}<tool_call>{{ xml_tools | tojson }}</tool_call>{% endif %}"
    )
    form = tool_format(source)
    assert form is not None
    assert form.shown_as == "xml_tools"
    text = conversation(source, {"role": "assistant", "content": "Hm.", "tool_calls": CALLS[:1]})
    assert '"name": "get_weather"' in text
    assert '\nHm.<tool_call>\n{"name": "get_weather", "arguments": {"city": ' in text


def test_a_template_that_shows_tools_but_no_calls_has_no_format() -> None:
    assert tool_format(family("{{ m.content }}")) is None


@pytest.mark.parametrize(
    ("written", "marks"),
    [
        ("<a>{{ m.reasoning_content }}</a>{{ m.content }}", ("<a>", "</a>")),
        ("<a>\n{{ m.thinking }}\n</a>\n\n{{ m.content }}", ("<a>", "</a>")),
        ("[THINK]{{ m.reasoning }}[/THINK]{{ m.content }}", ("[THINK]", "[/THINK]")),
        ("{{ m.content.split('</think>')[-1] }}{# <think> #}", ("<think>", "</think>")),
        ("{{ m.content }}", None),
        ("{{ m.reasoning_content }}{{ m.content }}", None),
    ],
)
def test_marks_of_thoughts(written: str, marks: tuple[str, str] | None) -> None:
    form = reasoning_format(family(written))
    assert (None if form is None else (form.open, form.close)) == marks


def test_marks_around_what_is_said_are_left_out() -> None:
    reasoning, form = formats(FAMILIES["command r7b"])
    assert reasoning is not None
    assert (reasoning.open, reasoning.answer_open) == ("<|START_THINKING|>", "<|START_RESPONSE|>")
    text = "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"
    for size in (1, 4, len(text)):
        assert joined(read(AnswerReader(reasoning, form), text, size)) == ("Hm.", "Yes.", [])


def test_an_answer_under_way_lets_out_what_is_certain() -> None:
    reader = AnswerReader(None, formats(FAMILIES["glm"])[1], {"get_weather": WEATHER["function"]["parameters"]})
    assert [len(reader.push(text)) for text in ("Hello", " <tool", "box>", "\n<tool_call>f", "\n")] == [1, 0, 1, 0, 0]
