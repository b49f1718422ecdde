"""Whether to draft, decided on machines that are made up: what a step takes, and how often a draft is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from localinfer.engine.draft_control import EXPLORE, DraftControl, Offer
from localinfer.engine.step_times import StepTimes

MOST = 8


@dataclass
class Machine:
    """A step takes `base + answers * answer + drafted * row` seconds, drafting a token `drafting`; noise is a share."""

    base: float
    answer: float
    row: float
    chances: dict[str, float]
    drafting: float = 0.0
    noise: float = 0.0
    chance: Random = field(default_factory=lambda: Random(5))
    seconds: float = 0.0
    tokens: int = 0
    drafted: int = 0

    def step(self, arms: list[str], counts: list[int]) -> tuple[list[tuple[str, int, int]], float]:
        """The drafts with what is accepted of them, and what the step took."""
        drafts = []
        for arm, count in zip(arms, counts, strict=True):
            accepted = 0
            while accepted < count and self.chance.random() < self.chances[arm]:
                accepted += 1
            drafts.append((arm, count, accepted))
        seconds = self.base + len(arms) * self.answer + sum(counts) * self.row
        seconds *= 1 + self.noise * self.chance.random()
        self.seconds += seconds + sum(counts) * self.drafting
        self.tokens += len(arms) + sum(accepted for _, _, accepted in drafts)
        self.drafted += sum(counts)
        return drafts, seconds

    def run(self, control: DraftControl | None, times: StepTimes, arms: list[str], steps: int, fixed: int = 0) -> float:
        """Tokens per second of so many steps, with as many drafts as the control says, or a fixed number of them."""
        self.seconds, self.tokens, self.drafted = 0.0, 0, 0
        for _ in range(steps):
            counts = [fixed] * len(arms)
            if control:
                counts = control.lengths([Offer(arm, MOST) for arm in arms], len(arms), MOST * len(arms))
            drafts, seconds = self.step(arms, counts)
            if control:
                if not any(counts):
                    times.record(len(arms), 0, seconds)
                elif self.drafting:
                    for arm, count, _ in drafts:
                        if count:
                            control.record_drafting(arm, count, count * self.drafting)
                control.record(len(arms), drafts, seconds)
        return self.tokens / self.seconds


@pytest.mark.parametrize("answers", [1, 8])
@pytest.mark.parametrize("row", [0.0, 0.0003, 0.001, 0.004])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("drafting", [0.0, 0.0008])
def test_it_is_as_fast_as_the_best_number_of_drafts_or_nearly(
    answers: int, row: float, chance: float, drafting: float
) -> None:
    machine = Machine(0.003, 0.0005, row, {"arm": chance}, drafting, noise=0.1)
    arms, times = ["arm"] * answers, StepTimes()
    control = DraftControl(times)
    machine.run(control, times, arms, 300)
    found = machine.run(control, times, arms, 1500)
    fixed = [machine.run(None, times, arms, 1500, fixed=count) for count in range(MOST + 1)]
    assert found >= 0.9 * max(fixed)
    assert found >= 0.97 * fixed[0], "slower than without"


def test_no_draft_is_made_before_it_is_known_what_a_step_takes_without() -> None:
    times = StepTimes()
    control = DraftControl(times)
    assert control.lengths([Offer("arm", 4)], 1, 8) == [0]
    times.record(1, 0, 0.004)
    assert control.lengths([Offer("arm", 4)], 1, 8)[0] > 0
    assert control.lengths([Offer("arm", 4), Offer("arm", 4)], 2, 8) == [0, 0], "of two answers nothing is known"


def test_it_gives_the_rows_to_the_likelier_drafts() -> None:
    times = StepTimes()
    times.record(2, 0, 0.004)
    control = DraftControl(times)
    for _ in range(30):
        control.record(2, [("good", 4, 4), ("bad", 4, 0)], 0.0045)
    assert control.lengths([Offer("bad", 8), Offer("good", 8)], 2, 4) == [0, 4]
    assert control.lengths([Offer("bad", 8), Offer("good", 3)], 2, 4)[1] == 3
    assert control.chance("good") > 0.9 > 0.1 > control.chance("bad")


def test_an_arm_that_does_not_pay_is_tried_now_and_then_and_taken_up_when_it_does() -> None:
    machine = Machine(0.003, 0.001, 0.001, {"arm": 0.05}, noise=0.1)
    times = StepTimes()
    control = DraftControl(times)
    machine.run(control, times, ["arm"], 1000)
    machine.run(control, times, ["arm"], 1000)
    assert 0 < machine.drafted <= 2 * 1000 / EXPLORE
    machine.chances["arm"] = 0.95
    machine.run(control, times, ["arm"], 6000)
    machine.run(control, times, ["arm"], 1000)
    assert machine.drafted > 2000


def test_one_slow_step_does_not_end_it() -> None:
    machine = Machine(0.003, 0.001, 0.0001, {"arm": 0.9})
    times = StepTimes()
    control = DraftControl(times)
    times.record(1, 0, 0.004)
    control.record(1, [("arm", 1, 1)], 0.500)
    machine.run(control, times, ["arm"], 1000)
    machine.run(control, times, ["arm"], 100)
    assert machine.drafted > 300
