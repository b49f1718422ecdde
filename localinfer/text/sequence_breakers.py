"""Texts that no repetition reaches across (DRY's sequence breakers), as the tokens of one model spell them.

A text may begin in the middle of one token and end in the middle of another. So a token counts that holds the whole
text, and one that ends with its beginning, if the tokens of the rest follow.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

from localinfer.errors import LocalInferError
from localinfer.kernels.host.sampler import Breakers
from localinfer.text.tokenizer import Tokenizer

REMEMBERED = 8  # sets of texts


class SequenceBreakers:
    """Finds breakers among the tokens of one model. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is that of the logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, ...], Breakers] = OrderedDict()

    def find(self, texts: tuple[str, ...]) -> Breakers:
        """The first call for these texts looks at every token: some milliseconds for each text."""
        with self._lock:
            found = self._found.get(texts)
            if found is None:
                pairs = (pair for text in texts for pair in self._pairs(text.encode("utf-8", "replace")))
                found = self._found[texts] = Breakers(self._vocab_size, pairs)
                if len(self._found) > REMEMBERED:
                    self._found.popitem(last=False)
            self._found.move_to_end(texts)
            return found

    def _pairs(self, text: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        tails: dict[int, tuple[int, ...] | None] = {len(text): ()}
        for token, length in self._tokenizer.meeting(text):
            if length not in tails:
                tails[length] = self._tail(text, length)
            tail = tails[length]
            if token < self._vocab_size and tail is not None and max(tail, default=0) < self._vocab_size:
                yield token, tail

    def _tail(self, text: bytes, length: int) -> tuple[int, ...] | None:
        """The tokens of a text behind its first bytes; None if no tokens begin there."""
        rest = text[length:]
        # A vocabulary may put a space in front of a text, but not behind a new line; half a character is no text.
        for context in (rest, b"\n" + rest, text):
            try:
                tokens = self._tokenizer.encode(context, add_special=False, parse_special=False)
            except LocalInferError:  # the vocabulary cannot express it
                return None
            pieces = [self._tokenizer.token_bytes(token) for token in tokens]
            for begin in range(len(pieces)):
                if b"".join(pieces[begin:]) == rest:
                    return tuple(tokens[begin:])
        return None
