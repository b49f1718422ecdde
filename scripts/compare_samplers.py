"""Compares what our samplers draw from with what llama.cpp's do, on random rows of logits and random texts.

    python scripts/compare_samplers.py [MODEL.gguf ...]

Each line says from how many rows another set of tokens was left, and how far apart probabilities were at most. A token
whose probability lies on a cut may fall either way, since llama.cpp calculates it in float. With models, DRY is
compared too: its penalties behind texts in their vocabulary, with sequence breakers. Needs llama.cpp built by
scripts/build_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import ctypes
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from peer import NATIVE, add_peer_argument, binary, compile_native

from localinfer.formats.gguf import open_gguf
from localinfer.kernels.host.sampler import Draw, NativeSampler
from localinfer.text.sequence_breakers import SequenceBreakers
from localinfer.text.tokenizer import Tokenizer, load_tokenizer

VOCABULARY = 5000
SEED = 1
LOWEST = -80.0  # a token whose logit is lowered by more counts as impossible
BREAKERS = ("\n", ":", '"', "*", "Anna:", " and ", "<|im_end|>", "…")
WORDS = ("Anna:", " Ben", ":", " and", " so", " do", " I", " know", "\n", "\n\n", " that", '"', "*", " …", "9", " 17")


class _Token(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _Tokens(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(_Token)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Row(NamedTuple):
    """What one of llama.cpp's samplers made of a row: what is left, and which of it was drawn (None: nothing was)."""

    logits: dict[int, float]
    drawn: int | None

    @property
    def probabilities(self) -> dict[int, float]:
        x = np.array(list(self.logits.values()), np.float64)
        p = np.exp(x - x.max())
        return {token: float(each) for token, each in zip(self.logits, p / p.sum(), strict=True) if each > 0}


class Peer:
    """llama.cpp's samplers, called one by one."""

    def __init__(self, source: Path) -> None:
        libraries = binary(source, "libllama.so").parent
        for name in ("libggml-base.so", "libggml.so"):
            ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(libraries / "libllama.so"), mode=ctypes.RTLD_GLOBAL)
        self._source = source

    def sampler(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, f"llama_sampler_init_{name}")
        function.restype = ctypes.c_void_p
        return int(function(*arguments))

    def accept(self, sampler: int, token: int) -> None:
        self._library.llama_sampler_accept(ctypes.c_void_p(sampler), ctypes.c_int32(token))

    def apply(self, sampler: int, logits: npt.NDArray[np.float32]) -> Row:
        data = (_Token * len(logits))(*((i, x, 0.0) for i, x in enumerate(logits.tolist())))
        row = _Tokens(data, len(logits), -1, False)
        self._library.llama_sampler_apply(ctypes.c_void_p(sampler), ctypes.byref(row))
        left = {row.data[i].id: row.data[i].logit for i in range(row.size)}
        drawn = row.data[row.selected].id if row.selected >= 0 else None
        return Row({token: x for token, x in sorted(left.items()) if x > -np.inf}, drawn)

    def free(self, sampler: int) -> None:
        self._library.llama_sampler_free(ctypes.c_void_p(sampler))

    def vocabulary(self, model: Path) -> int:
        libraries = binary(self._source, "libllama.so").parent
        made = compile_native(
            NATIVE / "llama_vocabulary.cpp",
            "-shared",
            "-fPIC",
            f"-I{self._source / 'include'}",
            f"-I{self._source / 'ggml' / 'include'}",
            f"-L{libraries}",
            f"-Wl,-rpath,{libraries}",
            "-lllama",
        )
        opened = ctypes.CDLL(str(made)).open_vocabulary
        opened.restype = ctypes.c_void_p
        found = opened(str(model).encode())
        if not found:
            raise SystemExit(f"error: llama.cpp cannot open {model}")
        return int(found)


class Difference:
    """Counts rows that differ."""

    def __init__(self, name: str) -> None:
        self.name, self.rows, self.sets, self.largest = name, 0, 0, 0.0

    def add(self, ours: dict[int, float], theirs: dict[int, float]) -> None:
        self.rows += 1
        self.sets += set(ours) != set(theirs)
        if set(ours) == set(theirs):
            self.largest = max(self.largest, *(abs(ours[token] - theirs[token]) for token in ours))

    def __str__(self) -> str:
        return f"{self.name:44} {self.rows:5} rows, {self.sets:4} with other tokens, {self.largest:.1e} apart at most"


def random_rows(count: int) -> Iterator[npt.NDArray[np.float32]]:
    """Half of them as even as noise, half with a few logits far above the others, as a model's are."""
    chance = np.random.default_rng(SEED)
    for number in range(count):
        row = chance.normal(0, chance.uniform(0.5, 4), VOCABULARY)
        if number % 2:
            row += 12 * chance.random(VOCABULARY) ** 400
        yield row.astype(np.float32)


