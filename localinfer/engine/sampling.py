"""Sampling parameters of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from localinfer.engine.checks import number, whole, wrong
from localinfer.errors import LocalInferError

# The sampler calculates with logits in float32: what is further out makes them infinite, and means nothing.
LARGEST, SMALLEST_DIVISOR = 1e9, 1e-9

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
}
# name, least, most, the rule in words ("": made of the two)
_WHOLE_NUMBERS = (
    ("top_k", 0, None, "a whole number >= 0 (0: off)"),
    ("penalty_window", 0, None, "a whole number >= 0 (0: all tokens)"),
    ("seed", 0, 2**64 - 1, "None or a whole number from 0 to 2**64 - 1"),
    ("max_tokens", 1, None, "None or a whole number >= 1"),
    ("min_tokens", 0, None, ""),
)
_MAY_BE_NONE = ("seed", "max_tokens")


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the logits, and when to stop.

    Tokens are ranked by (logit descending, id ascending). In this order:

    1. penalties, on the logits, over the last `penalty_window` tokens (0: all). `repetition_penalty` r (Keskar et al.
       2019, arXiv:1909.05858) looks at prompt and answer: l / r if l > 0, else l * r. `presence_penalty` and
       `frequency_penalty` look at the answer only, where the token occurs n > 0 times: l - presence - frequency * n.
    2. `temperature`: l / temperature. 0 is greedy: the token that ranks first, and nothing below matters.
    3. `top_k`: the first k (0: all).
    4. `typical_p` (Meister et al. 2023, arXiv:2202.00666): ranked by |entropy + log p| ascending, the fewest tokens
       whose probabilities reach typical_p.
    5. `top_p`: the fewest first tokens whose probabilities reach top_p.
    6. `min_p`: those at least min_p times as likely as the likeliest that is left.
    7. one draw: the tokens left, ascending by id, divide [0, 1) in proportion to their probabilities; the number
       that picks one of them is a function (Philox4x32-10) of the seed and the position alone. So a request gives
       the same tokens alone or in a crowd. `seed` None takes one at random, which the answer names.

    Probabilities in 4, 5 and 6 are those of the tokens that the steps before have left. Generation ends with a token
    that the model ends with (unless `ignore_eos`) or that `stop_token_ids` names, with a text in `stop` (which is not
    part of the answer), after `max_tokens` (None: no limit but the context), or where the context is full. Before
    `min_tokens` no such token can be drawn, and no stop text ends it. `logprobs` adds each token's log probability,
    that of the logits as the model gave them.
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
        for name in ("ignore_eos", "logprobs"):
            if not isinstance(getattr(self, name), bool):
                raise wrong(name, getattr(self, name), "True or False")

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
