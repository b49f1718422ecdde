"""Whether two models speak with the same tokens."""

from __future__ import annotations

from array import array

from localinfer.formats.metadata import Metadata
from localinfer.kernels.host.encoder import UNUSED

_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


def vocabulary_difference(one: Metadata, other: Metadata) -> str:
    """In words, the first difference between two vocabularies; empty if there is none that matters.

    One may be longer than the other by unused tokens: vocabularies are padded to sizes that suit a model.
    """
    tokens, others = one.get_strings(_TOKENS), other.get_strings(_TOKENS)
    place = tokens.first_difference(others)
    if place is None:
        return ""
    if place < min(len(tokens), len(others)):
        return f"token {place} is {tokens[place]!r} in one and {others[place]!r} in the other"
    types = (one if len(tokens) > len(others) else other).get(_TYPES)
    surplus = types[place:] if isinstance(types, array) else array("i")
    if surplus and all(kind == UNUSED for kind in surplus):
        return ""
    return f"one has {len(tokens)} tokens, the other {len(others)}"
