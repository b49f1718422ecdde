"""Text from tokens as they come, never with half a character."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable


class Detokenizer:
    """One sequence's text. Characters whose bytes are spread over several tokens appear with the last of them."""

    def __init__(self, token_bytes: Callable[[int], bytes], strip_space: bool = False) -> None:
        """`strip_space`: the first space of the text, if it starts with one, belongs to the encoding."""
        self._token_bytes = token_bytes
        self._strip_space = strip_space
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """What is new and complete with this token; bytes that can no longer become UTF-8 are U+FFFD."""
        raw = self._token_bytes(token_id)
        if self._strip_space and raw:
            self._strip_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD if a character is incomplete."""
        return self._decoder.decode(b"", final=True)
