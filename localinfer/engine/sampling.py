"""Sampling parameters of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from localinfer.errors import LocalInferError


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
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        checks = (
            (0 <= self.temperature < math.inf, "temperature", ">= 0"),
            (self.top_k >= 0, "top_k", ">= 0 (0 switches it off)"),
            (0 < self.top_p <= 1, "top_p", "in (0, 1]"),
            (0 <= self.min_p < 1, "min_p", "in [0, 1)"),
            (0 < self.typical_p <= 1, "typical_p", "in (0, 1]"),
            (0 < self.repetition_penalty < math.inf, "repetition_penalty", "> 0"),
            (math.isfinite(self.presence_penalty), "presence_penalty", "a finite number"),
            (math.isfinite(self.frequency_penalty), "frequency_penalty", "a finite number"),
            (self.penalty_window >= 0, "penalty_window", ">= 0 (0 means all tokens)"),
            (self.max_tokens is None or self.max_tokens >= 1, "max_tokens", ">= 1"),
            (0 <= self.min_tokens <= (self.max_tokens or self.min_tokens), "min_tokens", ">= 0 and <= max_tokens"),
            (all(self.stop), "stop", "without empty strings"),
        )
        for good, name, rule in checks:
            if not good:
                raise LocalInferError(f"{name} is {getattr(self, name)!r}, but must be {rule}")

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
