"""Arguments of calls in every form in which models write them: what the grammar lets through fits, and is read so."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from drawn_answers import JSON_PIECES, Drawing, byte_tokenizer
from localinfer.text.answer_marks import AnswerMarks
from localinfer.text.answer_reader import Call
from localinfer.text.chat_template import ChatTemplate
from localinfer.text.format_probe import tool_format
from localinfer.text.grammar import Grammars
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.tool_format import MARK, ToolFormat
from localinfer.text.tool_grammar import call_bounds
from published import TEMPLATES

pytestmark = pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the published templates are not beside the checkout")
FAMILIES = [
    *("google-gemma-4-31B-it", "meta-llama-Llama-3.1-8B-Instruct", "ibm-granite-granite-3.3-2B-Instruct"),
    *("mistralai-Mistral-Nemo-Instruct-2407", "Qwen-Qwen3-0.6B", "MiniMax-M2", "GLM-4.6", "LFM2.5-Instruct"),
    *("openai-gpt-oss-120b", "moonshotai-Kimi-K2", "deepseek-ai-DeepSeek-V3.1", "Mistral-Small-3.2-24B-Instruct-2506"),
]
CODER = ToolFormat(  # Qwen3-Coder
    "pairs",
    "<tool_call>\n<function=",
    "\n</function>\n</tool_call>",
    between="\n",
    name_close=">",
    pair_open="\n<parameter=",
    pair_middle=">\n",
    pair_close="\n</parameter>",
    empty=">\n</function>\n</tool_call>",
)
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "unit": {"type": "string", "enum": ["metric", "imperial units", 'a "b"']},
        "exact": {"type": "boolean"},
        "when": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}(x|yz)?$"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        "spot": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": ["integer", "null"]}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "note": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
        "level": {"$ref": "#/$defs/Level"},
    },
    "required": ["city", "unit", "level"],
    "additionalProperties": False,
    "$defs": {"Level": {"enum": [1, 2, 3]}},
}
# Closed, all of them: no grammar keeps keys that nobody named from coming twice, and an answer with such is no call.
TOOLS: dict[str, Any] = {
    "place": PLACE,
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
    "free": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "also": {"type": "string"}},
        "additionalProperties": False,
    },
}


def form_of(family: str) -> ToolFormat:
    source = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    form = tool_format(ChatTemplate(source, "<s>", "</s>"))
    assert form is not None
    return form


def tokenizer_of(form: ToolFormat, *, special: bool) -> Tokenizer:
    """A vocabulary in which marks are special tokens, or text."""
    marks = [mark for text in form.marks for mark in MARK.findall(text)]
    pieces = [piece for text in form.marks for piece in (text, text.strip()) if piece]
    if special:
        return byte_tokenizer([*JSON_PIECES, *(piece for piece in pieces if not MARK.search(piece))], marks)
    return byte_tokenizer([*JSON_PIECES, *marks, *pieces])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", [*FAMILIES, "Qwen3-Coder"])
def test_drawn_calls_fit_their_schema(family: str, special: bool) -> None:
    form = CODER if family == "Qwen3-Coder" else form_of(family)
    tokenizer = tokenizer_of(form, special=special)
    bounds = call_bounds(form, TOOLS, tokenizer, several=True, forced=True)
    grammars, drawing, chance, called = (
        Grammars(tokenizer, tokenizer.vocab_size),
        Drawing(tokenizer),
        random.Random(7),
        0,
    )
    for _ in range(10):
        answer = drawing.answer(grammars.matcher(bounds.grammar), chance)
        if answer is None:
            continue
        marks = AnswerMarks(tokenizer, None, form, TOOLS)
        decoder = marks.decoder()()
        text = "".join(map(decoder.push, answer)) + decoder.finish()
        pieces = marks.reader().whole(text)
        assert all(isinstance(piece, Call) for piece in pieces), text
        for call in pieces:
            assert isinstance(call, Call)
            jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])
            called += 1
    assert called
