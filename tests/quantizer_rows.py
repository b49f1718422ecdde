"""Rows of weights of many kinds for tests of quantizers: the same numbers everywhere, whatever numpy's version."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]


def uniform(rows: int, columns: int, seed: int) -> Floats:
    """Numbers in [0, 1) with 24 bits, from integer arithmetic alone (the finalizer of MurmurHash3)."""
    x = np.arange(rows * columns, dtype=np.uint32) + np.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return ((x >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)).reshape(rows, columns)


def bell(rows: int, columns: int, seed: int = 1) -> Floats:
    """Nearly gaussian: sums of twelve uniform numbers, of standard deviation 1."""
    total = np.full((rows, columns), -6, np.float32)
    for i in range(12):
        total += uniform(rows, columns, 12 * seed + i)
    return total


def importance(columns: int, seed: int = 5) -> Floats:
    """Of many magnitudes: powers of two times 1 or 1.5."""
    steps = np.round(bell(1, columns, seed)[0] * 3).astype(np.int32)
    return np.ldexp(np.where(steps & 1, np.float32(1.5), np.float32(1)), steps).astype(np.float32)


def gram(columns: int, seed: int = 9) -> Floats:
    """Second moments of inputs that are mostly sums of a few directions, like those of trained models."""
    few = columns // 16
    x = bell(2 * columns, few, seed).astype(np.float64) @ bell(few, columns, seed + 1).astype(np.float64)
    x += bell(2 * columns, columns, seed + 2)
    x = np.round(x * 16) / 16  # sums of products that float64 holds exactly, so in any order
    return np.asarray(x.T @ x, np.float32)


def rows_of(kind: str, rows: int, columns: int) -> Floats:
    """Rows of one kind of KINDS."""
    x = bell(rows, columns)
    match kind:
        case "gaussian":
            return x * np.float32(0.02)
        case "heavy":
            return x * x * x * np.float32(0.01)
        case "sparse":
            return np.where(uniform(rows, columns, 77) < 0.1, x, np.float32(0))
        case "shifted":
            return x * np.float32(0.1) + np.float32(3)
        case "constant":
            return np.broadcast_to(x[:, :1], x.shape).copy()
        case "zero":
            return np.copysign(np.float32(0), x)
        case "tiny":
            return x * np.float32(1e-30)
        case "small":
            return x * np.float32(1e-6)
        case "large":
            return x * np.float32(1e4)
        case "outlier":
            x[:, ::97] *= np.float32(64)
            return x
    raise ValueError(kind)


KINDS = ("gaussian", "heavy", "sparse", "shifted", "constant", "zero", "tiny", "small", "large", "outlier")
