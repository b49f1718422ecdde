"""The native sampler (native/sampler.cpp): one call per row of logits."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from localinfer.errors import LocalInferError
from localinfer.kernels.native_library import open_library

_ERRORS = {
    -1: "the logits contain NaN",
    -2: "no token that may be drawn has a logit above -inf",
    -3: "a token id, count or temperature is out of range",
    -4: "the logits contain +inf",
}
_DAMAGED = (
    "the model file may be damaged, or its weights may overflow; `localinfer pull NAME --verify` checks a file "
    "that was pulled"
)
_ADJUSTED = f"penalties may be too large, or a bias, or a logits processor wrote it; or {_DAMAGED}"
_LARGEST = 2**31 - 1

Ranked = tuple[tuple[int, float], ...]  # tokens in rank order, and the log probability of each


@cache
def _library() -> ctypes.CDLL:
    library = open_library("localinfer.kernels.host._host")
    pointer, i32, i64, u32, u64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
    draw = ctypes.POINTER(Draw)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "li_sampler_bytes": (i64, [i32, i32]),
        "li_sampler_create": (pointer, [i32, i32]),
        "li_sampler_destroy": (None, [pointer]),
        "li_sampler_kept": (i32, [pointer, pointer, pointer, i32]),
        "li_philox": (None, [pointer, u32, u32]),
        "li_uniform": (ctypes.c_double, [u64, u64, u32, u32]),
        "li_log": (ctypes.c_double, [ctypes.c_double]),
        "li_exp": (ctypes.c_double, [ctypes.c_double]),
        "li_sample": (i32, [pointer, pointer, draw, pointer, i32, pointer, pointer, pointer]),
        "li_log_probabilities": (i32, [pointer, pointer, i32, pointer, i32, pointer, pointer]),
        "li_candidates": (i32, [pointer, pointer, draw, i32, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def sampler_bytes(vocab_size: int, longest: int) -> int:
    """Memory that a NativeSampler reserves."""
    return int(_library().li_sampler_bytes(vocab_size, longest))


def uniform(seed: int, position: int, choice: int = 0, purpose: int = 0) -> float:
    """The number in [0, 1) that decides something at a position of one of several answers.

    `purpose` 0 is which token is drawn, 1 whether XTC excludes any.
    """
    return float(_library().li_uniform(seed, position, choice, purpose))


class _Tokens(ctypes.Structure):
    _fields_ = (("ids", ctypes.c_void_p), ("count", ctypes.c_int32))

    def show(self, ids: array[int] | None) -> None:
        self.ids = ids.buffer_info()[0] if ids else None
        self.count = len(ids) if ids else 0


class Breakers:
    """Sequences of tokens that no repetition reaches across: `pairs` of the token that one begins with, and the others.

    As native/sampler_repetition.h has them.
    """

    def __init__(self, vocab_size: int, pairs: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        self.first = array("I", bytes(4 * -(-vocab_size // 32)))
        self.tails = array("i", [0])
        begins: dict[tuple[int, ...], int] = {(): 0}
        found = set()
        for token, tail in pairs:
            if tail not in begins:
                begins[tail] = len(self.tails)
                self.tails.append(len(tail))
                self.tails.extend(tail)
            found.add((token, begins[tail]))
            self.first[token // 32] |= 1 << token % 32
        self.pairs = array("i", [number for pair in sorted(found) for number in pair])


class _Breakers(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        ("pairs", ctypes.c_void_p),
        ("pair_count", ctypes.c_int32),
        ("tails", ctypes.c_void_p),
        ("tail_count", ctypes.c_int32),
    )


class Draw(ctypes.Structure):
    """Everything that a draw depends on beside the logits; made once for many draws.

    The parameters mean what SamplingParams says. `bias` are token ids (`array("i")`) and what is added to the logit of
    each (`array("f")`). `choice` tells the answers to one request apart. `mirostat_mu` is what Mirostat has learned of
    the answer so far; a draw leaves it as it is until `accept` says that its token is part of the answer.
    """

    _fields_ = (
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("typical_p", ctypes.c_double),
        ("repetition_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("choice", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("position", ctypes.c_uint64),
        ("_seen", _Tokens),
        ("_from_prompt", ctypes.c_int32),
        ("_banned", _Tokens),
        ("_biased", _Tokens),
        ("_bias", ctypes.c_void_p),
        ("_allowed", ctypes.c_void_p),
        ("top_n_sigma", ctypes.c_double),
        ("dynatemp_range", ctypes.c_double),
        ("dynatemp_exponent", ctypes.c_double),
        ("xtc_probability", ctypes.c_double),
        ("xtc_threshold", ctypes.c_double),
        ("mirostat", ctypes.c_int32),
        ("mirostat_tau", ctypes.c_double),
        ("mirostat_eta", ctypes.c_double),
        ("mirostat_mu", ctypes.c_double),
        ("_mirostat_next_mu", ctypes.c_double),
        ("dry_multiplier", ctypes.c_double),
        ("dry_base", ctypes.c_double),
        ("dry_allowed_length", ctypes.c_int32),
        ("_dry_text", _Tokens),
        ("_dry_breakers", _Breakers),
    )

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        *,
        seed: int = 0,
        position: int = 0,
        choice: int = 0,
        top_n_sigma: float = 0.0,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        mirostat: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_breakers: Breakers | None = None,
        bias: tuple[array[int], array[float]] | None = None,
        banned: array[int] | None = None,
        seen: array[int] | None = None,
        from_prompt: int = 0,
    ) -> None:
        super().__init__(
            temperature,
            min(top_k, _LARGEST),
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            choice,
            seed,
            position,
            top_n_sigma=top_n_sigma,
            dynatemp_range=dynatemp_range,
            dynatemp_exponent=dynatemp_exponent,
            xtc_probability=xtc_probability,
            xtc_threshold=xtc_threshold,
            mirostat=mirostat,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            mirostat_mu=2 * mirostat_tau,
            dry_multiplier=dry_multiplier,
            dry_base=dry_base,
            dry_allowed_length=min(dry_allowed_length, _LARGEST),
        )
        self.adjusts = bool(bias) or (repetition_penalty, presence_penalty, frequency_penalty) != (1, 0, 0)
        if dry_breakers and dry_breakers.pairs:
            self._keep_breakers = dry_breakers
            pairs, pair_numbers = dry_breakers.pairs.buffer_info()
            self._dry_breakers = _Breakers(
                dry_breakers.first.buffer_info()[0], pairs, pair_numbers // 2, *dry_breakers.tails.buffer_info()
            )
        if bias:
            self._keep_bias = bias
            self._biased.show(bias[0])
            self._bias = bias[1].buffer_info()[0]
        self.ban(banned)
        self.see(seen, from_prompt)

    def ban(self, tokens: array[int] | None) -> None:
        """From now on these (`array("i")`) cannot be drawn."""
        self._keep_banned = tokens
        self._banned.show(tokens)

    def allow(self, bits: array[int] | None) -> None:
        """From now on only tokens whose bit is set can be drawn; None allows all.

        `bits` are words of 32 (`array("I")`), enough for the whole vocabulary; token 0 is the lowest bit of the first.
        """
        self._keep_allowed = bits
        self._allowed = bits.buffer_info()[0] if bits else None

    def see(self, tokens: array[int] | None, from_prompt: int = 0) -> None:
        """What the penalties look at (`array("i")`); the first `from_prompt` of them stand in the prompt."""
        self._keep_seen = tokens
        self._seen.show(tokens)
        self._from_prompt = from_prompt

    def look_back(self, tokens: array[int] | None) -> None:
        """Where DRY looks for repetitions (`array("i")`): the end of the text so far. None turns it off."""
        self._keep_dry_text = tokens
        self._dry_text.show(tokens)

    def accept(self) -> None:
        """The token drawn last stays: Mirostat learns from it."""
        if self.mirostat:
            self.mirostat_mu = self._mirostat_next_mu


class Drawn(NamedTuple):
    """A token, and if it was asked for its log probability and those of the tokens that rank first."""

    token: int
    logprob: float | None = None
    top: Ranked = ()


class NativeSampler:
    """Draws tokens from rows of `vocab_size` logits. All memory is reserved here; not re-entrant.

    DRY looks at `longest` tokens at most.

    `logits` is the address of `vocab_size` floats, which stay as they are. Log probabilities are the log softmax of
    the logits; tokens are ranked by (logit descending, id ascending). LocalInferError if the logits hold NaN or +inf,
    or if no token can be drawn.
    """

    def __init__(self, vocab_size: int, longest: int = 0) -> None:
        self.vocab_size = vocab_size
        self._handle = _library().li_sampler_create(vocab_size, longest)
        if not self._handle:
            raise LocalInferError(f"no memory for a sampler of {vocab_size} tokens")
        self._logprob, self._found = ctypes.c_double(), ctypes.c_int32()
        self._ids, self._logprobs = array("i"), array("d")  # room for what ranks first

    def draw(self, logits: int, draw: Draw, top: int | None = None) -> Drawn:
        """The next token; with `top` not None its log probability, and those of the `top` tokens that rank first.

        Log probabilities are of the logits as they came, without bias, penalties and bans.
        """
        if top is None:
            token = _library().li_sample(self._handle, logits, ctypes.byref(draw), None, 0, None, None, None)
            return Drawn(_checked(token, draw.adjusts))
        logprob, found = self._logprob, self._found
        token = _library().li_sample(
            self._handle,
            logits,
            ctypes.byref(draw),
            ctypes.byref(logprob),
            *self._room(top),
            ctypes.byref(found),
        )
        return Drawn(_checked(token, draw.adjusts), logprob.value, self._ranked(found.value))

    def logprobs(self, logits: int, token: int, top: int = 0) -> tuple[float, Ranked]:
        """The log probability of a token, and those of the `top` tokens that rank first."""
        logprob = self._logprob
        found = _library().li_log_probabilities(self._handle, logits, token, ctypes.byref(logprob), *self._room(top))
        return logprob.value, self._ranked(_checked(found, adjusted=False))

    def candidates(self, logits: int, draw: Draw, top: int) -> Ranked:
        """The `top` tokens that rank first after bias, penalties and bans, with the log softmax of these logits.

        Fewer if not so many can be drawn.
        """
        found = _library().li_candidates(self._handle, logits, ctypes.byref(draw), *self._room(top))
        return self._ranked(_checked(found, draw.adjusts))

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

    def _room(self, count: int) -> tuple[int, int, int]:
        """Arguments for `count` ranked tokens: how many, and where their ids and log probabilities go."""
        count = min(count, self.vocab_size)
        if len(self._ids) < count:
            self._ids, self._logprobs = array("i", bytes(4 * count)), array("d", bytes(8 * count))
        return count, self._ids.buffer_info()[0], self._logprobs.buffer_info()[0]

    def _ranked(self, count: int) -> Ranked:
        return tuple(zip(self._ids[:count], self._logprobs[:count], strict=True))


def _checked(result: int, adjusted: bool) -> int:
    if result < 0:
        raise LocalInferError(f"no token can be drawn: {_ERRORS[result]}", _ADJUSTED if adjusted else _DAMAGED)
    return result
