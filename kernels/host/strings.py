"""Strings that stay where they are mapped: a vocabulary of 262,144 tokens costs a millisecond, not a second."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Sequence
from typing import overload

from localinfer.kernels.host.memory import address_of
from localinfer.kernels.native_library import open_library


class StringArray(Sequence[str]):
    """A read-only sequence of UTF-8 strings over a buffer; a Python string is made only when one is asked for.

    String i is the bytes `[offsets[i], offsets[i] + lengths[i])` of the buffer, which native code finds at
    `address`. Both arrays are uint64 `[len]` (`array("Q")`); their own addresses are `offsets.buffer_info()[0]` and
    `lengths.buffer_info()[0]`. All of these are valid while the StringArray lives.
    """

    __slots__ = ("_buffer", "address", "lengths", "offsets")

    def __init__(self, buffer: memoryview, offsets: array[int], lengths: array[int]) -> None:
        self._buffer = buffer
        self.address = address_of(buffer)
        self.offsets = offsets
        self.lengths = lengths

    def raw(self, index: int) -> bytes:
        """The exact bytes of one string."""
        start = self.offsets[index]
        return bytes(self._buffer[start : start + self.lengths[index]])

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Decoded; bytes that are no UTF-8 become U+FFFD (`raw` has the bytes themselves)."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "replace")

    def first_difference(self, other: StringArray) -> int | None:
        """The first index at which two arrays differ, where one may just end; None if they are equal."""
        count = min(len(self), len(other))
        if self.lengths[:count] != other.lengths[:count] or self._span(count) != other._span(count):
            for index in range(count):
                if self.raw(index) != other.raw(index):
                    return index
        return None if len(self) == len(other) else count

    def _span(self, count: int) -> bytes:
        """The bytes from the first string to the `count`-th, and what lies between them."""
        return bytes(
            self._buffer[self.offsets[0] : self.offsets[count - 1] + self.lengths[count - 1]] if count else b""
        )

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"


class StringBoundsError(Exception):
    """String `index` of a table, whose length field is at `offset`, runs past the end of the buffer."""

    def __init__(self, index: int, offset: int) -> None:
        super().__init__(f"string {index} at byte {offset} runs past the end of the buffer")
        self.index = index
        self.offset = offset


def scan_strings(buffer: memoryview, begin: int, count: int) -> tuple[StringArray, int]:
    """Reads `count` strings from byte `begin`, each a little-endian uint64 length followed by its bytes.

    Returns them and the position after the last. The caller bounds `count` (each string takes at least 8 bytes).
    Raises StringBoundsError if one does not fit in the buffer.
    """
    offsets = array("Q", bytes(8 * count))
    lengths = array("Q", bytes(8 * count))
    end = _native_scan()(
        address_of(buffer), len(buffer), begin, count, offsets.buffer_info()[0], lengths.buffer_info()[0]
    )
    if end < 0:
        raise StringBoundsError(-1 - end, offsets[-1 - end])
    return StringArray(buffer, offsets, lengths), end


@functools.cache
def _native_scan() -> ctypes._NamedFuncPointer:
    scan = open_library("localinfer.kernels.host._host").li_scan_strings
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    scan.argtypes = (pointer, size, size, size, pointer, pointer)
    scan.restype = ctypes.c_int64
    return scan
