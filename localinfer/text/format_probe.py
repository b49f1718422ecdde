"""How a model writes tool calls and reasoning: found out from its own chat template.

The template is rendered with an answer that calls tools, and with plain ones: what stands around the names, the
arguments and the reasoning are the marks that the model was trained to write. So a template that nobody has seen before
needs no entry here. Templates that take no calls in messages, only their text, are known by marks in their source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from localinfer.errors import LocalInferError
from localinfer.text.chat_template import ChatTemplate
from localinfer.text.special_tokens import END_OF_ANSWER
from localinfer.text.tool_format import (
    HARMONY,
    HARMONY_REASONING,
    MARK,
    SYSTEM_FIELD,
    SYSTEM_TEXT,
    ReasoningFormat,
    ToolFormat,
    first_mark,
)

# What the probes say: texts that no template has of itself.
_QUESTION, _ANSWER, _THOUGHT = "probe-question", "probe-answer-text", "probe-thought-text"
_FIRST, _SECOND = "probe_first_tool", "probe_second_tool"
_KEY, _VALUE, _OTHER_KEY, _OTHER_VALUE = "a_probe_key", "a-probe-value", "b_probe_key", "b-probe-value"
_NUMBER = 73915
_IDS = ("probeid01", "probeid02")  # nine letters and digits: Mistral's templates insist on that
_TOOL = {
    "type": "function",
    "function": {
        "name": _FIRST,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A key."}}},
    },
}

_HERMES = ToolFormat("object", "<tool_call>\n", "\n</tool_call>", between="\n")
_LFM2 = ToolFormat("python", "", "", open="<|tool_call_start|>", close="<|tool_call_end|>", listed=True)
_DEEPSEEK_NAME_CLOSE = "<｜tool▁sep｜>"  # V3.1, whose makers document how tools are listed
_OTHER_NAMES = ("xml_tools", "functions", "custom_tools", "available_tools")  # of the variable that holds tools
# Source of a template that shows no calls -> what its model writes, as its makers document it.
_KNOWN_BY_SOURCE = (
    (
        "<|/tool|>",
        ToolFormat("object", "", "", open="<|tool_call|>", close="<|/tool_call|>", listed=True),
    ),  # Phi-4-mini
    ("<|tool_call|>", ToolFormat("object", "", "", open="<|tool_call|>", listed=True)),  # Granite 3
    ("<|tool_list_start|>", _LFM2),
    ("List of tools: [", _LFM2),
    ("<tool_call>", _HERMES),
)
# Thoughts that templates do not take apart from contents.
_THOUGHT_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thinking>", "</thinking>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)
_PYTHON_TAG = "<|python_tag|>"  # Llama 3 writes it before calls, of which the templates say nothing


def tool_format(template: ChatTemplate) -> ToolFormat | None:
    """The format, or None if the template does not show tools to the model, or not how to call them."""
    if is_harmony(template):
        return HARMONY
    shown_as = _shown_as(template)
    if shown_as is None:
        return None
    variables = {shown_as: [_TOOL]} if shown_as not in (SYSTEM_FIELD, SYSTEM_TEXT) else {}
    turns = _Turns(template, variables)
    first = _call(0, _FIRST, {_KEY: _VALUE, _OTHER_KEY: _OTHER_VALUE})
    thought = reasoning_format(template)
    one, two = (
        _without_thought(thought, turns.of(calls)) for calls in ([first], [first, _call(1, _SECOND, {_KEY: _VALUE})])
    )
    if one is None or _FIRST not in one:
        known = next((form for mark, form in _KNOWN_BY_SOURCE if mark in template.source), None)
        return None if known is None else replace(known, shown_as=shown_as, shows_calls=False)
    found = _objects(one, two) or _split(turns, one, two) or _others(turns, one, two)
    if found is None or (shown_as == SYSTEM_TEXT and found.name_close != _DEEPSEEK_NAME_CLOSE):
        return None
    also = (_PYTHON_TAG,) if not found.trigger and "<|start_header_id|>" in template.source else ()
    return replace(found, shown_as=shown_as, also_open=also)


def _shown_as(template: ChatTemplate) -> str | None:
    """How tools reach the model; None if they cannot."""
    without = _rendered(template, [])
    for name in ("tools", *(name for name in _OTHER_NAMES if name in template.source)):
        given = _rendered(template, [], **{name: [_TOOL]})
        if given is not None and given != without and _FIRST in given:
            return name
    system = [{"role": "system", "content": "", "tools": _FIRST}]
    if _FIRST in (_rendered(template, [], before=system) or ""):
        return SYSTEM_FIELD
    return SYSTEM_TEXT if _DEEPSEEK_NAME_CLOSE in template.source else None


def reasoning_format(template: ChatTemplate) -> ReasoningFormat | None:
    """The marks of reasoning, or None if the template leaves it out of an answer or has no marks for it."""
    if is_harmony(template):
        return HARMONY_REASONING
    turns = _Turns(template, {"tools": [_TOOL]})
    calls = [_call(0, _FIRST, {_KEY: _VALUE})]
    header = _last_mark(turns.before_plain)
    for fields, end in (({"content": _ANSWER}, _ANSWER), ({"content": "", "tool_calls": calls}, _FIRST)):
        whole = turns.whole({**fields, "reasoning_content": _THOUGHT})
        if whole is None or _THOUGHT not in whole or whole.find(end, whole.index(_THOUGHT)) < 0:
            continue
        before, _, behind = whole.rpartition(_QUESTION)[2].partition(_THOUGHT)
        opened, closed = _last_mark(before), first_mark(behind.strip())
        if opened and closed and opened != header and closed != opened:
            between = behind.partition(closed)[2].partition(_ANSWER)[0] if end == _ANSWER else ""
            return _with_answer_marks(turns, ReasoningFormat(opened, closed, after=between))
    for opened, closed in _THOUGHT_MARKS:
        if opened in template.source and closed in template.source:
            return _with_answer_marks(turns, ReasoningFormat(opened, closed))
    return None


def is_harmony(template: ChatTemplate) -> bool:
    """Whether answers are messages on channels, as OpenAI's gpt-oss writes them."""
    return all(mark in template.source for mark in ("<|start|>", "<|channel|>", "<|message|>", "commentary"))


