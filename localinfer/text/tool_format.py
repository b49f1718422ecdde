"""How a model writes tool calls and reasoning: the marks. They are found by localinfer/text/format_probe.py.

Calls are written in one of six ways:

    object   {"name": NAME, "arguments": {...}}, between marks, or several of them in a list
    keyed    {NAME: {...}}, the same otherwise (Apertus)
    split    NAME, a mark, and the arguments as a JSON object
    pairs    NAME, then each argument's name and value between marks (values that are not texts as JSON)
    notation NAME{key:value, ...}, texts in marks of their own (Gemma 4)
    python   NAME(key=value, ...), values as Python has them (LFM2, Llama 4, OLMo 3)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

SYSTEM_FIELD = "system field"  # as JSON in a field `tools` of the system message (Phi-4-mini)
SYSTEM_TEXT = "system text"  # in the text of the system message, since the template knows of none (DeepSeek V3.1)

Style = Literal["object", "keyed", "split", "pairs", "notation", "python"]


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
    plain_name: str = ""  # stands for a tool's name before text that is no call (functionary 3.2)
    shown_as: str = "tools"  # how the template gets tools: the name of a variable, SYSTEM_FIELD or SYSTEM_TEXT
    shows_calls: bool = True  # whether the template writes the calls of earlier answers

    @property
    def trigger(self) -> str:
        """What an answer's text has where calls begin; "" if a call has no mark before its object."""
        return self.call_open if self.channels else first_mark(self.open + self.call_open)

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

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks: special tokens in them are part of an answer's text."""
        return (self.open, self.close, self.answer_open, self.answer_close, *(CHANNEL_MARKS if self.channels else ()))


# Of messages on channels: what begins one, its channel, its text and the type of it; what ends one.
CHANNEL_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")
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

MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s\"{}]+\]")


def first_mark(text: str) -> str:
    """The tag that a text begins with, or its first word; "" if it begins with data."""
    text = text.lstrip()
    match = MARK.match(text)
    if match:
        return match[0]
    word = re.match(r"[^\s{\[\"]+", text)
    return word[0] if word else ""
