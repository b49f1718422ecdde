"""One request's tokens, and how far their keys and values are computed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field


@dataclass(eq=False)
class Sequence:
    """Integers only; the scheduler decides with it, the block manager fills `blocks` and `hashes`.

    `tokens` are the prompt and what was generated. Keys and values of the first `computed` tokens are committed to
    the cache; position p lies in `blocks[p // block_size]`. `cached` counts the prompt tokens whose keys and values
    were found in the cache when the sequence was first admitted.
    """

    id: int
    tokens: array[int]
    prompt_length: int
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # chained, of the committed full blocks
    computed: int = 0
    cached: int | None = None
    preemptions: int = 0

    @classmethod
    def of_prompt(cls, id: int, prompt: Tokens[int]) -> Sequence:
        return cls(id, array("i", prompt), len(prompt))

    @property
    def remaining(self) -> int:
        """Tokens still to be processed before the next one can be drawn; 1 in a plain decode."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of a sequence, from its `computed`-th, to be processed in the next step."""

    sequence: Sequence
    count: int

    @property
    def finishes(self) -> bool:
        """Whether the next token can be drawn after this step."""
        return self.count == self.sequence.remaining