def _with_answer_marks(turns: _Turns, form: ReasoningFormat) -> ReasoningFormat:
    """With the marks around what is said, if the template has some (Command R)."""
    opened = _last_mark(turns.before_plain)
    closed = first_mark(turns.behind_plain)
    own = opened not in ("", form.close) and not turns.prompt.rstrip().endswith(opened)
    if form.after.rstrip().endswith(opened) and own:
        after = form.after.rstrip().removesuffix(opened)
        return replace(form, after=after, answer_open=opened, answer_close=closed)
    if own and closed:
        return replace(form, answer_open=opened, answer_close=closed)
    return replace(form, after=_white_start(form.after))


class _Turns:
    """What the template writes for answers, without the prompt that asks for them, and without what ends any answer."""

    def __init__(self, template: ChatTemplate, variables: Mapping[str, Any]) -> None:
        self._template = template
        self._variables = variables
        self.prompt = _rendered(template, [], **variables) or ""
        plain = self.whole({"content": _ANSWER}) or ""
        before, _, behind = plain.rpartition(_ANSWER)
        self.before_plain = before.rpartition(_QUESTION)[2]
        self._end = behind
        self.behind_plain = self._without_end(behind)
        self._lead = before[len(_aligned_prefix(self.prompt, before)) :]

    def whole(self, fields: Mapping[str, Any]) -> str | None:
        """The conversation with an answer; None if the template refuses it."""
        message = {"role": "assistant", **fields}
        return _rendered(self._template, [message], add_generation_prompt=False, **self._variables)

    def of(self, calls: Sequence[Mapping[str, Any]]) -> str | None:
        """An answer that calls tools."""
        whole = self.whole({"content": "", "tool_calls": list(calls)})
        if whole is None:
            return None
        turn = whole[len(_aligned_prefix(self.prompt, whole)) :]
        turn = turn.removeprefix(self._lead)  # an empty thought, for example
        turn = self._without_end(turn)
        return turn.replace(_IDS[0], "{id}").replace(_IDS[1], "{id}")

    def _without_end(self, turn: str) -> str:
        last = max(turn.rfind(text) for text in (_OTHER_VALUE, _VALUE, _SECOND, _FIRST, str(_NUMBER)))
        found = [turn.find(mark, max(last, 0)) for mark in (*END_OF_ANSWER, self._template.eos_token) if mark]
        ends = [place for place in found if place >= 0]
        return turn[: min(ends)] if ends else turn.removesuffix(_common_suffix(turn, self._end))


