"""localinfer as the comparison scripts use it: a model file opened on a backend, one sequence, steps of any size.

Run as a program it obeys the same commands as native/llama_driver.cpp:

    python scripts/ours.py MODEL THREADS CONTEXT [CONTEXT ...]

This module imports nothing that a chat would not, so that the memory of its process is that of a chat.
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from localinfer import kernels, models
from localinfer.checkpoints import open_model
from localinfer.kernels.base import Backend, Batch, LoadConfig, Logits, MemoryPlan, TensorSource, batch_of
from localinfer.kernels.program import Linear, Program

CHUNK = 144  # tokens of one step at most, as in the engine
BLOCK = 16


class OpenModel:
    """A model on a backend, with one independent sequence for each size in `contexts`."""

    def __init__(
        self,
        path: Path,
        threads: int = 0,
        contexts: Sequence[int] = (512,),
        backend: str = "cpu",
        chunk: int = CHUNK,
        rows: int = 1,
        block: int = BLOCK,
    ) -> None:
        self.file = open_model(path)
        self.program: Program = models.record(self.file.metadata, self.file, max(contexts))
        self.chunk = chunk
        self.rows = rows
        self.tables: list[range] = []
        first = 0
        for context in contexts:
            self.tables.append(range(first, first + -(-context // block)))
            first = self.tables[-1].stop
        self.config = LoadConfig(
            max_tokens=chunk,
            max_rows=rows,
            max_sequences=1,
            context=max(contexts),
            kv_blocks=first,
            block_size=block,
            threads=threads,
        )
        chosen: Backend = kernels.backend(backend)
        self.plan: MemoryPlan = chosen.plan(self.program, self.file, self.config)
        self.executable = chosen.load(self.program, self.file, self.config)
        self.present = [0] * len(contexts)  # tokens in the cache of each sequence

    def batch(self, tokens: Sequence[int], first: int, index: int, logits: Literal["last", "all"]) -> Batch:
        """One step of one sequence, its table cut to the blocks that the step needs."""
        table = self.tables[index][: -(-(first + len(tokens)) // self.config.block_size)]
        return batch_of([(tokens, first, table)], logits)

    def process(self, tokens: Sequence[int], first: int, index: int = 0) -> Logits | None:
        """Runs tokens at positions `first` and up, in steps of at most `chunk`; the last token's logits."""
        logits = None
        for start in range(0, len(tokens), self.chunk):
            part = tokens[start : start + self.chunk]
            logits = self.executable.step(self.batch(part, first + start, index, "last"))
        self.present[index] = first + len(tokens)
        return logits

    def prefill(self, index: int, count: int) -> float:
        """Seconds to process `count` random tokens from an empty cache."""
        tokens = self.random_tokens(count)
        start = time.perf_counter()
        self.process(tokens, 0, index)
        return time.perf_counter() - start

    def decode(self, index: int, depth: int, count: int) -> float:
        """Seconds for `count` single tokens after `depth` others, which are processed first where they are missing."""
        present = min(self.present[index], depth)
        self.process(self.random_tokens(depth - present), present, index)
        tokens = self.random_tokens(count)
        start = time.perf_counter()
        for i in range(count):
            self.process(tokens[i : i + 1], depth + i, index)
        return time.perf_counter() - start

    def random_tokens(self, count: int) -> array[int]:
        return array("i", random.choices(range(self.program.vocab_size), k=count))

    def close(self) -> None:
        self.executable.close()
        self.file.close()


def matmul_work(program: Program, tensors: TensorSource) -> tuple[int, int, int]:
    """`(bytes of weights read for one token, multiplications per token, multiplications per row of logits)`.

    What every step multiplies with: the output head, too, but of the embedding table only one row is looked up.
    """
    read = per_token = per_row = 0
    for op in program.ops:
        if isinstance(op, Linear):
            for matrix in op.matrices:
                read += matrix.rows * tensors.tensor(matrix.name).type.row_bytes(matrix.cols)
                if op.x.dim == "rows":
                    per_row += matrix.rows * matrix.cols
                else:
                    per_token += matrix.rows * matrix.cols
    return read, per_token, per_row


def kv_bytes_read(program: Program, position: int, element_bytes: int = 2) -> int:
    """Bytes of keys and values that the token at `position` reads, in a cache of f16."""
    visible = [min(position + 1, layer.window or position + 1) for layer in program.kv]
    return sum(
        2 * n * layer.n_kv_heads * layer.head_dim * element_bytes for n, layer in zip(visible, program.kv, strict=True)
    )


def main() -> None:
    path, threads, *contexts = sys.argv[1:]
    model = OpenModel(Path(path), int(threads), [int(context) for context in contexts])
    print("ready", flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "prefill":
            index, count = map(int, numbers)
            print(f"{model.prefill(index, count):.9f}", flush=True)
        elif command == "decode":
            index, depth, count = map(int, numbers)
            print(f"{model.decode(index, depth, count):.9f}", flush=True)
        else:
            raise SystemExit(f"error: unknown command {command!r}")
    model.close()


if __name__ == "__main__":
    main()
