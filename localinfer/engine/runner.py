"""From scheduled chunks to the Batch of a step."""

from __future__ import annotations

from array import array

from localinfer.engine.sequence import Chunk
from localinfer.kernels.base import Batch, Executable, Logits


def batch_of_chunks(chunks: list[Chunk]) -> Batch:
    """The Batch of a step. Wanted are the logits of the last `rows` tokens of every chunk."""
    batch = Batch(array("i"), array("i"), array("i", [0]), array("i"), array("i", [0]), array("i"))
    for chunk in chunks:
        sequence, first, last = chunk.sequence, chunk.sequence.computed, chunk.sequence.computed + chunk.count
        batch.tokens.extend(sequence.tokens[first:last])
        batch.positions.extend(range(first, last))
        batch.starts.append(len(batch.tokens))
        batch.block_table.extend(sequence.blocks)
        batch.table_starts.append(len(batch.block_table))
        batch.logit_rows.extend(range(len(batch.tokens) - chunk.rows, len(batch.tokens)))
    return batch


def run_step(executable: Executable, chunks: list[Chunk]) -> Logits:
    """Executes one step: the rows of logits that the chunks want, in order. Raises Cancelled."""
    return executable.step(batch_of_chunks(chunks))
