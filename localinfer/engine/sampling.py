"""Sampling parameters of a request."""

from __future__ import annotations

from dataclasses import dataclass

from localinfer.errors import LocalInferError


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the logits, and when to stop.

    Order: penalties, temperature, top-k, typical, top-p, min-p, then one draw. `temperature` = 0 is greedy: the largest
    logit, the lowest id among equals. The draw at position p is a function of (seed, p) alone, so a request
    gives the same tokens alone or in a crowd.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0  # how many last tokens the penalties look at; 0: all of them
    seed: int | None = None
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checks = (
            (self.temperature >= 0, "temperature", self.temperature, ">= 0"),
            (self.top_k >= 0, "top_k", self.top_k, ">= 0 (0 switches it off)"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]"),
            (0 <= self.min_p < 1, "min_p", self.min_p, "in [0, 1)"),
            (0 < self.typical_p <= 1, "typical_p", self.typical_p, "in (0, 1]"),
            (self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "> 0"),
            (self.penalty_window >= 0, "penalty_window", self.penalty_window, ">= 0 (0 means all tokens)"),
            (self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, ">= 1"),
            (all(self.stop), "stop", self.stop, "without empty strings"),
        )
        for good, name, value, rule in checks:
            if not good:
                raise LocalInferError(f"{name} is {value!r}, but must be {rule}")