class _Object(NamedTuple):
    """A JSON object that calls a tool, in a text."""

    begin: int
    end: int
    name_key: str  # "" if the name is the key
    arguments_key: str
    open: str  # from its beginning to the name
    middle: str  # from the name to the arguments
    close: str


def _objects(one: str, two: str | None) -> ToolFormat | None:
    """The format of calls that are JSON objects."""
    found = _object(one, _FIRST)
    if found is None:
        return None
    lead, tail = one[: found.begin], one[found.end :]
    listed = lead.rstrip().endswith("[") and tail.lstrip().startswith("]")
    second = None if two is None else _object(two, _SECOND)
    call_open, call_close, between = lead, tail, ""
    if listed:
        opened, call_open = lead.rstrip().removesuffix("["), ""
        closed, call_close = tail.lstrip().removeprefix("]"), ""
    else:
        first = None if two is None else _object(two, _FIRST)
        gap = two[first.end : second.begin] if two and first and second and first.end <= second.begin else None
        call_close, between, call_open = _split_marks(lead, tail, gap)
        opened, closed = lead.removesuffix(call_open), tail.removeprefix(call_close)
    return ToolFormat(
        "object" if found.name_key else "keyed",
        call_open.lstrip(" ") if not opened else call_open,
        call_close,
        open=opened.lstrip(),
        close=closed,
        between=between,
        name_key=found.name_key or "name",
        arguments_key=found.arguments_key if found.name_key else "arguments",
        object_open=_numbered(found.open),
        object_middle=found.middle,
        object_close=_numbered(found.close),
        listed=listed,
        parallel=second is not None,
    )


def _object(text: str, name: str) -> _Object | None:
    """The innermost of the largest objects that stand for a call of the tool."""
    at = text.find(f'"{name}"')
    for begin in (match.start() for match in re.finditer(r"\{", text[: at + 1])):
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin)
        except ValueError:
            continue
        call = value.get("function") if isinstance(value, dict) and isinstance(value.get("function"), dict) else value
        if not isinstance(call, dict):
            continue
        arguments = next(((key, each) for key, each in call.items() if _are_arguments(each)), None)
        name_key = next((key for key, each in call.items() if each == name), "")
        if arguments is None or not (name_key or arguments[0] == name):
            continue
        begins = text.find(json.dumps(arguments[1])[:1] if isinstance(arguments[1], str) else "{", at + len(name) + 2)
        _, ends = json.JSONDecoder().raw_decode(text, begins)
        middle = text[at + len(name) + 2 : begins]
        return _Object(begin, end, name_key, arguments[0], text[begin:at], middle, text[ends:end])
    return None


def _are_arguments(value: Any) -> bool:
    return (isinstance(value, dict) and _KEY in value) or (isinstance(value, str) and _VALUE in value)


