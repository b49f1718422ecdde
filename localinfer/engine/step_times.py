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
# Of so few measurements the median counts: other programs disturb single steps by any factor, and slow all of them down
# for some seconds, so that only times that were measured close to each other can be compared.
REMEMBERED = 3
REFRESH = 24  # after so many steps with prompts come two without, to know again what that takes
NEVER = (-REFRESH, -REFRESH)


def middle(values: Iterable[float]) -> float:
    """The median, or of two in the middle the larger. (Importing `statistics` takes as long as a tenth of a start.)"""
    ranked = sorted(values)
    return ranked[len(ranked) // 2]


class StepTimes:
    """Times in seconds. What was not measured is predicted from its neighbours, on the careful side."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[float]] = {}  # rows -> what steps without a prompt took
        self._usual: dict[int, float] = {}  # ... the median
        self._mixed: deque[tuple[int, int, float]] = deque(maxlen=3 * REMEMBERED)  # rows, prompt tokens, seconds
        self._alone: deque[float] = deque(maxlen=REMEMBERED)  # what a token of a prompt took in steps without rows
        self._offered = 0  # the last answer of `piece`
        self._largest = 1  # what it may be next: costs jump where a piece fills another tile of the kernels
        self._with_prompt = 0  # steps so far that had rows and a prompt
        # rows -> what `_with_prompt` was the last two times that they were measured without a prompt
        self._known_at: dict[int, tuple[int, int]] = {}

    def record(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        """A step was executed."""
        if not prompt_tokens:
            steps = self._steps.setdefault(rows, deque(maxlen=REMEMBERED))
            steps.append(seconds)
            self._usual[rows] = middle(steps)
            self._known_at[rows] = (self._known_at.get(rows, NEVER)[1], self._with_prompt)
        elif not rows:
            self._alone.append(seconds / prompt_tokens)
        else:
            self._with_prompt += 1
            self._mixed.append((rows, prompt_tokens, seconds))
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
        if self._with_prompt - self._known_at.get(rows, NEVER)[0] >= REFRESH:
            return 0
        token, allowed = self._token(), (SLOWDOWN - 1) * self._usual[rows]
        # Without a division: what a token adds may be measured as next to nothing.
        self._offered = self._largest if token * self._largest <= allowed else max(1, int(allowed / token))
        return self._offered

    def _token(self) -> float:
        """What a token of a prompt adds to a step; 0 if nothing is known."""
        if self._mixed:
            return middle(max(0.0, seconds - self.usual(rows)) / tokens for rows, tokens, seconds in self._mixed)
        return middle(self._alone or [0.0])
