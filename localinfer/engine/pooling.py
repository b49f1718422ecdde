"""From the hidden states of a text's tokens to one vector."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Mapping
from typing import Any, Literal

from localinfer.engine.runner import Rows
from localinfer.errors import UnsupportedError
from localinfer.kernels.host.pooling import add_rows

Pooling = Literal["mean", "last", "cls"]
DEFAULT_POOLING: Pooling = "mean"
# `{architecture}.pooling_type` in a model file, as llama.cpp numbers it (include/llama.h): 0 is none, 4 is for ranking.
POOLING_TYPES: Mapping[int, Pooling] = {0: DEFAULT_POOLING, 1: "mean", 2: "cls", 3: "last"}


def own_pooling(metadata: Mapping[str, Any]) -> Pooling:
    """What the model was trained for, as its file says; else DEFAULT_POOLING. UnsupportedError if it is for ranking."""
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type", 0)
    if not isinstance(kind, int) or kind not in POOLING_TYPES:
        raise UnsupportedError(
            f"this model makes no embeddings: its file says pooling_type {kind}",
            "it may be made to rank documents for a query (LLM.rank, /v1/rerank)" if kind == 4 else "",
        )
    return POOLING_TYPES[kind]


def unit_length(vector: array[float]) -> array[float]:
    """The vector divided by its Euclidean norm; zeros stay zeros."""
    norm = math.hypot(*vector)
    return array("f", [value / norm for value in vector]) if norm > 0 else vector


class Pool:
    """Takes the rows of one sequence in order, in pieces. How the pieces are cut changes no bit of the result.

    mean  the mean of all rows, summed up in double precision one after the other
    last  the row of the last token
    cls   the row of the first token: in a model that looks at earlier tokens only, it depends on this token alone

    A model for ranking has a row of one number, its score.
    """

    def __init__(self, pooling: Pooling, tokens: int) -> None:
        self.pooling = pooling
        self._tokens = tokens
        self._taken = 0
        self._total = array("d")

    @property
    def rows_from(self) -> int | None:
        """The first position whose row is still wanted; None: that of the last token alone."""
        return None if self.pooling == "last" else self._taken

    def add(self, rows: Rows) -> array[float] | None:
        """The vector, of float32, once it is complete."""
        if self.pooling != "mean":
            return array("f", ctypes.string_at(rows.address, 4 * rows.size))
        self._total = self._total or array("d", bytes(8 * rows.size))
        add_rows(self._total, rows.address, rows.count)
        self._taken += rows.count
        return array("f", [x / self._tokens for x in self._total]) if self._taken == self._tokens else None
