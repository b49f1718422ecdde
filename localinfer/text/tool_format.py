"""How a model writes tool calls and reasoning: found out from its own chat template.

The template is rendered with an answer that calls tools, and with plain ones: what stands around the names, the
arguments and the reasoning are the marks that the model was trained to write. So a template that nobody has seen before
needs no entry here. Templates that take no calls in messages, only their text, are known by marks in their source.

Calls are written in one of six ways:

    object   {"name": NAME, "arguments": {...}}, between marks, or several of them in a list
    keyed    {NAME: {...}}, the same otherwise (Apertus)
    split    NAME, a mark, and the arguments as a JSON object
    pairs    NAME, then each argument's name and value between marks (values that are not texts as JSON)
    notation NAME{key:value, ...}, texts in marks of their own (Gemma 4)
    python   NAME(key=value, ...), values as Python has them (LFM2, Llama 4, OLMo 3)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localinfer.errors import LocalInferError
from localinfer.text.chat_template import ChatTemplate

Style = Literal["object", "keyed", "split", "pairs", "notation", "python"]

# What the probes say: texts that no template has of itself.
_QUESTION, _ANSWER, _THOUGHT = "probe-question", "probe-answer-text", "probe-thought-text"
_FIRST, _SECOND = "probe_first_tool", "probe_second_tool"
_KEY, _VALUE, _OTHER_KEY, _OTHER_VALUE = "a_probe_key", "a-probe-value", "b_probe_key", "b-probe-value"
_IDS = ("probeid01", "probeid02")  # nine letters and digits: Mistral's templates insist on that
_TOOL = {
    "type": "function",
    "function": {
        "name": _FIRST,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class ToolFormat:
    """The marks around calls. A whole answer is `open`, calls with `between` in between, `close`; if `listed`, the
    calls stand in a JSON (or Python) list: `open`, "[", calls with ", " in between, "]", `close`.

    A call of style "object" or "keyed" is `call_open`, `object_open`, the name as a JSON text, `object_middle`, the
    arguments as JSON, `object_close`, `call_close`. The keys of an object are `name_key` and `arguments_key`.
    Of "split" it is `call_open`, the name, `name_close`, the arguments as JSON, `call_close`.
    Of "pairs" it is `call_open`, the name, `name_close`, pairs, `call_close`, where each pair is `pair_open`, key,
    `pair_middle` (or `pair_middle_json` before a value that is no text, unless that is ""), value, `pair_close`;
    `empty` is what stands for `name_close` to `call_close` if there are no pairs.
    Of "notation" it is `call_open`, NAME{key:value,...}, `call_close`, with `pair_middle` around each text.
    Of "python" it is `call_open`, NAME(key=value, ...), `call_close`.
    `name_close` and what is called `object_` may hold an id (`{id}`) or the number of the call (`{number}`).
    A token that ends the answer is in none of them.
    """

    style: Style
    call_open: str
    call_close: str
    open: str = ""
    close: str = ""
    between: str = ""
    name_close: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    object_open: str = '{"name": '
    object_middle: str = ', "arguments": '
    object_close: str = "}"
    pair_open: str = ""
    pair_middle: str = ""
    pair_middle_json: str = ""
    pair_close: str = ""
    empty: str = ""
    listed: bool = False  # calls stand in a list
    parallel: bool = True  # whether the template takes several calls in an answer
    # gpt-oss: an answer is messages on channels; a call is one of them, in style "split", and ends the answer.
    channels: bool = False
    also_open: tuple[str, ...] = ()  # marks that models write before calls, though their template does not

    @property
    def trigger(self) -> str:
        """What an answer's text has where calls begin; "" if a call has no mark before its object."""
        return self.call_open if self.channels else _first_mark(self.open + self.call_open)

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks: special tokens in them are part of an answer's text."""
        found = (self.open, self.call_open, self.name_close, self.call_close, self.between, self.close, self.empty)
        pairs = (self.pair_open, self.pair_middle, self.pair_middle_json, self.pair_close)
        return (*found, *pairs, *self.also_open)


@dataclass(frozen=True)
class ReasoningFormat:
    """The marks around what a model thinks before it answers, without the white space inside.

    Behind the thought comes `after`, and then what the model says, perhaps between `answer_open` and `answer_close`, or
    calls of tools. Of a format with `channels` (gpt-oss) a thought is a message, and so is what the model says:
    `open`, thought, `close`, `after`, then `answer_open`, text; or a call.
    """

    open: str
    close: str
    after: str = ""
    answer_open: str = ""
    answer_close: str = ""
    channels: bool = False


HARMONY = ToolFormat(
    "split",
    "<|channel|>commentary to=functions.",
    "",
    name_close=" <|constrain|>json<|message|>",
    parallel=False,
    channels=True,
)
HARMONY_REASONING = ReasoningFormat(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    after="<|start|>assistant",
    answer_open="<|channel|>final<|message|>",
    channels=True,
)

