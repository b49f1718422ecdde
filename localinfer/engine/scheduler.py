"""Who runs in the next step, and how many tokens each. Integers only.

First come, first served. A step holds at most `max_tokens` tokens: one for every sequence that decodes, the rest for
prompts, in pieces, so that a long prompt never stops the others from answering. Blocks are allocated for the step at
hand only. When they run out, the latest comer gives its blocks back and is computed again later; the first comer
always advances, since the pool holds a whole context.
"""

from __future__ import annotations

from collections import deque

from localinfer.engine.kv import BlockManager
from localinfer.engine.sequence import Chunk, Sequence


class Scheduler:
    """Sequences wait, run, and leave by `finish`; each call of `schedule` is followed by `commit` or `rollback`."""

    def __init__(self, kv: BlockManager, *, max_tokens: int, max_sequences: int, chunk: int = 0) -> None:
        """`chunk` is the largest piece of a prompt in one step, 0 for `max_tokens`."""
        if not 1 <= max_sequences <= max_tokens:
            raise ValueError(f"max_sequences {max_sequences} must be from 1 to max_tokens {max_tokens}")
        self.kv = kv
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.chunk = chunk or max_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The sequence leaves, wherever it is; nothing happens if it has left."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.kv.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Chunk]:
        """The next step; empty only if there is nothing to do."""
        chunks: list[Chunk] = []
        budget = self.max_tokens - sum(s.remaining == 1 for s in self.running)  # what is left for prompts
        for sequence in list(self.running):
            if sequence not in self.running:
                break  # preempted just now, as are all that came later
            decodes = sequence.remaining == 1
            count = 1 if decodes else min(sequence.remaining, self.chunk, budget)
            while not self.kv.grow(sequence, sequence.computed + count):
                if self._preempt_last() is sequence:
                    break
            else:
                if count > 0:
                    budget -= 0 if decodes else count
                    chunks.append(Chunk(sequence, count))
        while self.waiting and budget > 0 and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            count = min(sequence.remaining, self.chunk, budget)
            self.kv.grow(sequence, sequence.computed + count)
            budget -= count
            chunks.append(Chunk(sequence, count))
        if not chunks and (self.running or self.waiting):
            raise RuntimeError("the KV pool is smaller than one sequence")
        return chunks

    def commit(self, chunks: list[Chunk]) -> None:
        """The step was executed. Sequences that left meanwhile are skipped."""
        for chunk in chunks:
            if chunk.sequence in self.running:
                self.kv.commit(chunk.sequence, chunk.sequence.computed + chunk.count)

    def rollback(self, chunks: list[Chunk]) -> None:
        """The step was not executed, or not to its end: every sequence stands where it stood before."""
        for chunk in chunks:
            if chunk.sequence in self.running:
                self.kv.trim(chunk.sequence)

    def _admit(self, sequence: Sequence) -> bool:
        """The first that waits runs, if the pool has room for all its tokens (which are allocated piece by piece).

        So a sequence that was preempted for want of a block does not come back in the same step.
        """
        self.kv.admit(sequence)
        missing = self.kv.blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        if missing > self.kv.free:
            self.kv.release(sequence)
            return False
        self.waiting.popleft()
        self.running.append(sequence)
        if sequence.cached is None:
            sequence.cached = sequence.computed
        return True

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self.kv.release(sequence)
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence
