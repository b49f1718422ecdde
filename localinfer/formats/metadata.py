"""Typed reads of a model file's metadata, with errors that say the key, what was expected and what was found."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
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
