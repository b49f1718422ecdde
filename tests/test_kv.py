"""The block manager: what is shared, what is kept, and that no block is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from localinfer.engine.kv import BlockManager
from localinfer.engine.sequence import Sequence

SIZE = 4


def check(kv: BlockManager, sequences: Iterable[Sequence]) -> None:
    """No block leaked, none shared by two writers, none free and used, at most one partly filled per sequence."""
    live = list(sequences)
    used = Counter(block for sequence in live for block in sequence.blocks)
    assert kv.free + len(used) == kv.count
    assert not set(used) & (set(kv._empty) | set(kv._idle))
    assert len(set(kv._empty)) == len(kv._empty)
    assert not set(kv._empty) & set(kv._idle)
    assert [kv._users[block] for block in range(kv.count)] == [used[block] for block in range(kv.count)]
    known = {*kv._full.values(), *(block for block, _ in kv._tails.values())}
    assert set(kv._key) == known
    assert set(kv._idle) <= known
    assert not known & set(kv._empty)
    following = {block: parent for parent, blocks in kv._following.items() for block in blocks}
    assert following == kv._parents
    assert set(following) == set(kv._full.values())
    assert all(kv._following.values()), "what nothing follows any more is still remembered"
    for sequence in live:
        assert len(sequence.blocks) == len(set(sequence.blocks))
        for block in sequence.blocks[sequence.computed // SIZE :]:
            assert used[block] == 1, "a block that is written to is shared"


def start(kv: BlockManager, id: int, tokens: list[int]) -> Sequence:
    sequence = Sequence.of_prompt(id, tokens)
    kv.admit(sequence)
    return sequence


def compute(kv: BlockManager, sequence: Sequence) -> None:
    assert kv.grow(sequence, len(sequence.tokens))
    kv.commit(sequence, len(sequence.tokens))


def test_equal_beginnings_are_shared_while_in_use_and_after() -> None:
    kv = BlockManager(8, SIZE)
    first = start(kv, 0, [*range(10)])
    compute(kv, first)
    second = start(kv, 1, [*range(8), 99, 98, 97])
    assert second.computed == 8
    assert second.blocks == first.blocks[:2]
    check(kv, [first, second])
    kv.release(first)
    kv.release(second)
    check(kv, [])
    third = start(kv, 2, [*range(8), 5])
    assert third.computed == 8


def test_nothing_is_shared_before_it_is_committed() -> None:
    kv = BlockManager(8, SIZE)
    first = start(kv, 0, [*range(8)])
    assert kv.grow(first, 8)
    assert start(kv, 1, [*range(8)]).computed == 0
    kv.commit(first, 4)
    assert start(kv, 2, [*range(8)]).computed == 4


def test_a_full_hit_still_computes_the_last_token_in_a_block_of_its_own() -> None:
    kv = BlockManager(8, SIZE)
    first = start(kv, 0, [*range(8)])
    compute(kv, first)
    second = start(kv, 1, [*range(8)])
    assert second.computed == 4
    compute(kv, second)
    assert second.blocks[1] != first.blocks[1]
    check(kv, [first, second])


def test_a_conversation_goes_on_where_it_ended() -> None:
    """The partly filled last block is taken over, so that only new tokens are computed."""
    kv = BlockManager(8, SIZE)
    first = start(kv, 0, [*range(10)])
    compute(kv, first)
    last = first.blocks[-1]
    kv.release(first)
    second = start(kv, 1, [*range(10), 50, 51])
    assert second.computed == 10
    assert second.blocks[-1] == last
    # Taken over by one, it is not there for another.
    third = start(kv, 2, [*range(10), 60, 61])
    assert third.computed == 8
    check(kv, [second, third])


def test_a_tail_is_used_up_to_where_it_differs() -> None:
    kv = BlockManager(8, SIZE)
    first = start(kv, 0, [1, 2, 3])
    compute(kv, first)
    kv.release(first)
    second = start(kv, 1, [1, 2, 9, 9, 9])
    assert second.computed == 2
    other = start(kv, 2, [7, 7])
    assert other.computed == 0
    check(kv, [second, other])


def test_the_least_recently_used_is_evicted_and_ends_go_before_beginnings() -> None:
    kv = BlockManager(4, SIZE)
    old = start(kv, 0, [*range(9)])
    compute(kv, old)
    kv.release(old)  # keeps 3 of the 4 blocks
    new = start(kv, 1, [*range(100, 108)])
    compute(kv, new)  # takes the empty one and evicts the tail
    again = start(kv, 2, [*range(9)])
    assert again.computed == 8
    check(kv, [new, again])


def test_without_sharing_nothing_is_found() -> None:
    kv = BlockManager(8, SIZE, share=False)
    first = start(kv, 0, [*range(8)])
    compute(kv, first)
    kv.release(first)
    assert start(kv, 1, [*range(8), 1]).computed == 0
    assert len(kv._empty) == 8


def test_a_fork_shares_full_blocks_and_asks_for_a_copy_of_the_last() -> None:
    kv = BlockManager(4, SIZE)
    parent, child, other = (Sequence.of_prompt(id, [*range(10)]) for id in range(3))
    kv.admit(parent)
    compute(kv, parent)
    assert kv.fork(parent, child) == [(parent.blocks[2], child.blocks[2])]
    assert child.blocks[:2] == parent.blocks[:2]
    assert child.computed == 10
    check(kv, [parent, child])
    assert kv.fork(parent, other) is None, "there is no fifth block"
    assert other.blocks == []
    kv.release(parent)
    check(kv, [child])
    child.tokens.extend([7, 7])
    compute(kv, child)
    check(kv, [child])
    kv.release(child)
    assert start(kv, 3, [*range(10), 7, 7, 1]).computed == 12


def test_a_fork_of_full_blocks_copies_nothing() -> None:
    kv = BlockManager(2, SIZE, share=False)
    parent, child = (Sequence.of_prompt(id, [*range(8)]) for id in range(2))
    kv.admit(parent)
    compute(kv, parent)
    assert kv.fork(parent, child) == []
    assert child.blocks == parent.blocks
    check(kv, [parent, child])


def test_tokens_whose_rows_are_wanted_are_computed_even_if_they_are_known() -> None:
    kv = BlockManager(8, SIZE)
    first = start(kv, 0, [*range(14)])
    compute(kv, first)
    kv.release(first)
    for rows_from, computed in ((0, 0), (4, 4), (7, 4), (13, 13), (None, 13)):
        sequence = Sequence.of_prompt(1, [*range(14)])
        sequence.rows_from = rows_from
        kv.admit(sequence)
        assert sequence.computed == computed
        kv.release(sequence)


def test_hidden_sequences_neither_use_the_cache_nor_fill_it() -> None:
    kv = BlockManager(8, SIZE)
    first = Sequence.of_prompt(0, [*range(10)])
    first.hidden = True
    kv.admit(first)
    compute(kv, first)
    kv.release(first)
    assert len(kv._empty) == 8
    second = start(kv, 1, [*range(10)])
    assert second.computed == 0
    compute(kv, second)
    again = Sequence.of_prompt(2, [*range(10)])
    again.hidden = True
    kv.admit(again)
    assert again.computed == 0
    check(kv, [second, again])


def test_growing_takes_all_or_nothing() -> None:
    kv = BlockManager(2, SIZE)
    sequence = start(kv, 0, [*range(12)])
    assert not kv.grow(sequence, 9)
    assert sequence.blocks == []
    assert kv.grow(sequence, 8)
    kv.trim(sequence)
    check(kv, [sequence])


class Contents(RuleBasedStateMachine):
    """Random use, with a model of what each block holds: a hit must find exactly the tokens that it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = BlockManager(7, SIZE)
        self.live: list[Sequence] = []
        self.slots: list[list[int | None]] = [[None] * SIZE for _ in range(self.kv.count)]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=16))
    def admit(self, tokens: list[int]) -> None:
        sequence = start(self.kv, len(self.live), tokens)
        assert sequence.computed < len(tokens)
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 9), happens=st.booleans())
    def step(self, data: st.DataObject, count: int, happens: bool) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        computed = min(sequence.computed + count, len(sequence.tokens))
        if not self.kv.grow(sequence, computed):
            return
        for position in range(sequence.computed, computed):
            block = sequence.blocks[position // SIZE]
            self.slots[block][position % SIZE] = sequence.tokens[position] if happens else None
        if happens:
            self.kv.commit(sequence, computed)
        else:
            self.kv.trim(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        data.draw(st.sampled_from(self.live)).tokens.append(token)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.live))
        child = Sequence.of_prompt(len(self.live), parent.tokens)
        copies = self.kv.fork(parent, child)
        if copies is None:
            assert self.kv.free == 0
            assert child.blocks == []
            return
        for source, target in copies:
            self.slots[target] = list(self.slots[source])
        self.live.append(child)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.kv.release(sequence)

    @invariant()
    def holds_what_it_says(self) -> None:
        check(self.kv, self.live)
        for sequence in self.live:
            assert len(sequence.blocks) == self.kv.blocks_for(sequence.computed), "a block is held without need"
            for position in range(sequence.computed):
                held = self.slots[sequence.blocks[position // SIZE]][position % SIZE]
                assert held == sequence.tokens[position]


TestContents = Contents.TestCase
TestContents.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