# Source of a template that shows no calls -> what its model writes, as its makers document it.
_KNOWN_BY_SOURCE = (
    ("<|tool_call|>", ToolFormat("object", "", "", open="<|tool_call|>", listed=True)),
    ("<tool_call>", ToolFormat("object", "<tool_call>\n", "\n</tool_call>", between="\n")),
)


def tool_format(template: ChatTemplate) -> ToolFormat | None:
    """The format, or None if the template does not show tools to the model."""
    without, given = _rendered(template, []), _rendered(template, [], tools=[_TOOL])
    if given is None or given == without or _FIRST not in given:
        return None
    calls = [_call(0, _FIRST, {_KEY: _VALUE, _OTHER_KEY: _OTHER_VALUE}), _call(1, _SECOND, {_KEY: _VALUE})]
    one = _turn(template, calls[:1])
    if one is None or _FIRST not in one:
        return next((known for mark, known in _KNOWN_BY_SOURCE if mark in template.source), None)
    return _from_turns(template, one, _turn(template, calls))


def reasoning_format(template: ChatTemplate) -> ReasoningFormat | None:
    """The marks of reasoning, or None if the template leaves it out of an answer or has no marks for it."""
    calls = [_call(0, _FIRST, {_KEY: _VALUE})]
    for fields, end in (({"content": _ANSWER}, _ANSWER), ({"content": "", "tool_calls": calls}, _FIRST)):
        turn = _assistant_turn(template, {**fields, "reasoning_content": _THOUGHT})
        if turn is not None and _THOUGHT in turn and turn.find(end) > turn.index(_THOUGHT):
            before, _, behind = turn.partition(_THOUGHT)
            opened, closed = _last_mark(before), _first_mark(behind.strip())
            if opened and closed:
                return ReasoningFormat(opened, closed)
    if "<think>" in template.source and "</think>" in template.source:
        return ReasoningFormat("<think>", "</think>")
    return None


def _from_turns(template: ChatTemplate, one: str, two: str | None) -> ToolFormat | None:
    """The format, from a turn with one call and, if the template takes that, one with two."""
    lead, found = one.split(_FIRST, 1)
    lead = _without_plain_lead(template, lead)
    arguments = _json_in(found)
    if arguments is None:
        return _pairs(template, lead, found, two) if _KEY in found and _VALUE in found else None
    begin, end = arguments
    middle, tail = found[:begin], _without_end(template, found[end:])
    second = None if two is None else _second_call(two)
    call_close, between, call_open = _split_marks(lead, tail, second)
    opened = lead.removesuffix(call_open)
    close = tail.removeprefix(call_close)
    # {"name": "NAME", "arguments": {...}}: the marks end where the object begins.
    inside = _BEFORE_NAME.fullmatch(call_open)
    key = re.fullmatch(r'"\s*,\s*"(?P<key>\w+)"\s*:\s*', middle)
    if inside and key:
        listed = opened.endswith("[")
        return ToolFormat(
            "object",
            inside["mark"],
            _behind_object(call_close),
            open=opened.removesuffix("[") if listed else opened,
            close=close.removeprefix("]") if listed else close,
            between="" if listed else between,
            listed=listed,
            arguments_key=key["key"],
            object_middle=f', "{key["key"]}": ',
            parallel=second is not None,
        )
    name_close = re.sub(r":\d+", ":{number}", middle.replace(_IDS[0], "{id}"))
    return ToolFormat("split", call_open, call_close, opened, close, between, name_close, parallel=second is not None)


def _pairs(template: ChatTemplate, lead: str, found: str, two: str | None) -> ToolFormat | None:
    head, rest = found.split(_KEY, 1)
    middle, rest = rest.split(_VALUE, 1)
    if _OTHER_KEY not in rest or _OTHER_VALUE not in rest:
        return None
    next_pair = rest.split(_OTHER_KEY, 1)[0]
    tail = _without_end(template, rest.split(_OTHER_VALUE, 1)[1])
    if head.startswith("{") and next_pair.endswith(","):
        quote = middle.removeprefix(":")
        call_close, between, call_open = _split_marks(lead, _after(tail, quote, "}"), _second_pairs(two, quote, "}"))
        return ToolFormat("notation", call_open, call_close, between=between, pair_middle=quote)
    pair_open = _common_suffix(head, next_pair)
    pair_close = _common_prefix(next_pair.removesuffix(pair_open), tail)
    second = _second_pairs(two, pair_close)
    call_close, between, call_open = _split_marks(lead, tail.removeprefix(pair_close), second)
    empty = _turn(template, [_call(0, _FIRST, {})])
    nothing = "" if empty is None else _without_end(template, empty.split(_FIRST, 1)[1])
    return ToolFormat(
        "pairs",
        call_open,
        call_close,
        lead.removesuffix(call_open),
        tail.removeprefix(pair_close).removeprefix(call_close),
        between,
        head.removesuffix(pair_open),
        pair_open=pair_open,
        pair_middle=middle,
        pair_close=pair_close,
        empty=nothing,
        parallel=second is not None,
    )


