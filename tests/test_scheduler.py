"""The scheduler's policy, without a model: integers in, integers out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.engine.kv import BlockManager
from localinfer.engine.scheduler import Scheduler
from localinfer.engine.sequence import Chunk, Sequence
from test_kv import SIZE, check


def scheduler(blocks: int = 64, *, max_tokens: int = 8, max_sequences: int = 4, share: bool = True) -> Scheduler:
    return Scheduler(BlockManager(blocks, SIZE, share=share), max_tokens=max_tokens, max_sequences=max_sequences)


def sequence(id: int, length: int) -> Sequence:
    return Sequence.of_prompt(id, [100 * id + i for i in range(length)])


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


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(6, 14),
    st.integers(1, 9),
    st.integers(1, 4),
    st.booleans(),
    st.sets(st.integers(0, 50)),
)
def test_every_load_is_served_to_the_end(
    requests: list[tuple[int, int, int]],
    blocks: int,
    max_tokens: int,
    max_sequences: int,
    share: bool,
    failing_steps: set[int],
) -> None:
    """Requests `(steps before it comes, prompt length, answer length)` on a pool that holds little more than one."""
    context = blocks * SIZE
    s = scheduler(blocks, max_tokens=max(max_tokens, max_sequences), max_sequences=max_sequences, share=share)
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
            s.add(live[-1])
        chunks = s.schedule()
        check(s.kv, s.running)
        assert sum(chunk.count for chunk in chunks) <= s.max_tokens
        assert len(chunks) == len({chunk.sequence.id for chunk in chunks}) <= max_sequences
        assert all(0 < chunk.count <= chunk.sequence.remaining for chunk in chunks)
        assert bool(chunks) == bool(live)
        if live:
            assert chunks[0].sequence is live[0], "the first comer does not advance"
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
