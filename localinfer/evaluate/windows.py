"""A text as windows of tokens, all of one length, that a model reads independently of each other."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.text.tokenizer import Tokenizer

WINDOW = 512  # tokens of a window, unless another length is asked for
SHORTEST = 16


class Windows(NamedTuple):
    """`tokens` has one array of token ids per window, all equally long, each with what every text begins with (BOS).

    Predictions count from position `scored_from` on: the logits there predict the next token, up to the last one of the
    window. Earlier ones see too little text to be of interest.
    """

    tokens: tuple[array[int], ...]
    scored_from: int

    @property
    def size(self) -> int:
        """Tokens of one window."""
        return len(self.tokens[0])

    @property
    def scored(self) -> int:
        """Predictions that count in one window."""
        return self.size - 1 - self.scored_from

    @property
    def targets(self) -> array[int]:
        """The tokens to predict, window by window: int32 `[windows * scored]`."""
        return array("i", [token for window in self.tokens for token in window[self.scored_from + 1 :]])


def windows_of(tokenizer: Tokenizer, text: str, size: int = WINDOW, most: int | None = None) -> Windows:
    """The text cut into windows of `size` tokens, at most `most` of them; what is left at its end is dropped.

    The second half of each window is scored, as llama.cpp's perplexity does. LocalInferError if the text is shorter
    than one window.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    return cut(ids, begin_of(tokenizer), size, most)


def begin_of(tokenizer: Tokenizer) -> list[int]:
    """What every text begins with: BOS, or nothing."""
    return [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []


def cut(ids: Sequence[int], begin: Sequence[int], size: int = WINDOW, most: int | None = None) -> Windows:
    """Windows of token ids; `begin` stands at the beginning of each."""
    if size < SHORTEST:
        raise LocalInferError(f"windows of {size} tokens are too short", f"they need {SHORTEST} tokens at least")
    new = size - len(begin)
    count = len(ids) // new if most is None else min(most, len(ids) // new)
    if count < 1:
        raise LocalInferError(
            f"the text has {len(ids)} tokens, fewer than one window of {size}", "take a longer text, or shorter windows"
        )
    tokens = tuple(array("i", [*begin, *ids[i * new : (i + 1) * new]]) for i in range(count))
    return Windows(tokens, size // 2)
