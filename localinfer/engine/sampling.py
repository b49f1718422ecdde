"""Sampling parameters of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from localinfer.engine.checks import number, whole, wrong
from localinfer.errors import LocalInferError
from localinfer.text.grammar import Grammar

# The sampler calculates with logits in float32: what is further out makes them infinite, and means nothing.
LARGEST, SMALLEST_DIVISOR = 1e9, 1e-9
MOST_CHOICES = 128  # answers to one request

# name -> the rule in words, and its test
_NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": (
        f">= 0 (0 is greedy; else {SMALLEST_DIVISOR:g} to {LARGEST:g})",
        lambda x: x == 0 or SMALLEST_DIVISOR <= x <= LARGEST,
    ),
    "top_p": ("in (0, 1]", lambda x: 0 < x <= 1),
    "min_p": ("in [0, 1)", lambda x: 0 <= x < 1),
    "typical_p": ("in (0, 1]", lambda x: 0 < x <= 1),
    "repetition_penalty": (
        f"> 0 (from {SMALLEST_DIVISOR:g} to {LARGEST:g}; 1 is off)",
        lambda x: SMALLEST_DIVISOR <= x <= LARGEST,
    ),
    "presence_penalty": (f"from {-LARGEST:g} to {LARGEST:g}", lambda x: abs(x) <= LARGEST),
    "frequency_penalty": (f"from {-LARGEST:g} to {LARGEST:g}", lambda x: abs(x) <= LARGEST),
    "length_penalty": ("from -10 to 10", lambda x: abs(x) <= 10),
}
# name, least, most, the rule in words ("": made of the two)
_WHOLE_NUMBERS = (
    ("top_k", 0, None, "a whole number >= 0 (0: off)"),
    ("penalty_window", 0, None, "a whole number >= 0 (0: all tokens)"),
    ("seed", 0, 2**64 - 1, "None or a whole number from 0 to 2**64 - 1"),
    ("max_tokens", 1, None, "None or a whole number >= 1"),
    ("min_tokens", 0, None, ""),
    ("n", 1, MOST_CHOICES, ""),
    ("best_of", 1, MOST_CHOICES, ""),
    ("beam_width", 0, MOST_CHOICES, f"a whole number from 0 (no beam search) to {MOST_CHOICES}"),
    ("top_logprobs", 0, None, ""),
    ("prompt_logprobs", 0, None, ""),
)
_MAY_BE_NONE = ("seed", "max_tokens", "best_of", "prompt_logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the logits, and when to stop.

    Tokens are ranked by (logit descending, id ascending). In this order:

    1. `logit_bias`: added to the logits of the tokens that it names.
    2. penalties, on the logits, over the last `penalty_window` tokens (0: all). `repetition_penalty` r (Keskar et al.
       2019, arXiv:1909.05858) looks at prompt and answer: l / r if l > 0, else l * r. `presence_penalty` and
       `frequency_penalty` look at the answer only, where the token occurs n > 0 times: l - presence - frequency * n.
    3. `temperature`: l / temperature. 0 is greedy: the token that ranks first, and nothing below matters.
    4. `top_k`: the first k (0: all).
    5. `typical_p` (Meister et al. 2023, arXiv:2202.00666): ranked by |entropy + log p| ascending, the fewest tokens
       whose probabilities reach typical_p.
    6. `top_p`: the fewest first tokens whose probabilities reach top_p.
    7. `min_p`: those at least min_p times as likely as the likeliest that is left.
    8. one draw: the tokens left, ascending by id, divide [0, 1) in proportion to their probabilities; the number
       that picks one of them is a function (Philox4x32-10) of the seed, the position and the answer's number alone.
       So a request gives the same tokens alone or in a crowd, and its first answer is that of a request for one.
       `seed` None takes one at random, which the answer names.

    Probabilities in 5, 6 and 7 are those of the tokens that the steps before have left. Generation ends with a token
    that the model ends with (unless `ignore_eos`) or that `stop_token_ids` names, with a text in `stop` (which is not
    part of the answer), after `max_tokens` (None: no limit but the context), or where the context is full. Before
    `min_tokens` no such token can be drawn, and no stop text ends it. `loop_detection` also ends an answer that repeats
    itself (engine/loop.py says when).

    `logprobs` adds each token's log probability, that of the logits as the model gave them, and `top_logprobs` (which
    implies it) those of so many tokens that rank first in them. `prompt_logprobs` does the same for the prompt: 0 for
    its tokens alone, k with the first k at each place.

    `n` answers are given; of `best_of` that are drawn, the n whose mean log probability (of the logits as the model
    gave them) per token is largest, best first. `beam_width` w > 0 searches instead of drawing: at every place the w
    unfinished answers are kept whose log probabilities (of the logits after 1 and 2) add up to most; finished ones are
    ranked by that sum divided by length ** `length_penalty`, and the search ends as soon as w are finished and no
    unfinished one ranks before the last of these as it stands. The n that rank first are given.

    With a `grammar` only tokens can be drawn with which the answer can still come to fit it, and those that the model
    ends with only where it fits; it ends where nothing may follow, whatever `min_tokens` says. An answer that is cut
    off by `max_tokens` fits up to there.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    n: int = 1
    best_of: int | None = None
    beam_width: int = 0
    length_penalty: float = 1.0
    loop_detection: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        for name, (rule, allowed) in _NUMBERS.items():
            found = number(name, getattr(self, name), f"a number {rule}")
            if not allowed(found):
                raise wrong(name, found, rule)
            put(name, found)
        for name, least, most, rule in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                put(name, whole(name, value, least, most, rule))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise wrong("min_tokens", self.min_tokens, f"<= max_tokens, which is {self.max_tokens}")
        put("stop", _texts("stop", self.stop))
        if isinstance(self.stop_token_ids, str | bytes) or not isinstance(self.stop_token_ids, Iterable):
            raise wrong("stop_token_ids", self.stop_token_ids, "a sequence of token ids")
        put("stop_token_ids", tuple(whole("a token id of stop_token_ids", i, 0) for i in self.stop_token_ids))
        for name in ("ignore_eos", "logprobs", "loop_detection"):
            if not isinstance(getattr(self, name), bool):
                raise wrong(name, getattr(self, name), "True or False")
        put("logprobs", self.logprobs or self.top_logprobs > 0)
        put("logit_bias", _bias(self.logit_bias))
        if not isinstance(self.grammar, Grammar | None):
            raise wrong("grammar", self.grammar, "a Grammar (localinfer/text/grammar.py), or None")
        self._check_choices()

    def _check_choices(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise wrong("best_of", self.best_of, f">= n, which is {self.n}")
        if not self.beam_width:
            return
        if self.beam_width < self.n:
            raise wrong("beam_width", self.beam_width, f">= n, which is {self.n}")
        for name, needed in (("temperature", 0), ("best_of", None), ("loop_detection", False), ("grammar", None)):
            if getattr(self, name) != needed:
                raise wrong(name, getattr(self, name), f"{needed!r} for a beam search")

    @property
    def drawn(self) -> int:
        """How many answers are drawn, of which `n` are given."""
        return self.best_of or self.n

    @property
    def withholds(self) -> bool:
        """Whether it is certain only at the end which answers are given."""
        return self.drawn > self.n or self.beam_width > 0

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def changed(self, **changes: Any) -> SamplingParams:
        """A copy with other values; LocalInferError names a parameter that does not exist."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise LocalInferError(f"there is no sampling parameter {name!r}", f"known are {', '.join(known)}")
        return SamplingParams(**{name: changes.get(name, getattr(self, name)) for name in known})


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise wrong("logit_bias", value, "a mapping from token ids to numbers")
    rule = f"a number from {-LARGEST:g} to {LARGEST:g}"
    bias = {}
    for token, given in value.items():
        name = f"logit_bias[{token!r}]"
        bias[whole("a token id of logit_bias", token, 0)] = added = number(name, given, rule)
        if not abs(added) <= LARGEST:
            raise wrong(name, given, rule)
    return bias


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    texts = (value,) if isinstance(value, str) else value
    if isinstance(texts, bytes | dict) or not isinstance(texts, Iterable):
        raise wrong(name, value, "a text, or a sequence of texts")
    texts = tuple(texts)
    for text in texts:
        if not isinstance(text, str):
            raise wrong(f"an item of {name}", text, "a text")
    if not all(texts):
        raise wrong(name, value, "without empty strings")
    return texts
