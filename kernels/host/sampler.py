"""The native sampler (native/sampler.cpp): one call per row of logits."""

from __future__ import annotations

import ctypes
from array import array
from functools import cache
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.kernels.native_library import open_library

_ERRORS = {
    -1: "the logits contain NaN",
    -2: "no token has a logit above -inf",
    -3: "a token id, count or temperature is out of range",
    -4: "the logits contain +inf",
}
_DAMAGED = (
    "the model file may be damaged, or its weights may overflow; `localinfer pull NAME --verify` checks a file "
    "that was pulled"
)
_PENALTIES = f"the penalties may be too large; or {_DAMAGED}"


@cache
def _library() -> ctypes.CDLL:
    library = open_library("localinfer.kernels.host._host")
    pointer, i32, i64, u64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
    real, share = ctypes.c_float, ctypes.c_double
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "li_sampler_bytes": (i64, [i32]),
        "li_sampler_create": (pointer, [i32]),
        "li_sampler_destroy": (None, [pointer]),
        "li_sampler_kept": (i32, [pointer, pointer, pointer, i32]),
        "li_philox": (None, [pointer, ctypes.c_uint32, ctypes.c_uint32]),
        "li_uniform": (ctypes.c_double, [u64, u64]),
        "li_sample": (
            i32,
            [
                pointer,
                pointer,
                real,
                i32,
                *[share] * 3,
                *[real] * 3,
                u64,
                u64,
                pointer,
                i32,
                i32,
                pointer,
                i32,
                pointer,
            ],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def sampler_bytes(vocab_size: int) -> int:
    """Memory that a NativeSampler reserves."""
    return int(_library().li_sampler_bytes(vocab_size))


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the draw at a position."""
    return float(_library().li_uniform(seed & (2**64 - 1), position))


class NativeSampler:
    """Draws tokens from rows of `vocab_size` logits. All memory is reserved here; not re-entrant."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._handle = _library().li_sampler_create(vocab_size)
        if not self._handle:
            raise LocalInferError(f"no memory for a sampler of {vocab_size} tokens")

    def sample(
        self,
        logits: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        position: int = 0,
        seen: array[int] | None = None,
        from_prompt: int = 0,
        banned: array[int] | None = None,
        with_logprob: bool = False,
    ) -> tuple[int, float | None]:
        """The token drawn, and its log probability if wanted.

        `logits` is the address of `vocab_size` floats, which stay as they are. `seen` (`array("i")`) are the tokens
        that the penalties look at, of which the first `from_prompt` stand in the prompt; those in `banned` are never
        drawn.
        LocalInferError if the logits hold NaN or +inf, or nothing can be drawn.
        """
        logprob = ctypes.c_double()
        token = _library().li_sample(
            self._handle,
            logits,
            temperature,
            min(top_k, self.vocab_size),
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed & (2**64 - 1),
            position,
            seen.buffer_info()[0] if seen else None,
            len(seen) if seen else 0,
            from_prompt,
            banned.buffer_info()[0] if banned else None,
            len(banned) if banned else 0,
            ctypes.byref(logprob) if with_logprob else None,
        )
        if token < 0:
            penalized = (repetition_penalty, presence_penalty, frequency_penalty) != (1, 0, 0)
            raise LocalInferError(f"no token can be drawn: {_ERRORS[token]}", _PENALTIES if penalized else _DAMAGED)
        return token, logprob.value if with_logprob else None

    def kept(self) -> list[tuple[int, float]]:
        """The tokens that the last draw chose from, ascending by id, and their probabilities."""
        ids = array("i", bytes(4 * self.vocab_size))
        probabilities = array("f", bytes(4 * self.vocab_size))
        count = _library().li_sampler_kept(
            self._handle, ids.buffer_info()[0], probabilities.buffer_info()[0], self.vocab_size
        )
        return list(zip(ids[:count], probabilities[:count], strict=True))

    def close(self) -> None:
        if self._handle:
            _library().li_sampler_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()
