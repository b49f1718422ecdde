"""The sampling parameters of a chat, read and shown in the words that a person types."""

import json
import re
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError

# What has an effect on the answer that is shown. There are others, for programs.
CHAT_PARAMS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "penalty_window",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "loop_detection",
    "thinking_budget",
)
_TRUTH = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
# What a person would call a type, and how to read it.
_KINDS: dict[type, tuple[str, Callable[[str], object]]] = {
    bool: ("true or false", lambda text: _TRUTH[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("a text", str),
}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def split_setting(text: str) -> tuple[str, str]:
    """Name and value of "top_k 40", also of "top-k=40" or "--top-k 40"; the value is empty if there is none."""
    name, _, value = re.sub(r"\s*=\s*|\s+", " ", text.strip(), count=1).partition(" ")
    return name.lstrip("-").replace("-", "_").lower(), value.strip()


def check_name(name: str) -> None:
    """LocalInferError if that is no parameter of a chat."""
    if name in CHAT_PARAMS:
        return
    if name in get_type_hints(SamplingParams):
        raise LocalInferError(f"{name} has no effect in a chat", "/params shows what has")
    from localinfer.hub.names import near

    guesses = near(name, CHAT_PARAMS)[:2]
    hint = f"did you mean {' or '.join(guesses)}?" if guesses else "/params shows all of them"
    raise LocalInferError(f"there is no sampling parameter {name}", hint)


def parsed(name: str, text: str) -> object:
    """The value that a text means for a parameter; LocalInferError says what it takes."""
    hint = get_type_hints(SamplingParams)[name]
    kinds = get_args(hint) or (hint,)
    several = get_origin(hint) is tuple
    if text.lower() == "none" and (several or type(None) in kinds):
        return () if several else None
    words, parse = next(_KINDS[kind] for kind in kinds if kind in _KINDS)
    try:
        return tuple(map(parse, _items(text, parse is str))) if several else parse(text)
    except (ValueError, KeyError):
        raise LocalInferError(f"{name} takes {words}, not {text!r}", f"/params {name} default resets it") from None


def _items(text: str, texts: bool) -> list[str]:
    """The values of a list: numbers with spaces or commas between them; one text, or several in quotes."""
    if not texts:
        return text.replace(",", " ").split()
    quoted = _QUOTED.findall(text)
    return [json.loads(item) for item in quoted] if quoted and not _QUOTED.sub("", text).strip() else [text]


def in_words(value: Any) -> str:
    """A value as one would type it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(json.dumps(item, ensure_ascii=False) for item in value)
    return str(value).removesuffix(".0")


def described(params: SamplingParams, defaults: SamplingParams, names: tuple[str, ...] = CHAT_PARAMS) -> str:
    """A line for each parameter: its value, and the default where it is another."""
    lines = []
    for name in names:
        value, default = getattr(params, name), getattr(defaults, name)
        note = "" if value == default else f"  (default {in_words(default)})"
        lines.append(f"{name:20} {in_words(value)}{note}")
    return "\n".join(lines)
