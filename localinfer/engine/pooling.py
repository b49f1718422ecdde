"""From the hidden states of a text's tokens to one vector."""

from __future__ import annotations

import ctypes
from array import array
from typing import Literal

from localinfer.engine.runner import Rows
from localinfer.kernels.host.pooling import add_rows

Pooling = Literal["mean", "last", "cls"]


class Pool:
    """Takes the rows of one sequence in order, in pieces. How the pieces are cut changes no bit of the result.

    mean  the mean of all rows, summed up in double precision one after the other
    last  the row of the last token
    cls   the row of the first token: in a model that looks at earlier tokens only, it depends on this token alone
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
