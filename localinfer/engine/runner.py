"""From scheduled chunks to the Batch of a step, and from its result to the rows of each sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from localinfer.engine.sequence import Chunk, Sequence
from localinfer.kernels.base import Batch, Executable, Hidden, Logits


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step brought one sequence: `count` float32 rows of `size` numbers, of its tokens from position `first` on.

    They lie at `address`, one behind the other, until the next step; `owner` keeps them there. The last `len(drafts)`
    are those of drafted tokens.
    """

    owner: Logits | Hidden

    sequence: Sequence
    first: int
    count: int
    size: int
    address: int
    drafts: Tokens[int] = ()

    def row(self, index: int) -> int:
        """The address of a row."""
        return self.address + 4 * self.size * index


def batch_of_chunks(chunks: list[Chunk]) -> Batch:
    """The Batch of a step. Wanted are the last `rows` tokens of every chunk."""
    batch = Batch(array("i"), array("i"), array("i", [0]), array("i"), array("i", [0]), array("i"))
    second = any(chunk.sequence.second is not None for chunk in chunks)
    for chunk in chunks:
        sequence, first, last = chunk.sequence, chunk.sequence.computed, chunk.sequence.computed + chunk.count
        batch.tokens.extend(sequence.tokens[first:last])
        batch.tokens.extend(chunk.drafts)
        batch.positions.extend(range(first, last + len(chunk.drafts)))
        if second:
            batch.types.extend(0 if sequence.second is None else int(p >= sequence.second) for p in range(first, last))
        batch.starts.append(len(batch.tokens))
        batch.block_table.extend(sequence.blocks)
        batch.table_starts.append(len(batch.block_table))
        batch.logit_rows.extend(range(len(batch.tokens) - chunk.rows, len(batch.tokens)))
    return batch


def run_step(executable: Executable, chunks: list[Chunk]) -> list[Rows]:
    """Executes one step: the rows that the chunks want, in order. Raises Cancelled.

    The chunks want logits all, or all hidden states.
    """
    batch = batch_of_chunks(chunks)
    owner: Logits | Hidden
    if chunks[0].sequence.hidden:
        owner = states = executable.hidden(batch)
        size = states.size
    else:
        owner = logits = executable.step(batch)
        size = logits.vocab_size
    address, found = owner.address, []
    for chunk in chunks:
        if rows := chunk.rows:
            first = chunk.sequence.computed + chunk.count + len(chunk.drafts) - rows
            found.append(Rows(owner, chunk.sequence, first, rows, size, address, chunk.drafts))
            address += 4 * size * rows
    return found
