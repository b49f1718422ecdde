"""Executables without weights, for tests of the engine. What they say depends on what the cache really holds."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from localinfer.engine.engine import Engine
from localinfer.kernels.base import Batch, Cancelled, LoadConfig

VOCABULARY = 26
BLOCK = 4
WIDTH = 6  # of hidden states


class FakeRows:
    """Logits, and hidden states."""

    def __init__(self, rows: list[list[float]], size: int) -> None:
        self.rows = len(rows)
        self.size = self.vocab_size = size
        self._values = array("f", [x for row in rows for x in row])
        self.address = self._values.buffer_info()[0]

    def numpy(self) -> Any:
        return np.frombuffer(self._values, np.float32).reshape(self.rows, self.size)


class FakeModel:
    """Reads the tokens of a sequence back from the slots of its blocks, and fails if one was never written."""

    def __init__(self) -> None:
        self.processed: list[int] = []  # tokens in each step
        self.rows: list[int] = []  # rows in each step
        self.copied: list[tuple[int, int]] = []
        self.slots: dict[int, int] = {}
        self.before_step: Callable[[], None] = lambda: None
        self.cancelled = threading.Event()

    def logits(self, history: tuple[int, ...]) -> list[float]:
        """Those after these tokens."""
        raise NotImplementedError

    def step(self, batch: Batch) -> FakeRows:
        return FakeRows([self.logits(history) for history in self._execute(batch)], VOCABULARY)

    def hidden(self, batch: Batch) -> FakeRows:
        return FakeRows([_noise(history, WIDTH) for history in self._execute(batch)], WIDTH)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            for offset in range(BLOCK):
                self.slots.pop(target * BLOCK + offset, None)
                if source * BLOCK + offset in self.slots:
                    self.slots[target * BLOCK + offset] = self.slots[source * BLOCK + offset]
        self.copied += pairs

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        pass

    def _execute(self, batch: Batch) -> list[tuple[int, ...]]:
        """Writes the tokens of a step; the tokens up to each wanted row."""
        self.cancelled.clear()
        self.before_step()
        if self.cancelled.is_set():
            raise Cancelled
        self.processed.append(len(batch.tokens))
        self.rows.append(len(batch.logit_rows))
        written: set[int] = set()
        places: list[list[int]] = []  # of each row: the slots of its sequence up to it
        for s, (begin, end) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
            table = batch.block_table[batch.table_starts[s] : batch.table_starts[s + 1]]
            for row in range(begin, end):
                slots = [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(batch.positions[row] + 1)]
                assert slots[-1] not in written, "two sequences write to one place"
                written.add(slots[-1])
                self.slots[slots[-1]] = batch.tokens[row]
                places.append(slots)
        return [tuple(self.slots[slot] for slot in places[row]) for row in batch.logit_rows]


class Alphabet(FakeModel):
    """Every token is followed by the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[int] = set()  # tokens whose logits are NaN

    def logits(self, history: tuple[int, ...]) -> list[float]:
        row = [0.0] * VOCABULARY
        row[(history[-1] + 1) % VOCABULARY] = float("nan") if history[-1] in self.broken else 1.0
        return row


class Rememberer(FakeModel):
    """What follows depends on every token before: one wrong token in the cache changes everything."""

    def logits(self, history: tuple[int, ...]) -> list[float]:
        return _noise(history, VOCABULARY)


class Letters:
    """A TextDecoder: token 0 is "a"."""

    def push(self, token: int) -> str:
        return chr(ord("a") + token)

    def finish(self) -> str:
        return ""


def fake_engine(
    model: FakeModel,
    *,
    context: int = 40,
    sequences: int = 1,
    blocks: int = 0,
    max_tokens: int = 8,
    more_rows: int = 0,
    **options: Any,
) -> Engine:
    """An engine with room for so many sequences, unless `blocks` says otherwise."""
    options.setdefault("paced", False)  # what happens in which step must not depend on how fast the machine is
    blocks = blocks or sequences * -(-context // BLOCK)
    config = LoadConfig(max(max_tokens, sequences), sequences + more_rows, sequences, context, blocks, block_size=BLOCK)
    return Engine(model, config, VOCABULARY, **options)


def drain(e: Engine) -> dict[int, str]:
    """Runs until nothing is left to do; the text of each request, all its choices one behind the other."""
    texts: dict[tuple[int, int], str] = {}
    while e.has_work:
        for output in e.step():
            key = output.request.id, output.index
            texts[key] = texts.get(key, "") + output.text
    assert e.kv.free == e.kv.count
    joined: dict[int, str] = {}
    for (id, _), text in sorted(texts.items()):
        joined[id] = joined.get(id, "") + text
    return joined


def _noise(history: tuple[int, ...], size: int) -> list[float]:
    values: list[float] = np.random.default_rng(crc32(bytes(history))).normal(0, 2, size).astype(np.float32).tolist()
    return values