def compare_cuts(peer: Peer, count: int) -> Iterator[Difference]:
    f = ctypes.c_float
    size, seed = ctypes.c_size_t, ctypes.c_uint32(SEED)
    cases: list[tuple[str, int, dict[str, Any]]] = [
        (f"top_n_sigma {n}", peer.sampler("top_n_sigma", f(n)), {"top_n_sigma": n}) for n in (0.5, 1.0, 2.0)
    ]
    for t, spread, exponent in ((1.0, 0.5, 1.0), (0.7, 1.5, 0.6), (1.5, 1.0, 2.0)):
        how = {"temperature": t, "dynatemp_range": spread, "dynatemp_exponent": exponent}
        cases.append((f"dynatemp {t} {spread} {exponent}", peer.sampler("temp_ext", f(t), f(spread), f(exponent)), how))
    for threshold in (0.001, 0.05, 0.2):
        how = {"xtc_probability": 1.0, "xtc_threshold": threshold}
        cases.append((f"xtc {threshold}", peer.sampler("xtc", f(1.0), f(threshold), size(1), seed), how))
    sampler = NativeSampler(VOCABULARY)
    for name, theirs, how in cases:
        found = Difference(name)
        for row in random_rows(count):
            sampler.draw(row.ctypes.data, Draw(**({"temperature": 1.0} | how)))
            found.add(dict(sampler.kept()), peer.apply(theirs, row).probabilities)
        peer.free(theirs)
        yield found


def compare_mirostat(peer: Peer, version: int, tau: float, count: int) -> Difference:
    """Both learn from the tokens that llama.cpp draws."""
    f, seed, eta = ctypes.c_float, ctypes.c_uint32(SEED), 0.1
    name = "mirostat" if version == 1 else "mirostat_v2"
    first = (ctypes.c_int32(VOCABULARY), seed) if version == 1 else (seed,)
    last = (ctypes.c_int32(100),) if version == 1 else ()
    theirs = peer.sampler(name, *first, f(tau), f(eta), *last)
    found = Difference(f"mirostat {version} tau {tau}")
    how = Draw(1.0, mirostat=version, mirostat_tau=tau, mirostat_eta=eta)
    sampler = NativeSampler(VOCABULARY)
    for row in random_rows(count):
        sampler.draw(row.ctypes.data, how)
        left = peer.apply(theirs, row)
        probabilities = left.probabilities
        found.add(dict(sampler.kept()), probabilities)
        assert left.drawn is not None
        how.mirostat_mu -= eta * (-float(np.log2(probabilities[left.drawn])) - tau)
    peer.free(theirs)
    return found


def compare_dry(peer: Peer, model: Path, breakers: tuple[str, ...], count: int) -> Difference:
    """Penalties behind texts; the tokens of the row that is compared are those that either takes something from."""
    with open_gguf(model) as file:
        tokenizer = load_tokenizer(file.metadata)
        vocabulary = peer.vocabulary(model)
        texts = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
        found = Difference(f"dry, {model.stem}, {len(breakers)} breakers")
        native = SequenceBreakers(tokenizer, tokenizer.vocab_size).find(breakers)
        sampler = NativeSampler(tokenizer.vocab_size, 500)
        zero = np.zeros(tokenizer.vocab_size, np.float32)
        for tokens in random_texts(tokenizer, count):
            allowed, last = random.randrange(1, 4), random.choice((20, 500))
            f, i = ctypes.c_float, ctypes.c_int32
            theirs = peer.sampler(
                "dry",
                ctypes.c_void_p(vocabulary),
                f(0.8),
                f(1.75),
                i(allowed),
                i(last),
                texts,
                ctypes.c_size_t(len(texts)),
            )
            for token in tokens:
                peer.accept(theirs, token)
            lowered = {token: max(x, LOWEST) for token, x in peer.apply(theirs, zero).logits.items() if x != 0}
            peer.free(theirs)
            how = Draw(1.0, dry_multiplier=0.8, dry_allowed_length=allowed, dry_breakers=native)
            how.look_back(tokens[-last:])
            sampler.draw(zero.ctypes.data, how)
            kept = sampler.kept()
            most = max(p for _, p in kept)
            ours = {token: max(float(np.log(p / most)), LOWEST) for token, p in kept if p < 0.999 * most}
            ours |= dict.fromkeys(set(range(tokenizer.vocab_size)) - {token for token, _ in kept}, LOWEST)
            if ours or lowered:
                found.add(ours, lowered)
    return found


def random_texts(tokenizer: Tokenizer, count: int) -> Iterator[array[int]]:
    """That repeat themselves."""
    chance = random.Random(SEED)
    for _ in range(count):
        phrases = ["".join(chance.choices(WORDS, k=chance.randrange(2, 9))) for _ in range(3)]
        text = "".join([*chance.choices([*phrases, *WORDS], k=chance.randrange(5, 30)), phrases[0]])
        yield tokenizer.encode(text, add_special=False, parse_special=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--rows", type=int, default=100)
    add_peer_argument(parser)
    arguments = parser.parse_args()
    random.seed(SEED)
    peer = Peer(arguments.llama_cpp)
    for difference in compare_cuts(peer, arguments.rows):
        print(difference)
    for version in (1, 2):
        for tau in (2.0, 5.0):
            print(compare_mirostat(peer, version, tau, arguments.rows))
    for model in arguments.models:
        for breakers in ((), BREAKERS[:4], BREAKERS):
            print(compare_dry(peer, model, breakers, arguments.rows))


if __name__ == "__main__":
    main()
