"""Typed reads of a model file's metadata, with errors that say the key, what was expected and what was found."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from localinfer.errors import FormatError
from localinfer.kernels.host.strings import StringArray

# An array is array.array (integers and floats), a memoryview of bools, a StringArray, or a tuple of arrays.
Value: TypeAlias = (
    "int | float | bool | str | array[int] | array[float] | memoryview[bool] | StringArray | tuple[Value, ...]"
)

_HINT = "the file may be damaged, or made by an incompatible converter: download or convert it again"


class Metadata(Mapping[str, Value]):
    """Key-value pairs of a file. Every `get_…` raises FormatError if the key is absent and has no default,
    if its value has another type, or if it is out of range."""

    def __init__(self, values: dict[str, Value], source: str) -> None:
        self._values = values
        self._source = source

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get_int(self, key: str, default: int | None = None, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """An integer in [minimum, maximum]; the default limits are those of a size that native code can count."""
        value = self._read(key, default)
        if not _is_int(value):
            raise self._wrong(key, "an integer", value)
        return self._in_range(key, value, minimum, maximum)

    def get_float(self, key: str, default: float | None = None) -> float:
        """A finite number; integers count as numbers."""
        value = self._read(key, default)
        if not (isinstance(value, float) or _is_int(value)) or not math.isfinite(value):
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        value = self._read(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._read(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def get_ints(
        self,
        key: str,
        count: int | None = None,
        default: Sequence[int] | None = None,
        minimum: int = 0,
        maximum: int = 2**31 - 1,
    ) -> Sequence[int]:
        """Integers. With `count`, exactly so many, and a single integer in the file stands for `count` equal ones
        (per-layer values, which most files give once). Range checks are made only with `count`: long arrays stay cheap.
        """
        if default is not None and key not in self:
            return default
        value = self._read(key)
        if count is not None and _is_int(value):
            return (self._in_range(key, value, minimum, maximum),) * count
        if not isinstance(value, array) or value.typecode in "fd":
            raise self._wrong(key, "an array of integers", value)
        if count is None:
            return value
        if len(value) != count:
            raise self._wrong(key, f"{count} integers", value)
        return tuple(self._in_range(key, v, minimum, maximum) for v in value)

    def get_floats(self, key: str, default: Sequence[float] | None = None) -> Sequence[float]:
        """Floats as they stand in the file: not checked for being finite, since arrays may be long."""
        if default is not None and key not in self:
            return default
        value = self._read(key)
        if not isinstance(value, array) or value.typecode not in "fd":
            raise self._wrong(key, "an array of floats", value)
        return value

    def get_bools(self, key: str, count: int, default: Sequence[bool] | None = None) -> Sequence[bool]:
        """`count` truth values; a single one in the file stands for `count` equal ones."""
        if default is not None and key not in self:
            return default
        value = self._read(key)
        if isinstance(value, bool):
            return (value,) * count
        if not isinstance(value, memoryview) or len(value) != count:
            raise self._wrong(key, f"{count} truth values", value)
        return tuple(value)

    def get_strings(self, key: str) -> StringArray:
        value = self._read(key)
        if not isinstance(value, StringArray):
            raise self._wrong(key, "an array of strings", value)
        return value

    def _read(self, key: str, default: object = None) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise FormatError(f"{self._source}: the metadata has no key {key}", _HINT)
        return value

    def _in_range(self, key: str, value: int, minimum: int, maximum: int) -> int:
        if not minimum <= value <= maximum:
            raise self._wrong(key, f"an integer from {minimum} to {maximum}", value)
        return value

    def _wrong(self, key: str, expected: str, found: object) -> FormatError:
        return FormatError(f"{self._source}: {key} should be {expected}, but is {describe(found)}", _HINT)


def describe(value: object) -> str:
    """A value in a few words, for messages and listings: long strings are cut, arrays told by size and kind."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, StringArray):
        return f"an array of {len(value)} strings"
    if isinstance(value, memoryview):
        return f"an array of {len(value)} truth values"
    if isinstance(value, array):
        return f"an array of {len(value)} {'floats' if value.typecode in 'fd' else 'integers'}"
    if isinstance(value, tuple | list):
        return f"an array of {len(value)} items"
    return f"{value!r} ({type(value).__name__})"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
