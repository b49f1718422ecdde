"""Who runs in the next step, and how many tokens each. Integers only, and two clocks.

Sequences are served by *rank*: by the time they came, moved by AGEING_SECONDS for every unit of priority. So among
equals the first to come is first, and nobody starves: whoever came that much later stands behind.

A step holds at most `max_tokens` tokens: one for every sequence that decodes, the rest for prompts, in pieces. Beside
answers a piece is so small that the step takes hardly twice as long as without it (step_times.py); a step without
answers takes whole chunks. Blocks are allocated for the step at hand only. When they run out, the last in rank gives
its blocks back and is computed again later; the first always advances, since the pool holds a whole context.

None of this changes a token: what a row of a step computes does not depend on its neighbours.
"""

from __future__ import annotations

import itertools
import time
from bisect import insort
from collections.abc import Callable

from localinfer.engine.kv import BlockManager
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.step_times import StepTimes

AGEING_SECONDS = 10.0  # how much longer a sequence waits for each unit that its priority number is higher


class Scheduler:
    """Sequences wait, run, and leave by `finish`; each call of `schedule` is followed by `commit` or `rollback`."""

    def __init__(
        self,
        kv: BlockManager,
        *,
        max_tokens: int,
        max_sequences: int,
        max_rows: int = 0,
        chunk: int = 0,
        times: StepTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_rows` (0: `max_sequences`) is how many rows of logits a step may have. `chunk` is the largest piece of a
        prompt in one step, 0 for `max_tokens`. Without `times` pieces are not smaller beside answers.
        """
        if not 1 <= max_sequences <= max_tokens:
            raise ValueError(f"max_sequences {max_sequences} must be from 1 to max_tokens {max_tokens}")
        if max_rows and max_rows < max_sequences:
            raise ValueError(f"max_rows {max_rows} must be at least max_sequences {max_sequences}")
        self.kv = kv
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.max_rows = max_rows or max_sequences
        self.chunk = chunk or max_tokens
        self.times = times
        self.waiting: list[Sequence] = []  # both by rank
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []  # have nothing to do for now
        self._clock = clock
        self._arrivals = itertools.count()
        self._ranks: dict[Sequence, tuple[float, int, int]] = {}

    def add(self, sequence: Sequence) -> None:
        """The sequence waits for its turn."""
        rank = self._clock() + AGEING_SECONDS * sequence.priority
        self._ranks[sequence] = (rank, next(self._arrivals), sequence.index)
        insort(self.waiting, sequence, key=self._ranks.__getitem__)

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]]:
        """`child` goes on from what is computed of `parent`, which runs. Its rank is next to that of its parent.

        Returns the blocks to copy, from and to, before the next step. Where there is no room for it now it waits.
        """
        self._ranks[child] = (*self._ranks[parent][:2], child.index)
        child.cached = parent.cached
        copies = self.kv.fork(parent, child) if parent.blocks and len(self.running) < self.max_sequences else None
        insort(self.waiting if copies is None else self.running, child, key=self._ranks.__getitem__)
        return copies or []

    def park(self, sequence: Sequence) -> None:
        """A sequence that runs waits for others of its request. It keeps its blocks until somebody needs them."""
        self.running.remove(sequence)
        insort(self.parked, sequence, key=self._ranks.__getitem__)

    def resume(self, sequence: Sequence) -> None:
        """A parked sequence goes on; nothing happens if it runs."""
        if sequence not in self.parked:
            return
        self.parked.remove(sequence)
        runs = bool(sequence.blocks) and len(self.running) < self.max_sequences
        if not runs:
            self.kv.release(sequence)
        insort(self.running if runs else self.waiting, sequence, key=self._ranks.__getitem__)

    def finish(self, sequence: Sequence) -> None:
        """The sequence leaves, wherever it is; nothing happens if it has left."""
        if self._ranks.pop(sequence, None) is None:
            return
        for place in (self.running, self.parked, self.waiting):
            if sequence in place:
                place.remove(sequence)
        self.kv.release(sequence)

    def schedule(self) -> list[Chunk]:
        """The next step; empty only if there is nothing to do."""
        chunks: list[Chunk] = []
        tokens = self._prompt_tokens()
        rows = self.max_rows - self.max_sequences  # beside one for every sequence
        for sequence in list(self.running):
            if sequence not in self.running:
                break  # preempted just now, as are all behind it
            decodes = sequence.remaining == 1
            count = 1 if decodes else self._piece(sequence, tokens, rows)
            while not self.kv.grow(sequence, sequence.computed + count):
                if not self._release_parked() and self._preempt_last() is sequence:
                    break
            else:
                if count > 0:
                    chunks.append(Chunk(sequence, count))
                    tokens -= 0 if decodes else count
                    rows -= chunks[-1].more_logits
        while self.waiting and tokens > 0 and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            if sequence.whole and sequence.remaining > tokens:
                break  # the next step has room for it
            if not self._admit(sequence):
                break
            count = self._piece(sequence, tokens, rows)
            self.kv.grow(sequence, sequence.computed + count)
            chunks.append(Chunk(sequence, count))
            tokens -= count
            rows -= chunks[-1].more_logits
        if not chunks and tokens == 0 and self.running:
            return self.schedule()  # the answers that the prompts stood back for had to give their blocks back
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

    def _prompt_tokens(self) -> int:
        """What the next step has room for beside the sequences that decode."""
        answers = sum(s.remaining == 1 for s in self.running)
        room = self.max_tokens - answers
        piece = self.times.piece(answers) if self.times else None
        return room if piece is None else min(room, piece)

    def _piece(self, sequence: Sequence, tokens: int, rows: int) -> int:
        """The tokens of a prompt's next piece: at most `tokens`, and with at most `rows` + 1 rows of logits.

        All or none of a text that must be whole.
        """
        if sequence.whole:
            return sequence.remaining if sequence.remaining <= tokens else 0
        count = min(sequence.remaining, self.chunk, tokens)
        if sequence.rows_from is not None and not sequence.hidden:
            count = min(count, max(0, sequence.rows_from - sequence.computed) + rows + 1)
        return count

    def _admit(self, sequence: Sequence) -> bool:
        """The first that waits runs, if the pool has room for all its tokens (which are allocated piece by piece).

        So a sequence that was preempted for want of a block does not come back in the same step.
        """
        self.kv.admit(sequence)
        missing = self.kv.blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        while missing > self.kv.free:
            if not self._release_parked():
                self.kv.release(sequence)
                return False
        self.waiting.pop(0)
        insort(self.running, sequence, key=self._ranks.__getitem__)
        if sequence.cached is None:
            sequence.cached = sequence.computed
        return True

    def _release_parked(self) -> bool:
        """Takes the blocks of the parked sequence that is last in rank; False if none of them has any."""
        for sequence in reversed(self.parked):
            if sequence.blocks:
                self.kv.release(sequence)
                sequence.preemptions += 1
                return True
        return False

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self.kv.release(sequence)
        sequence.preemptions += 1
        insort(self.waiting, sequence, key=self._ranks.__getitem__)
        return sequence