def _split(turns: _Turns, one: str, two: str | None) -> ToolFormat | None:
    """The format of a name, a mark, and arguments as JSON."""
    lead, found = one.split(_FIRST, 1)
    lead = lead.lstrip()
    arguments = _json_in(found)
    if arguments is None:
        return None
    middle, tail = found[: arguments[0]], found[arguments[1] :]
    gap = None
    if two is not None and _SECOND in two:
        rest = two.split(_FIRST, 1)[1]
        if (first := _json_in(rest)) is not None:
            gap = rest[first[1] :].split(_SECOND, 1)[0]
    call_close, between, call_open = _split_marks(lead, tail, gap)
    plain = ""
    if not lead and between and turns.prompt.endswith(between):  # the prompt ends in what begins a call
        call_open, between = between, ""
        plain = turns.before_plain.rpartition(call_open)[2].removesuffix(middle)
    return ToolFormat(
        "split",
        call_open,
        call_close,
        lead.removesuffix(call_open),
        tail.removeprefix(call_close),
        between,
        _numbered(middle.replace(_FIRST, "{name}")),
        parallel=gap is not None,
        plain_name=plain,
    )


def _others(turns: _Turns, one: str, two: str | None) -> ToolFormat | None:
    """The format of arguments that are no JSON."""
    lead, found = one.split(_FIRST, 1)
    lead = lead.lstrip()
    if not all(text in found for text in (_KEY, _VALUE, _OTHER_KEY, _OTHER_VALUE)):
        return None
    head, rest = found.split(_KEY, 1)
    middle, rest = rest.split(_VALUE, 1)
    next_pair = rest.split(_OTHER_KEY, 1)[0]
    tail = rest.split(_OTHER_VALUE, 1)[1]
    gap = None
    if two is not None and _SECOND in two and _OTHER_VALUE in two:
        gap = two.split(_OTHER_VALUE, 1)[1].split(_SECOND, 1)[0]
    if head.lstrip().startswith("("):
        return _python(lead, _after(tail, middle.strip()[-1:], ")"), gap and _after(gap, middle.strip()[-1:], ")"))
    if head.startswith("{") and next_pair.endswith(","):
        quote = middle.removeprefix(":")
        call_close, between, call_open = _split_marks(lead, _after(tail, quote, "}"), gap and _after(gap, quote, "}"))
        return ToolFormat("notation", call_open, call_close, between=between, pair_middle=quote)
    return _pairs(turns, lead, head, middle, next_pair, tail, gap)


def _python(lead: str, tail: str, gap: str | None) -> ToolFormat:
    listed = lead.rstrip().endswith("[") and tail.lstrip().startswith("]")
    if listed:
        opened, closed = lead.rstrip().removesuffix("["), tail.lstrip().removeprefix("]")
        return ToolFormat("python", "", "", open=opened, close=closed, listed=True, parallel=gap is not None)
    call_close, between, call_open = _split_marks(lead, tail, gap)
    opened, closed = lead.removesuffix(call_open), tail.removeprefix(call_close)
    return ToolFormat("python", call_open, call_close, opened, closed, between, parallel=gap is not None)


def _pairs(
    turns: _Turns, lead: str, head: str, middle: str, next_pair: str, tail: str, gap: str | None
) -> ToolFormat | None:
    pair_open = _common_suffix(head, next_pair, whole=False)
    pair_close = next_pair.removesuffix(pair_open).replace(_KEY, "{key}")
    behind = pair_close.replace("{key}", _OTHER_KEY)
    if not tail.startswith(behind):  # white space between pairs, but not behind the last
        pair_close, behind = pair_close.rstrip(), behind.rstrip()
    tail, gap = tail.removeprefix(behind), gap and gap.removeprefix(behind)
    call_close, between, call_open = _split_marks(lead, tail, gap)
    name_close = _numbered(head.removesuffix(pair_open).replace(_FIRST, "{name}"))
    numbers = turns.of([_call(0, _FIRST, {_KEY: _NUMBER})])
    empty = turns.of([_call(0, _FIRST, {})])
    nothing = "" if empty is None or _FIRST not in empty else empty.split(_FIRST, 1)[1]
    middle_json = ""
    if numbers is not None and str(_NUMBER) in numbers and _KEY in numbers:
        middle_json = numbers.split(_KEY, 1)[1].split(str(_NUMBER), 1)[0]
    return ToolFormat(
        "pairs",
        _numbered(call_open),
        call_close,
        lead.removesuffix(call_open),
        tail.removeprefix(call_close),
        between,
        name_close,
        pair_open=pair_open,
        pair_middle=middle,
        pair_middle_json="" if middle_json == middle else middle_json,
        pair_close=pair_close,
        empty=_numbered(nothing.removesuffix(tail.removeprefix(call_close)).replace(_FIRST, "{name}")),
        parallel=gap is not None,
    )


def _split_marks(lead: str, tail: str, gap: str | None) -> tuple[str, str, str]:
    """The end of a call, what is between two, and the beginning of one, from what stands before the first call, behind
    the last one, and between two."""
    if gap is None:
        return tail, "", lead
    call_close = _common_prefix(gap, tail)
    call_open = _common_suffix(gap.removeprefix(call_close), lead)
    return call_close, gap.removeprefix(call_close).removesuffix(call_open), call_open


def _without_thought(thought: ReasoningFormat | None, turn: str | None) -> str | None:
    """Without an empty thought before the calls."""
    if thought is None or turn is None:
        return turn
    return re.sub(rf"\s*{re.escape(thought.open)}\s*{re.escape(thought.close)}", "", turn, count=1)


def _after(text: str, *marks: str) -> str:
    """The text without the marks that it begins with."""
    for mark in marks:
        text = text.removeprefix(mark)
    return text


def _numbered(text: str) -> str:
    """With a place for the number of the call, if it has one."""
    return re.sub(r'(?<=[:"])\d+(?=["<]|$)', "{number}", text)


def _json_in(text: str) -> tuple[int, int] | None:
    """Where the first probe's arguments stand as a JSON object."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text[: text.find(_VALUE) + 1]):
        try:
            value, end = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        if isinstance(value, dict) and value.get(_KEY) == _VALUE:
            return match.start(), end
    return None


def _rendered(
    template: ChatTemplate,
    more: Sequence[Mapping[str, Any]],
    *,
    before: Sequence[Mapping[str, Any]] = (),
    **options: Any,
) -> str | None:
    try:
        return template.render([*before, {"role": "user", "content": _QUESTION}, *more], **options)
    except LocalInferError:
        return None


def _call(number: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": _IDS[number], "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def _shared(first: str, second: str) -> str:
    """How both begin."""
    place = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return min(first, second, key=len) if place is None else first[:place]


def _common_suffix(first: str, second: str, whole: bool = True) -> str:
    """Beginning at no place inside of a tag, unless it is the `whole` of one of them."""
    common = _shared(first[::-1], second[::-1])[::-1]
    closed, opened = common.find(">"), common.find("<")
    inside = closed >= 0 and not 0 <= opened < closed and not (whole and common in (first, second))
    return common[closed + 1 :] if inside else common


def _common_prefix(first: str, second: str) -> str:
    """Ending at no place inside of a tag."""
    common = _shared(first, second)
    return common if common in (first, second) else _up_to_tag(common)


def _aligned_prefix(prompt: str, whole: str) -> str:
    """The part of a conversation that the prompt has, too, ending at no place inside of a tag."""
    common = _shared(prompt, whole)
    return common if common == prompt else _up_to_tag(common)


def _up_to_tag(text: str) -> str:
    return text[: text.rfind("<")] if text.rfind("<") > text.rfind(">") else text


def _last_mark(text: str) -> str:
    """The tag that a text ends with, with a word behind it on its line; "" if it ends with something else."""
    found = list(MARK.finditer(text.rstrip()))
    if not found:
        return ""
    behind = text.rstrip()[found[-1].end() :]
    return text.rstrip()[found[-1].start() :] if re.fullmatch(r"\w{0,20}", behind) else ""


def _white_start(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
