"""How many tokens to draft: as many as measure faster, and none where none does.

A drafted token costs a row more in the step (and its share of the draft model's time) and is accepted with some
chance. Without drafts a step of `answers` rows makes as many tokens in its usual time. So a drafted token pays off if
its chance of being accepted, per second that it costs, is above the rate at which tokens come anyway. All of these are
measured: the usual time in steps without drafts, what a row adds in steps with them, chances by *arm*.

An arm is a way to draft whose tokens are about equally good: a draft model, or places where so many tokens agreed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from localinfer.engine.step_times import StepTimes, middle

MARGIN = 1.1  # what pays off on paper by less than a tenth is left: measurements are not that exact
MEMORY = 0.98  # the weight of what was learned before, against one more drafted token
KNOWN = 12  # drafted tokens after which an arm's chance is believed
REMEMBERED = 9  # measured times of which the median counts
# What a row adds as long as it is not measured, by the time of a token without drafts: it costs less than a token of
# its own, since it shares the reading of the weights.
GUESSED_ROW = 0.25
TINY = 1e-9  # seconds: a row may be measured to cost nothing
REFRESH = 64  # after so many steps with drafts in a row comes one without, to know again what that takes
EXPLORE = 64  # after being left in so many steps, an arm drafts one token, to know again how good it is


class Offer(NamedTuple):
    """At most `most` tokens can be drafted for a sequence, in the way `arm`."""

    arm: Hashable
    most: int


@dataclass
class _Arm:
    accepted: float = 1.0
    tried: float = 2.0
    left: int = 0  # steps in a row that offered it and did not draft with it
    drafting: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # seconds per token

    @property
    def chance(self) -> float:
        """That a drafted token is accepted, if those before it were."""
        return self.accepted / self.tried

    @property
    def seconds(self) -> float:
        """What drafting one token takes."""
        return middle(self.drafting) if self.drafting else 0.0


class DraftControl:
    """Decides step by step; learns from what `record` hears."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._arms: dict[Hashable, _Arm] = {}
        self._rows: dict[int, deque[float]] = {}  # answers in a step -> seconds that a drafted row added
        self._with_drafts = 0  # steps with drafts since the last without

    def chance(self, arm: Hashable) -> float:
        """That a token drafted in this way is accepted, as far as it is known."""
        return self._arms.setdefault(arm, _Arm()).chance

    def prefers(self, arm: Hashable, other: Hashable) -> bool:
        """Whether to draft with `arm`, which takes no time to draft, where `other` can be had too."""
        return self.chance(arm) >= self.chance(other) or self._arms[arm].tried < KNOWN

    def lengths(self, offers: Sequence[Offer], answers: int, rows: int) -> list[int]:
        """How many tokens to draft for each offer, `rows` in all at most, in a step of `answers` sequences."""
        counts = [0] * len(offers)
        usual = self._times.known(answers)
        if usual is None or self._with_drafts >= REFRESH:
            self._with_drafts = 0
            return counts
        arms = [self._arms.setdefault(offer.arm, _Arm()) for offer in offers]
        tokens, seconds = float(answers), usual
        row = middle(self._rows[answers]) if answers in self._rows else GUESSED_ROW * usual / answers
        costs = [row + arm.seconds for arm in arms]
        chances = [arm.chance for arm in arms]  # of each sequence's next drafted token
        while sum(counts) < rows:
            more = [i for i, offer in enumerate(offers) if counts[i] < offer.most]
            best = max(more, key=lambda i: chances[i] / (costs[i] + TINY), default=-1)
            if best < 0 or chances[best] * seconds <= MARGIN * costs[best] * tokens:
                break
            counts[best] += 1
            tokens, seconds = tokens + chances[best], seconds + costs[best]
            chances[best] *= arms[best].chance
        self._explore(offers, counts, rows)
        return counts

    def record(self, answers: int, drafts: Sequence[tuple[Hashable, int, int]], seconds: float) -> None:
        """A step of `answers` sequences took `seconds`; per draft the arm, the tokens drafted and those accepted."""
        drafted = 0
        for name, count, accepted in drafts:
            arm = self._arms.setdefault(name, _Arm())
            tried = min(accepted + 1, count)  # what follows a rejected token says nothing
            kept = MEMORY**tried
            arm.accepted = arm.accepted * kept + accepted
            arm.tried = arm.tried * kept + tried
            drafted += count
        self._with_drafts = self._with_drafts + 1 if drafted else 0
        usual = self._times.known(answers)
        if drafted and usual is not None:
            rows = self._rows.setdefault(answers, deque(maxlen=REMEMBERED))
            rows.append(max(0.0, seconds - usual) / drafted)

    def record_drafting(self, name: Hashable, tokens: int, seconds: float) -> None:
        """Drafting `tokens` tokens took `seconds`."""
        self._arms.setdefault(name, _Arm()).drafting.append(seconds / tokens)

    def _explore(self, offers: Sequence[Offer], counts: list[int], rows: int) -> None:
        taken = {offer.arm for offer, count in zip(offers, counts, strict=True) if count}
        for name in {offer.arm for offer in offers if offer.most}:
            arm = self._arms[name]
            arm.left = 0 if name in taken else arm.left + 1
            if arm.left >= EXPLORE and sum(counts) < rows:
                counts[next(i for i, offer in enumerate(offers) if offer.arm == name and offer.most)] = 1
                arm.left = 0
