"""Sampling parameters of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from localinfer.engine.checks import number, whole, wrong
from localinfer.errors import LocalInferError
from localinfer.text.constraint import Bounds, CallBounds, Thought
from localinfer.text.grammar import Grammar

# The sampler calculates with logits in float32: what is further out makes them infinite, and means nothing.
LARGEST, SMALLEST_DIVISOR = 1e9, 1e-9
MOST_CHOICES = 128  # answers to one request
MOST_BREAKERS, LONGEST_BREAKER = 32, 40  # sequence breakers of DRY, and characters in one

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
    "dry_multiplier": (f"from 0 (off) to {LARGEST:g}", lambda x: 0 <= x <= LARGEST),
    "dry_base": (f"from 1 to {LARGEST:g}", lambda x: 1 <= x <= LARGEST),
    "top_n_sigma": (f"from 0 (off) to {LARGEST:g}", lambda x: 0 <= x <= LARGEST),
    "dynatemp_range": (f"from 0 (off) to {LARGEST:g}", lambda x: 0 <= x <= LARGEST),
    "dynatemp_exponent": (f"from 0 to {LARGEST:g}", lambda x: 0 <= x <= LARGEST),
    "xtc_probability": ("from 0 (off) to 1", lambda x: 0 <= x <= 1),
    "xtc_threshold": ("from 0 to 1", lambda x: 0 <= x <= 1),
    "mirostat_tau": ("from 0 to 1000", lambda x: 0 <= x <= 1000),
    "mirostat_eta": ("from 0 to 1000", lambda x: 0 <= x <= 1000),
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
    ("dry_allowed_length", 0, None, ""),
    ("dry_penalty_last_n", -1, None, "a whole number >= -1 (-1: all tokens, 0: off)"),
    ("mirostat", 0, 2, "0 (off), 1 or 2"),
    ("thinking_budget", 0, None, ""),
)
_MAY_BE_NONE = ("seed", "max_tokens", "best_of", "prompt_logprobs", "thinking_budget")
_NOT_IN_A_SEARCH = ("grammar", "calls", "thinking_budget", "best_of")


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the logits, and when to stop.

    Tokens are ranked by (logit descending, id ascending). In this order:

    1. `logit_bias`: added to the logits of the tokens that it names.
    2. penalties, on the logits, over the last `penalty_window` tokens (0: all). `repetition_penalty` r (Keskar et al.
       2019, arXiv:1909.05858) looks at prompt and answer: l / r if l > 0, else l * r. `presence_penalty` and
       `frequency_penalty` look at the answer only, where the token occurs n > 0 times: l - presence - frequency * n.
    3. DRY (p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/5677), if `dry_multiplier` > 0: where
       the last n >= `dry_allowed_length` tokens stand a second time among the last `dry_penalty_last_n` ones (-1: of
       all, 0: off), the token behind them there gets l - dry_multiplier * dry_base ** (n - dry_allowed_length), for
       its largest n. None of these n belongs to a text of `dry_sequence_breakers`, and tokens that hold a whole one
       are left alone.
    4. `temperature` 0 is greedy: the token that ranks first of those that may be drawn, and nothing below matters.
    5. `top_n_sigma` n (Tang et al. 2024, arXiv:2411.07641): the logits >= the largest - n * the standard deviation of
       all (0: off).
    6. `top_k`: the first k (0: all).
    7. `temperature` t: l / t. If `dynatemp_range` d > 0 (as in llama.cpp, after Zhu et al. 2023, arXiv:2309.02772), t
       depends on the entropy H of the tokens left, whose number is N: it is low + (high - low) * (H / ln N) **
       dynatemp_exponent, with low = max(0, temperature - d) and high = temperature + d.
    8. `typical_p` (Meister et al. 2023, arXiv:2202.00666): ranked by |entropy + log p| ascending, the fewest tokens
       whose probabilities reach typical_p.
    9. `top_p`: the fewest first tokens whose probabilities reach top_p.
    10. `min_p`: those at least min_p times as likely as the likeliest that is left.
    11. XTC (p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/6335), with `xtc_probability` at each
        token: if several tokens have probabilities >= `xtc_threshold`, all of these go but the one that ranks last.
    12. one draw: the tokens left, ascending by id, divide [0, 1) in proportion to their probabilities; the number
        that picks one of them is a function (Philox4x32-10) of the seed, the position and the answer's number alone,
        and so is that of 11. So a request gives the same tokens alone or in a crowd, and its first answer is that of a
        request for one. `seed` None takes one at random, which the answer names.

    `mirostat` (Basu et al. 2021, arXiv:2007.14966) stands for 5 to 11, with a fixed `temperature`. It keeps a number
    mu, which begins as 2 * mirostat_tau; after a token of probability p among those left it becomes
    mu - mirostat_eta * (-log2 p - mirostat_tau), so that surprises come to be `mirostat_tau` bits on average. 2 leaves
    the tokens with -log2 p <= mu, or the first in rank. 1 leaves the first k = (e * 2**mu / (1 - N**-e)) ** (1/s) of a
    vocabulary of N, where s = 1 + e is how fast the first 100 probabilities fall with the rank (least squares of their
    logarithms).

    Probabilities in 8 to 11 are those of the tokens that the steps before have left. What a grammar forbids, and what
    may not end the answer yet, goes before 4. Generation ends with a token
    that the model ends with (unless `ignore_eos`) or that `stop_token_ids` names, with a text in `stop` (which is not
    part of the answer), after `max_tokens` (None: no limit but the context), or where the context is full. Before
    `min_tokens` no such token can be drawn, and no stop text ends it. `loop_detection` also ends an answer that repeats
    itself (engine/loop.py says when).

    `logprobs` adds each token's log probability, that of the logits as the model gave them, and `top_logprobs` (which
    implies it) those of so many tokens that rank first in them. `prompt_logprobs` does the same for the prompt: 0 for
    its tokens alone, k with the first k at each place.

    `n` answers are given; of `best_of` that are drawn, the n whose mean log probability (of the logits as the model
    gave them) per token is largest, best first. `beam_width` w > 0 searches instead of drawing: at every place the w
    unfinished answers are kept whose log probabilities (of the logits after 1 to 3) add up to most; finished ones are
    ranked by that sum divided by length ** `length_penalty`, and the search ends as soon as w are finished and no
    unfinished one ranks before the last of these as it stands. The n that rank first are given.

    With a `grammar` only tokens can be drawn with which the answer can still come to fit it, and those that the model
    ends with only where it fits; it ends where nothing may follow, whatever `min_tokens` says. An answer that is cut
    off by `max_tokens` fits up to there. `calls` binds calls of tools in the same way. What the model thinks before it
    answers is not bound: `thought` tells how it marks that (LLM.chat and the server find out), and after
    `thinking_budget` tokens (None: any number, 0: it does not think) the mark that ends it is forced. A model that
    does not think stays within any budget.
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
    calls: CallBounds | None = None
    thought: Thought | None = None
    thinking_budget: int | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

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
        put("dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
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
        if not isinstance(self.calls, CallBounds | None):
            raise wrong("calls", self.calls, "a CallBounds (localinfer/text/constraint.py), or None")
        if not isinstance(self.thought, Thought | None):
            raise wrong("thought", self.thought, "a Thought (localinfer/text/constraint.py), or None")
        self._check_choices()

    def _check_choices(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise wrong("best_of", self.best_of, f">= n, which is {self.n}")
        if not self.beam_width:
            return
        if self.beam_width < self.n:
            raise wrong("beam_width", self.beam_width, f">= n, which is {self.n}")
        unset = dict.fromkeys(_NOT_IN_A_SEARCH)
        for name, needed in {"temperature": 0, "loop_detection": False, **unset}.items():
            if getattr(self, name) != needed:
                raise wrong(name, getattr(self, name), f"{needed!r} for a beam search")

    @property
    def bounds(self) -> Bounds | None:
        """What binds the answer; None if nothing does."""
        limited = self.thought is not None and self.thinking_budget is not None
        if self.grammar is None and self.calls is None and not limited:
            return None
        return Bounds(self.grammar, self.calls, self.thought, self.thinking_budget)

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

    @property
    def looks_back(self) -> bool:
        """Whether DRY has anything to do."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

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


def _breakers(value: Any) -> tuple[str, ...]:
    texts = _texts("dry_sequence_breakers", value)
    if len(texts) > MOST_BREAKERS or any(len(text) > LONGEST_BREAKER for text in texts):
        rule = f"at most {MOST_BREAKERS} texts of at most {LONGEST_BREAKER} characters"
        raise wrong("dry_sequence_breakers", texts, rule)
    return texts


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
