"""Whether a model calls functions as it is told to: a dozen requests, each of which one call fulfils.

The functions stand in the system message, and one request with its call is given as an example, so that models that
were never trained to call anything can be asked as well; those without a chat template see the same as plain text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from localinfer.engine.llm import LLM, TextStream
from localinfer.evaluate.figures import Figure

FUNCTIONS = {
    "get_weather": {"city": "string", "unit": "celsius or fahrenheit"},
    "set_timer": {"minutes": "integer", "label": "string"},
    "convert_currency": {"amount": "number", "from": "three letters", "to": "three letters"},
    "send_message": {"recipient": "string", "text": "string"},
}
EXAMPLE = (
    "How warm is it in Rome, in celsius?",
    "get_weather",
    {"city": "Rome", "unit": "celsius"},
)
# request, function, arguments
TASKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("What is the weather in Paris? Use celsius.", "get_weather", {"city": "Paris", "unit": "celsius"}),
    ("Tell me the temperature in Boston in fahrenheit.", "get_weather", {"city": "Boston", "unit": "fahrenheit"}),
    ("Is it raining in Tokyo? I think in celsius.", "get_weather", {"city": "Tokyo", "unit": "celsius"}),
    ("Set a timer for 10 minutes, labeled tea.", "set_timer", {"minutes": 10, "label": "tea"}),
    ("Wake me in 25 minutes. Call the timer nap.", "set_timer", {"minutes": 25, "label": "nap"}),
    ("I need a timer called eggs for 7 minutes.", "set_timer", {"minutes": 7, "label": "eggs"}),
    ("Convert 100 USD to EUR.", "convert_currency", {"amount": 100, "from": "USD", "to": "EUR"}),
    ("How many JPY are 59.5 GBP?", "convert_currency", {"amount": 59.5, "from": "GBP", "to": "JPY"}),
    ("Change 2000 CHF into SEK for me.", "convert_currency", {"amount": 2000, "from": "CHF", "to": "SEK"}),
    ("Send Anna the message: see you at noon", "send_message", {"recipient": "Anna", "text": "see you at noon"}),
    ("Write to Ben: the keys are here", "send_message", {"recipient": "Ben", "text": "the keys are here"}),
    ("Text Carla that says: call me", "send_message", {"recipient": "Carla", "text": "call me"}),
)
MAX_TOKENS = 96
CONTEXT = 1024  # tokens that a request and its answer may take in any vocabulary
AT_ONCE = 4  # requests that a model answers at the same time


class ToolCalls(NamedTuple):
    """Parts of `asked` requests, each of which includes the next.

    json       answered with a JSON object
    function   that names the right function
    arguments  with the right arguments, and no others

    Errors take the requests as independent: sqrt(p (1 - p) / n).
    """

    asked: int
    json: Figure
    function: Figure
    arguments: Figure

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        found = {name: getattr(self, name)._asdict() for name in ("json", "function", "arguments")}
        return {"asked": self.asked, **found}


def tool_calls(llm: LLM, *, report: Callable[[str, int, int], None] | None = None) -> ToolCalls:
    """Asks all requests, as many at a time as the model was loaded for, greedily."""
    streams = [_stream(llm, request) for request, _, _ in TASKS]
    levels = []
    for done, (stream, (_, function, arguments)) in enumerate(zip(streams, TASKS, strict=True)):
        if report is not None:
            report("tool calls", done, len(TASKS))
        text = "".join(chunk.text for chunk in stream)
        levels.append(level(text, function, arguments))
    return ToolCalls(len(levels), *(_part(levels, least) for least in (1, 2, 3)))


def level(answer: str, function: str, arguments: dict[str, Any]) -> int:
    """How much of a call is right: 0 nothing, 1 a JSON object, 2 of the right function, 3 with the right arguments."""
    best = 0
    for call in json_objects(answer):
        best = max(best, 1)
        if call.get("name") == function:
            best = max(best, 3 if _same(call.get("arguments"), arguments) else 2)
    return best


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text that are not within another, whatever stands around them."""
    decoder, position = json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        try:
            found, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        yield found


def _same(found: Any, wanted: dict[str, Any]) -> bool:
    """Whether arguments are equal, but for upper case, spaces around texts, and a full stop at their end."""
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        return False

    def plain(value: Any) -> Any:
        return value.strip().rstrip(".").casefold() if isinstance(value, str) else value

    return all(plain(found[name]) == plain(value) for name, value in wanted.items())


def _part(levels: list[int], least: int) -> Figure:
    part = sum(found >= least for found in levels) / len(levels)
    return Figure(part, math.sqrt(part * (1 - part) / len(levels)))


def _stream(llm: LLM, request: str) -> TextStream:
    functions = "\n".join(json.dumps({"name": name, "arguments": given}) for name, given in FUNCTIONS.items())
    system = (
        f"You can call these functions:\n{functions}\n"
        'Answer every request with one JSON object, {"name": ..., "arguments": {...}}, and nothing else.'
    )
    example = json.dumps({"name": EXAMPLE[1], "arguments": EXAMPLE[2]})
    if llm.chat_template is None:
        prompt = f"{system}\n\nRequest: {EXAMPLE[0]}\nAnswer: {example}\n\nRequest: {request}\nAnswer:"
        return llm.stream(prompt, max_tokens=MAX_TOKENS, stop=("\nRequest:",))
    messages = [
        {"role": "user", "content": f"{system}\n\n{EXAMPLE[0]}"},
        {"role": "assistant", "content": example},
        {"role": "user", "content": request},
    ]
    return llm.chat(messages, temperature=0, repetition_penalty=1, max_tokens=MAX_TOKENS, stream=True)
