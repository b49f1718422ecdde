"""Texts in a grammar for Lark, as the tokens of one vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence

from localinfer.text.tokenizer import Tokenizer

# The head of a grammar in which text that can be nothing else may come in whatever tokens the model likes.
ANY_TOKENS = '%llguidance {"no_forcing": true}'


class Literals:
    """Texts as Lark has them, special tokens by their ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> str:
        """A text as a rule."""
        return " ".join(self.parts(text))

    def parts(self, text: str) -> list[str]:
        """The same piece by piece: quoted texts, and special tokens as <[ID]>."""
        found: list[str] = []
        plain: list[int] = []
        for token in self._tokenizer.encode(text, add_special=False, parse_special=True) if text else ():
            if self._tokenizer.is_special(token):
                found += [self._quoted(plain), f"<[{token}]>"]
                plain = []
            else:
                plain.append(token)
        if text and not any(part.startswith("<[") for part in found):
            return [json.dumps(text)]  # as it is: decoding might lose a space in front
        found.append(self._quoted(plain))
        return list(filter(None, found))

    def _quoted(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode(tokens, strip_prefix=False) if tokens else ""
        return json.dumps(text) if text else ""
