"""Checks of what a caller gives: errors that name the parameter, what was found and what is expected."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable
from typing import Any

from localinfer.errors import LocalInferError

LARGEST_SIZE = 2**31 - 1  # sizes and token ids are int32 in native code
SHOWN = 60  # characters of a value in a message


def wrong(name: str, value: object, expected: str) -> LocalInferError:
    """The error to raise. The type is named where the value alone may not show what is wrong."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to write out a number of more than 4,300 digits
        shown = "a number of thousands of digits"
    if len(shown) > SHOWN:
        shown = f"{shown[: SHOWN - 3]}..."
    kind = "" if value is None or isinstance(value, int | float) else f" ({type(value).__name__})"
    return LocalInferError(f"{name} is {shown}{kind}, but must be {expected}")


def whole(name: str, value: Any, least: int, most: int | None = None, expected: str = "") -> int:
    """An integer in [least, most] (None: without an end) of Python or numpy; a bool is none."""
    expected = expected or (f"a whole number >= {least}" if most is None else f"a whole number from {least} to {most}")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong(name, value, expected)
    try:
        found = operator.index(value)
    except TypeError:  # an array of numpy, or a tensor, that holds more than one
        raise wrong(name, value, expected) from None
    if found < least or (most is not None and found > most):
        raise wrong(name, value, expected)
    return found


def number(name: str, value: Any, expected: str) -> float:
    """A number of Python or numpy as a float; a bool is none, nor is a text that spells one."""
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise wrong(name, value, expected)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong(name, value, expected) from None


def token_ids(name: str, ids: Iterable[int], vocab_size: int) -> array[int]:
    """Token ids as `array("i")`, each below `vocab_size`."""
    expected = f"a sequence of token ids from 0 to {vocab_size - 1}"
    if not (isinstance(ids, array) and ids.typecode == "i"):
        if isinstance(ids, str | bytes | bytearray) or not hasattr(ids, "__iter__"):
            raise wrong(name, ids, expected)
        ids = array("i", [whole(f"a token id of {name}", token, 0, vocab_size - 1) for token in ids])
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise LocalInferError(f"{name}: token ids must be from 0 to {vocab_size - 1}")
    return ids