def _split_marks(lead: str, tail: str, second: str | None) -> tuple[str, str, str]:
    """The end of a call, what is between two, and the beginning of one, from what stands before the first name, behind
    the last arguments, and from the first arguments to the second name."""
    if second is None:
        return tail, "", lead
    second = second.replace(_IDS[0], _IDS[1])
    tail = tail.replace(_IDS[0], _IDS[1])
    call_close = _common_prefix(second, tail)
    call_open = _common_suffix(second.removeprefix(call_close), lead)
    between = second.removeprefix(call_close).removesuffix(call_open)
    return call_close.replace(_IDS[1], _IDS[0]), between, call_open


def _second_call(two: str) -> str | None:
    """From behind the first call's arguments to the second one's name."""
    if _FIRST not in two or _SECOND not in two:
        return None
    found = two.split(_FIRST, 1)[1]
    arguments = _json_in(found)
    return None if arguments is None else found[arguments[1] :].split(_SECOND, 1)[0]


def _second_pairs(two: str | None, *marks: str) -> str | None:
    """The same for pairs; `marks` stand behind the last value and belong to the first call's arguments."""
    if two is None or _SECOND not in two or _OTHER_VALUE not in two:
        return None
    return _after(two.split(_OTHER_VALUE, 1)[1], *marks).split(_SECOND, 1)[0]


def _after(text: str, *marks: str) -> str:
    """The text without the marks that it begins with."""
    for mark in marks:
        text = text.removeprefix(mark)
    return text


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


def _behind_object(call_close: str) -> str:
    """What closes a call behind its object, which may have further members: an id, perhaps."""
    return call_close[call_close.index("}") + 1 :] if "}" in call_close else call_close


def _turn(template: ChatTemplate, calls: Sequence[Mapping[str, Any]]) -> str | None:
    return _assistant_turn(template, {"content": "", "tool_calls": list(calls)})


def _assistant_turn(template: ChatTemplate, fields: Mapping[str, Any]) -> str | None:
    """What the template writes for an answer, without the prompt that asks for one; None if it refuses."""
    whole = _rendered(template, [{"role": "assistant", **fields}], tools=[_TOOL], add_generation_prompt=False)
    prompt = _rendered(template, [], tools=[_TOOL])
    if whole is None or prompt is None:
        return None
    return whole[len(_common_prefix(prompt, whole)) :]


def _rendered(template: ChatTemplate, more: Sequence[Mapping[str, Any]], **options: Any) -> str | None:
    try:
        return template.render([{"role": "user", "content": _QUESTION}, *more], **options)
    except LocalInferError:
        return None


def _call(number: int, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    return {"id": _IDS[number], "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def _without_plain_lead(template: ChatTemplate, lead: str) -> str:
    """Without what stands before a plain answer, too: an empty thought, for example."""
    plain = _assistant_turn(template, {"content": _ANSWER})
    before = plain.split(_ANSWER, 1)[0] if plain is not None and _ANSWER in plain else ""
    return lead.removeprefix(before).lstrip()


def _without_end(template: ChatTemplate, tail: str) -> str:
    """Without what ends any answer: the token at which the model stops, and what the template writes behind it."""
    plain = _assistant_turn(template, {"content": _ANSWER})
    end = plain.split(_ANSWER, 1)[1] if plain is not None and _ANSWER in plain else ""
    for stop in (end, end.strip(), template.eos_token):
        if stop and tail.endswith(stop):
            return tail.removesuffix(stop)
        if stop and stop in tail:
            return tail[: tail.index(stop)]
    return tail


def _shared(first: str, second: str) -> str:
    """How both begin."""
    place = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return min(first, second, key=len) if place is None else first[:place]


def _common_suffix(first: str, second: str) -> str:
    """Beginning at no place inside of a tag."""
    common = _shared(first[::-1], second[::-1])[::-1]
    closed, opened = common.find(">"), common.find("<")
    inside = closed >= 0 and not 0 <= opened < closed and common not in (first, second)
    return common[closed + 1 :] if inside else common


def _common_prefix(first: str, second: str) -> str:
    """Ending at no place inside of a tag."""
    common = _shared(first, second)
    inside = common.rfind("<") > common.rfind(">") and common not in (first, second)
    return common[: common.rfind("<")] if inside else common


# The beginning of a call's object, up to its name; Mistral's may have an id first, others the type.
_BEFORE_NAME = re.compile(
    r"""(?P<mark>.*?)\{\s*"(?:type":\s*"function",\s*"|id":\s*"[^"]*",\s*")?name"\s*:\s*\"""", re.DOTALL
)
_MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s\"{}]+\]")


def _first_mark(text: str) -> str:
    """The tag that a text begins with, or its first word; "" if it begins with data."""
    text = text.lstrip()
    match = _MARK.match(text)
    if match:
        return match[0]
    word = re.match(r"[^\s{\[\"]+", text)
    return word[0] if word else ""


def _last_mark(text: str) -> str:
    """The tag that a text ends with, if it does."""
    found = _MARK.findall(text)
    return found[-1] if found and text.rstrip().endswith(found[-1]) else ""
