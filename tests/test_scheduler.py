"""The scheduler's policy, without a model: integers in, integers out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.engine.kv import BlockManager
from localinfer.engine.scheduler import AGEING_SECONDS, Scheduler
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.step_times import StepTimes
from test_kv import SIZE, check


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def scheduler(
    blocks: int = 64, *, max_tokens: int = 8, max_sequences: int = 4, share: bool = True, **options: Any
) -> Scheduler:
    kv = BlockManager(blocks, SIZE, share=share)
    return Scheduler(kv, max_tokens=max_tokens, max_sequences=max_sequences, **options)


def sequence(id: int, length: int, priority: int = 0) -> Sequence:
    return Sequence.of_prompt(id, [100 * id + i for i in range(length)], priority=priority)


def counts(chunks: list[Chunk]) -> dict[int, int]:
    return {chunk.sequence.id: chunk.count for chunk in chunks}


def advance(s: Scheduler, next_token: int = 7) -> dict[int, int]:
    """One step that succeeds; every sequence that finishes its tokens gets one more."""
    chunks = s.schedule()
    done = [chunk.sequence for chunk in chunks if chunk.finishes]
    s.commit(chunks)
    for each in done:
        each.tokens.append(next_token)
    return counts(chunks)


def served(s: Scheduler) -> list[int]:
    """Who is served in turn, one at a time, each until its first token."""
    order = []
    while chunks := s.schedule():
        s.commit(chunks)
        for chunk in chunks:
            if chunk.sequence.remaining == 0:
                order.append(chunk.sequence.id)
                s.finish(chunk.sequence)
    return order


def test_a_long_prompt_is_cut_and_the_others_go_on_answering() -> None:
    s = scheduler()
    s.add(sequence(0, 2))
    assert advance(s) == {0: 2}
    s.add(sequence(1, 20))
    s.add(sequence(2, 3))
    assert advance(s) == {0: 1, 1: 7}
    assert advance(s) == {0: 1, 1: 7}
    assert advance(s) == {0: 1, 1: 6, 2: 1}
    assert advance(s) == {0: 1, 1: 1, 2: 2}
    assert advance(s) == {0: 1, 1: 1, 2: 1}


def test_the_piece_of_a_prompt_can_be_limited() -> None:
    s = Scheduler(BlockManager(64, SIZE), max_tokens=8, max_sequences=4, chunk=3)
    s.add(sequence(0, 7))
    assert [advance(s) for _ in range(4)] == [{0: 3}, {0: 3}, {0: 1}, {0: 1}]


def test_no_more_sequences_than_allowed_first_come_first_served() -> None:
    s = scheduler(max_tokens=8, max_sequences=2)
    all_three = [sequence(id, 2) for id in range(3)]
    for each in all_three:
        s.add(each)
    assert advance(s) == {0: 2, 1: 2}
    s.finish(all_three[0])
    assert advance(s) == {1: 1, 2: 2}


def test_the_latest_comer_gives_way_and_comes_back() -> None:
    s = scheduler(blocks=4, max_tokens=16, share=False)
    first, second = sequence(0, 7), sequence(1, 8)
    s.add(first)
    s.add(second)
    assert advance(s) == {0: 7, 1: 8}
    assert advance(s) == {0: 1}  # the second needs a third block
    assert second.preemptions == 1
    assert second.blocks == []
    assert list(s.waiting) == [second]
    check(s.kv, s.running)
    s.finish(first)
    assert advance(s) == {1: 9}


def test_a_preempted_sequence_goes_before_those_that_came_later() -> None:
    s = scheduler(blocks=4, max_tokens=16, max_sequences=2, share=False)
    for id, length in ((0, 7), (1, 8), (2, 2)):
        s.add(sequence(id, length))
    advance(s)
    advance(s)
    assert [each.id for each in s.waiting] == [1, 2]


def test_a_rolled_back_step_is_scheduled_again() -> None:
    s = scheduler()
    first = sequence(0, 6)
    s.add(first)
    s.rollback(s.schedule())
    assert (first.computed, first.blocks) == (0, [])
    check(s.kv, s.running)
    assert advance(s) == {0: 6}
    s.rollback(s.schedule())
    assert first.computed == 6
    assert advance(s) == {0: 1}


def test_leaving_is_possible_anywhere_and_twice() -> None:
    s = scheduler(max_sequences=1)
    running, waiting = sequence(0, 4), sequence(1, 4)
    s.add(running)
    s.add(waiting)
    chunks = s.schedule()
    for each in (running, waiting, running, waiting):
        s.finish(each)
    s.commit(chunks)
    s.rollback(chunks)
    assert s.schedule() == []
    assert s.kv.free == s.kv.count


def test_a_lower_priority_number_is_served_earlier_and_equal_ones_in_order() -> None:
    clock = FakeClock()
    s = scheduler(max_sequences=1, clock=clock)
    for id, priority in enumerate((0, 1, -1, 1, 0)):
        s.add(sequence(id, 2, priority))
        clock.now += 0.1
    assert served(s) == [2, 0, 4, 1, 3]


def test_who_came_so_much_later_stands_behind_whatever_its_priority() -> None:
    clock = FakeClock()
    s = scheduler(max_sequences=1, clock=clock)
    s.add(sequence(0, 2, 3))
    clock.now = 2.9 * AGEING_SECONDS
    s.add(sequence(1, 2))
    clock.now = 3.1 * AGEING_SECONDS
    s.add(sequence(2, 2))
    assert served(s) == [1, 0, 2]


def test_the_least_urgent_gives_its_blocks_back_first() -> None:
    s = scheduler(blocks=4, max_tokens=16, share=False, clock=FakeClock())
    patient, urgent = sequence(0, 8, 1), sequence(1, 7)
    s.add(patient)
    assert advance(s) == {0: 8}
    s.add(urgent)
    assert advance(s) == {0: 1}  # its third block leaves one: not enough for the other
    s.finish(patient)
    s.add(patient_again := sequence(2, 5, 1))
    assert advance(s) == {1: 7, 2: 5}
    assert advance(s) == {1: 1, 2: 1}
    assert advance(s) == {1: 1}
    assert (urgent.preemptions, patient_again.preemptions) == (0, 1)


class Machine:
    """Steps take 10 ms, a row 1 ms more and a token of a prompt 2 ms; `disturb` says by what factor more."""

    def __init__(self, disturb: Callable[[], float] = lambda: 1.0) -> None:
        self.times = StepTimes()
        self.scheduler = scheduler(blocks=600, max_tokens=64, times=self.times)
        self.disturb = disturb

    def step(self) -> tuple[int, int, float]:
        """Rows, tokens of prompts, and seconds of a step."""
        chunks = self.scheduler.schedule()
        rows = sum(chunk.decodes for chunk in chunks)
        tokens = sum(chunk.count for chunk in chunks) - rows
        seconds = (0.010 + 0.001 * rows + 0.002 * tokens) * self.disturb()
        self.times.record(rows, tokens, seconds)
        done = [chunk.sequence for chunk in chunks if chunk.finishes]
        self.scheduler.commit(chunks)
        for each in done:
            each.tokens.append(7)
        return rows, tokens, seconds

    def process(self, prompt: Sequence) -> list[tuple[int, int, float]]:
        """The steps until the prompt is processed."""
        self.scheduler.add(prompt)
        steps = []
        while prompt.remaining > 1 or not prompt.computed:
            steps.append(self.step())
        return steps


def test_beside_answers_a_prompt_comes_in_pieces_that_fit_the_time() -> None:
    machine = Machine()
    answering = sequence(0, 2)
    assert [step[:2] for step in machine.process(answering)] == [(0, 2)], "a prompt without answers comes whole"
    machine.step()
    machine.step()
    steps = machine.process(long := sequence(1, 1000))
    assert all(rows == 1 for rows, _, _ in steps), "an answer stopped"
    assert max(seconds for _, _, seconds in steps) <= 2 * 0.011
    pieces = [tokens for _, tokens, _ in steps]
    assert pieces[0] >= 1
    assert max(pieces) == 4, "0.75 * 11 ms hold four tokens of 2 ms"
    assert 1000 / 4 <= len(steps) < 1000 / 3.5
    assert 10 <= pieces.count(0) <= len(steps) // 12, "now and then a step shows what it takes without a prompt"
    machine.scheduler.finish(answering)
    machine.scheduler.finish(long)
    assert machine.process(sequence(2, 1000))[0][1] == 64, "nobody waits: the largest step"


def test_other_programs_disturb_the_pieces_little() -> None:
    chance = Random(3)
    machine = Machine(lambda: chance.choice((1.0, 1.1, 1.3, 1.6, 2.0, 8.0)))
    machine.process(sequence(0, 2))
    for _ in range(20):
        machine.step()
    pieces = [tokens for _, tokens, _ in machine.process(sequence(1, 1000))]
    assert 2.5 <= sum(pieces) / len(pieces) <= 7


def test_a_machine_that_becomes_slow_and_quick_again_changes_the_pieces_little() -> None:
    now = {"factor": 1.0}
    machine = Machine(lambda: now["factor"])
    machine.process(sequence(0, 2))
    machine.step()
    machine.scheduler.add(long := sequence(1, 2000))
    for factor in (1.0, 4.0, 1.0, 3.0):
        now["factor"] = factor
        steps = [machine.step() for _ in range(100)]
        assert sum(tokens for _, tokens, _ in steps) > 250
        assert max(tokens for _, tokens, _ in steps[60:]) <= 5
    assert long.computed > 1000


def test_a_prompt_that_stood_back_for_answers_goes_on_when_they_lose_their_blocks() -> None:
    times = StepTimes()  # knows nothing: it asks for steps without prompts
    s = scheduler(blocks=4, max_sequences=2, share=False, chunk=2, times=times)
    s.add(sequence(0, 12))
    s.add(answer := sequence(1, 4))
    assert [advance(s) for _ in range(2)] == [{0: 2, 1: 2}] * 2
    assert [advance(s) for _ in range(8)] == [{1: 1}] * 8
    assert advance(s) == {0: 2}, "the answer needs a fourth block, and there is none"
    assert answer.preemptions == 1


def test_a_step_has_no_more_rows_of_logits_than_it_may() -> None:
    s = scheduler(max_tokens=64, max_sequences=3, max_rows=5)
    whole_prompt, end_of_prompt = sequence(0, 20), sequence(1, 20)
    whole_prompt.rows_from, end_of_prompt.rows_from = 0, 16
    for each in (whole_prompt, end_of_prompt, sequence(2, 20)):
        s.add(each)
    rows = []
    while any(each.computed < 20 for each in (whole_prompt, end_of_prompt)):
        chunks = s.schedule()
        rows.append([chunk.rows for chunk in chunks])
        s.commit(chunks)
    assert rows[0] == [3, 1, 1]
    assert max(map(sum, rows)) <= 5
    assert sum(row[0] for row in rows[:7]) == 20


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(6, 14),
    st.integers(1, 9),
    st.integers(1, 4),
    st.booleans(),
    st.sets(st.integers(0, 50)),
    st.randoms(use_true_random=False),
)
def test_every_load_is_served_to_the_end(
    requests: list[tuple[int, int, int]],
    blocks: int,
    max_tokens: int,
    max_sequences: int,
    share: bool,
    failing_steps: set[int],
    chance: Random,
) -> None:
    """Requests `(steps before it comes, prompt length, answer length)` on a pool that holds little more than one, on a
    machine whose steps take any time.
    """
    context = blocks * SIZE
    times = StepTimes()
    s = scheduler(
        blocks,
        max_tokens=max(max_tokens, max_sequences),
        max_sequences=max_sequences,
        share=share,
        times=chance.choice((None, times)),
    )
    arriving = [
        (delay, Sequence.of_prompt(id, [i % 5 for i in range(prompt)]), min(prompt + answer, context))
        for id, (delay, prompt, answer) in enumerate(requests)
        if prompt < context
    ]
    goal = {each.id: length for _, each, length in arriving}
    waiting, step = sorted(arriving, key=lambda a: a[0]), 0
    live: list[Sequence] = []
    while waiting or live:
        while waiting and waiting[0][0] <= step:
            live.append(waiting.pop(0)[1])
            live[-1].priority = chance.choice((-1, 0, 0, 1))
            s.add(live[-1])
        first = s.running[0] if s.running else None
        chunks = s.schedule()
        check(s.kv, s.running)
        assert sum(chunk.count for chunk in chunks) <= s.max_tokens
        assert len(chunks) == len({chunk.sequence.id for chunk in chunks}) <= max_sequences
        assert all(0 < chunk.count <= chunk.sequence.remaining for chunk in chunks)
        assert bool(chunks) == bool(live)
        rows = sum(chunk.sequence.remaining == 1 for chunk in chunks)
        assert first is None or (s.times and rows) or chunks[0].sequence is first, "the first does not advance"
        times.record(rows, sum(chunk.count for chunk in chunks) - rows, chance.random())
        for each in s.running:
            assert len(each.blocks) == s.kv.blocks_for(
                each.computed + sum(chunk.count for chunk in chunks if chunk.sequence is each)
            )
        if step in failing_steps:
            s.rollback(chunks)
        else:
            finishing = [chunk.sequence for chunk in chunks if chunk.finishes]
            s.commit(chunks)
            for each in finishing:
                each.tokens.append(len(each.tokens) % 5)
                if len(each.tokens) >= goal[each.id]:
                    s.finish(each)
                    live.remove(each)
        check(s.kv, s.running)
        step += 1
        assert step < 2000
    assert s.kv.free == s.kv.count
