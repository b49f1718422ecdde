"""Whether an answer has begun to repeat itself and will hardly stop.

An answer loops if its last tokens are one piece of 1 to LONGEST tokens again and again: at least REPEATS times, and for
SHORTEST tokens or more in all. So short pieces must come back often (a single token 64 times), long ones four times.
"""

from __future__ import annotations

from array import array

LONGEST = 128  # tokens of the piece that is repeated
REPEATS = 4
SHORTEST = 64  # tokens that repeat in all


def loop_period(tokens: array[int]) -> int | None:
    """The length of the shortest piece that the tokens end with again and again; None if they do not loop."""
    for period in range(1, min(LONGEST, len(tokens) // REPEATS) + 1):
        length = max(SHORTEST, REPEATS * period)
        if tokens[-1] != tokens[-1 - period] or len(tokens) < length:
            continue
        if tokens[-length + period :] == tokens[-length:-period]:
            return period
    return None
