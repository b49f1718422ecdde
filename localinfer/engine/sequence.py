"""One answer's tokens, and how far their keys and values are computed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import NamedTuple


class NearMiss(NamedTuple):
    """The first token in which a prompt differs from the cached tokens that agree with it longest."""

    position: int
    cached: int
    asked: int


@dataclass(eq=False)
class Sequence:
    """Integers only; the scheduler decides with it, the block manager fills `blocks` and `hashes`.

    `tokens` are the prompt and what was generated. Keys and values of the first `computed` tokens are committed to
    the cache; position p lies in `blocks[p // block_size]`. `cached` counts the prompt tokens whose keys and values
    were found in the cache when the sequence was first admitted. `id` is its request's, `index` tells the sequences
    of one request apart.

    Rows, of logits or if `hidden` of hidden states, are wanted of every token from position `rows_from` on (None: of
    the last alone), so that these are computed even if the cache holds them. What is `hidden` is an embedding: it
    neither takes anything from the cache nor leaves anything there. An encoder computes it `whole`, in one step; its
    tokens from `second` on are those of a second text (None: there is none).
    """

    id: int
    tokens: array[int]
    prompt_length: int
    index: int = 0
    priority: int = 0  # the lower, the earlier
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # chained, of the committed full blocks
    computed: int = 0
    cached: int | None = None
    near_miss: NearMiss | None = None
    preemptions: int = 0
    rows_from: int | None = None
    hidden: bool = False
    whole: bool = False
    second: int | None = None

    @classmethod
    def of_prompt(cls, id: int, prompt: Tokens[int], *, index: int = 0, priority: int = 0) -> Sequence:
        return cls(id, array("i", prompt), len(prompt), index, priority)

    @property
    def remaining(self) -> int:
        """Tokens still to be processed before the next one can be drawn; 1 in a plain decode."""
        return len(self.tokens) - self.computed

    def rows(self, count: int) -> int:
        """Of how many of the next `count` tokens, the last of them, a row is wanted."""
        first = len(self.tokens) - 1 if self.rows_from is None else self.rows_from
        return max(0, min(count, self.computed + count - first))


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of a sequence, from its `computed`-th, to be processed in the next step.

    Where these are its last, `drafts` come behind them: tokens that it may go on with.
    """

    sequence: Sequence
    count: int
    drafts: Tokens[int] = ()

    @property
    def rows(self) -> int:
        """Of how many of its tokens, the last of them, a row is wanted."""
        return self.sequence.rows(self.count) + len(self.drafts)

    @property
    def more_logits(self) -> int:
        """How many rows of logits it wants beyond the one that every sequence may have."""
        return 0 if self.sequence.hidden else max(0, self.rows - 1)

    @property
    def decodes(self) -> bool:
        """Whether it goes on with an answer: the only token that is to be processed was drawn."""
        return self.sequence.remaining == 1 and len(self.sequence.tokens) > self.sequence.prompt_length

    @property
    def finishes(self) -> bool:
        """Whether the next token can be drawn after this step."""
        return self.count == self.sequence.remaining
