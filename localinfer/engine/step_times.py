"""How long steps take, learned from the steps that were taken.

A step has *rows* that answers wait for (one per sequence that decodes, and one per drafted token) and tokens of
prompts. Learned are what a step of so many rows takes without a prompt, and what every token of a prompt adds to it.
From both follows how many tokens of a prompt fit in a step without making the answers wait too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# What a step with a piece of a prompt may take, by the same step without it. Twice is promised: the rest is for noise.
SLOWDOWN = 1.75
REMEMBERED = 9  # measurements of which the median counts: other programs disturb single steps by any factor
REFRESH = 64  # after so many steps with prompts in a row comes one without, to know again what that takes


def middle(values: Iterable[float]) -> float:
    """The median, or of two in the middle the larger. (Importing `statistics` takes as long as a tenth of a start.)"""
    ranked = sorted(values)
    return ranked[len(ranked) // 2]


class StepTimes:
    """Times in seconds. What was not measured is predicted from its neighbours, on the careful side."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[float]] = {}  # rows -> what steps without a prompt took
        self._usual: dict[int, float] = {}  # ... the median
        self._added: deque[float] = deque(maxlen=REMEMBERED)  # what a token of a prompt added to steps with rows
        self._alone: deque[float] = deque(maxlen=REMEMBERED)  # what it took in steps without
        self._offered = 0  # the last answer of `piece`
        self._largest = 1  # what it may be next: costs jump where a piece fills another tile of the kernels
        self._with_prompt = 0  # steps with rows and a prompt since the last without a prompt

    def record(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        """A step was executed."""
        if not prompt_tokens:
            self._with_prompt = 0
            steps = self._steps.setdefault(rows, deque(maxlen=REMEMBERED))
            steps.append(seconds)
            self._usual[rows] = middle(steps)
        elif not rows:
            self._alone.append(seconds / prompt_tokens)
        else:
            self._with_prompt += 1
            self._added.append(max(0.0, seconds - self.usual(rows)) / prompt_tokens)
            if prompt_tokens >= self._offered:
                self._largest = prompt_tokens + 1 + prompt_tokens // 4

    def known(self, rows: int) -> float | None:
        """What a step of `rows` rows without a prompt took; None if there was none."""
        return self._usual.get(rows)

    def usual(self, rows: int) -> float:
        """What a step of `rows` rows takes without a prompt; 0 if nothing is known."""
        if rows in self._usual:
            return self._usual[rows]
        if fewer := max((known for known in self._usual if known < rows), default=0):
            return self._usual[fewer]
        more = min(self._usual, default=0)
        return self._usual[more] * rows / more if more else 0.0

    def piece(self, rows: int) -> int | None:
        """How many tokens of prompts a step with `rows` rows may hold; None: any number.

        0 asks for a step without prompts: it is not known, or not known any more, what that takes.
        """
        if not rows:
            return None
        usual = self.usual(rows)
        if not usual or self._with_prompt >= REFRESH:
            return 0
        token = middle(self._added or self._alone or [0.0])
        allowed = (SLOWDOWN - 1) * usual
        # Without a division: what a token adds may be measured as next to nothing.
        self._offered = self._largest if token * self._largest <= allowed else max(1, int(allowed / token))
        return self._offered
