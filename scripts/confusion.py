"""Verify's confusion table: honest files and others, by llama.cpp and localinfer, in every type, against one source.

    python scripts/confusion.py [FOLDER] [--types Q4_K IQ2_S ...] [--quick]
    python scripts/confusion.py --fixtures      rewrites tests/data/llama_cpp_blocks.npz: blocks by llama.cpp

FOLDER is a small model with safetensors; the source of everything. llama.cpp quantizes every matrix to one type:
without importances, with those that were measured over a text, and with random ones over nine powers of ten.
Dishonest files are made in the ways of DISHONEST, with measured importances. A file counts as found if `verify` does
not end with "proven". Needs llama.cpp built by scripts/build_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_cpp_quantize import Quantizer
from measure import table
from peer import add_peer_argument, binary

from localinfer.checkpoints import open_model
from localinfer.checkpoints.values import float_rows
from localinfer.evaluate.texts import default_text
from localinfer.formats.gguf import open_gguf
from localinfer.hub.report import Silent
from localinfer.kernels.types import TYPES
from localinfer.quantize.calibration import Statistics, collect
from localinfer.quantize.pipeline import Wishes as QuantizeWishes
from localinfer.quantize.pipeline import quantize
from localinfer.verify.report import Exit, Report
from localinfer.verify.verification import Wishes, verify

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
DEFAULT_MODEL, FIXTURES = DATA / "presidents-1m", DATA / "llama_cpp_blocks.npz"
LLAMA_CPP_TYPES = (
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
    "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S",
)  # fmt: skip
NEED_IMPORTANCE = {"IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"}  # llama.cpp refuses them without
OURS = (
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q5_1",
    "q5_0",
    "q4_k_m",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "q3_k_m",
    "q2_k",
)
OURS_COMPRESSED = ("int8", "int4", "fp8", "fp8-block")
HARSH_SIGMA = 3.0  # of the logarithm of importances

Floats = npt.NDArray[np.float32]
Change = Callable[[str, Floats, np.random.Generator], Floats]


class Outcome(NamedTuple):
    """What verify said about one file. `case` is a column of the table, `kind` a row."""

    case: str
    kind: str
    honest: bool
    exit: Exit
    seconds: float
    report: Report


# ---- weights that are others ----------------------------------------------------------------------------------------


def low_rank(size: float) -> Change:
    """A fine-tune as LoRA makes it: rank 4, of that size relative to the matrix."""

    def change(name: str, weights: Floats, random: np.random.Generator) -> Floats:
        if not name.startswith("blk.") or weights.shape[0] == 1:
            return weights
        left = random.standard_normal((weights.shape[0], 4), np.float32)
        delta = left @ random.standard_normal((4, weights.shape[1]), np.float32)
        return weights + delta * np.float32(size * np.std(weights) / np.std(delta))

    return change


def noisy(size: float) -> Change:
    """All matrices changed at random, by that much relative to them."""

    def change(name: str, weights: Floats, random: np.random.Generator) -> Floats:
        if weights.shape[0] == 1:
            return weights
        return weights + random.standard_normal(weights.shape, np.float32) * np.float32(size * np.std(weights))

    return change


def other_row(name: str, weights: Floats, random: np.random.Generator) -> Floats:
    """One row of one matrix has its sign turned."""
    del random
    changed = weights.copy()
    if name == "blk.1.ffn_up.weight":
        changed[7] = -changed[7]
    return changed


def other_model(name: str, weights: Floats, random: np.random.Generator) -> Floats:
    """A model of the same shape and scale."""
    del name
    return random.permutation(weights.reshape(-1)).reshape(weights.shape) if weights.shape[0] > 1 else weights


# ---- files that were changed ----------------------------------------------------------------------------------------


def swapped(path: Path, random: np.random.Generator) -> None:
    """Two tensors of the same type and shape have changed places."""
    del random
    with open_gguf(path) as file:
        one, other = file.tensor("blk.0.ffn_up.weight"), file.tensor("blk.1.ffn_up.weight")
        first, second = bytes(one.buffer), bytes(other.buffer)
    _write(path, {one.offset: second, other.offset: first})


def other_block(path: Path, random: np.random.Generator) -> None:
    """One block is replaced by another of the same tensor."""
    with open_gguf(path) as file:
        tensor = file.tensor("blk.1.ffn_down.weight")
        size = tensor.type.block_bytes if tensor.type.block_size > 1 else 64
        here, there = random.choice(tensor.nbytes // size, 2, replace=False) * size
        data = bytes(tensor.buffer[there : there + size])
    _write(path, {tensor.offset + int(here): data})


def _write(path: Path, parts: Mapping[int, bytes]) -> None:
    with path.open("r+b") as file:
        for offset, data in parts.items():
            file.seek(offset)
            file.write(data)


CHANGED_SOURCES: dict[str, Change] = {
    "fine-tune 3 %": low_rank(0.03),
    "fine-tune 0.3 %": low_rank(0.003),
    "noise 0.1 %": noisy(0.001),
    "one row turned": other_row,
    "wrong source": other_model,
}
CHANGED_FILES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "tensor swapped": swapped,
    "block replaced": other_block,
}
REQUANTIZED = "from Q8_0"
DISHONEST = (*CHANGED_SOURCES, *CHANGED_FILES, REQUANTIZED)
HONEST = ("honest", "measured imatrix", "harsh imatrix")


@dataclass(frozen=True)
class Lab:
    """A source as a folder and as F16, and what the trials need."""

    source: Path
    plain: Path
    folder: Path
    peer: Quantizer
    measured: Mapping[str, Floats]
    harsh: Mapping[str, Floats]

    def look(self, case: str, kind: str, path: Path, honest: bool, **wishes: Any) -> Outcome:
        start = time.monotonic()
        report = verify(Wishes(path, self.source, **wishes), Silent())
        outcome = Outcome(case, kind, honest, report.exit, time.monotonic() - start, report)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return outcome

    def quantized(self, kind: str, importance: Mapping[str, Floats] | None, plain: Path | None = None) -> Path:
        """All matrices in one type, by llama.cpp."""
        with open_gguf(self.plain) as file:
            types = {tensor.name: kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
        path = self.folder / "file.gguf"
        self.peer.quantize(plain or self.plain, path, "q8_0", importance, types)
        return path

    def changed(self, change: Change) -> Path:
        """The F16 file with other weights."""
        path = self.folder / "changed.gguf"
        shutil.copyfile(self.plain, path)
        random = np.random.default_rng(1)
        parts = {}
        with open_gguf(self.plain) as file:
            for name, tensor in file.tensors.items():
                rows = 1 if len(tensor.shape) == 1 else tensor.shape[0]
                weights = change(name, float_rows(tensor, 0, rows), random)
                parts[tensor.offset] = weights.astype("<f4" if tensor.type.name == "F32" else "<f2").tobytes()
        _write(path, parts)
        return path


def by_llama_cpp(lab: Lab, types: Sequence[str], quick: bool) -> Iterator[Outcome]:
    """Honest files and others, type by type."""
    random = np.random.default_rng(2)
    changed = {case: lab.changed(change).rename(lab.folder / f"{i}.gguf") for i, (case, change) in
               enumerate(CHANGED_SOURCES.items())}  # fmt: skip
    eight = lab.quantized("Q8_0", None).rename(lab.folder / "q8_0.gguf")
    for kind in types:
        importances = dict(zip(HONEST, (None, lab.measured, lab.harsh), strict=True))
        if kind in NEED_IMPORTANCE:
            del importances["honest"]
        for case, importance in importances.items():
            yield lab.look(case, kind, lab.quantized(kind, importance), True, limits=case == "measured imatrix")
        if quick:
            continue
        for case, path in changed.items():
            yield lab.look(case, kind, lab.quantized(kind, lab.measured, path), False, limits=False)
        for case, tamper in CHANGED_FILES.items():
            path = lab.quantized(kind, lab.measured)
            tamper(path, random)
            yield lab.look(case, kind, path, False, limits=False)
        if kind != "Q8_0":
            yield lab.look(REQUANTIZED, kind, lab.quantized(kind, lab.measured, eight), False, limits=False)


def by_localinfer(lab: Lab, statistics: Path) -> Iterator[Outcome]:
    """Honest files, plain and calibrated with error feedback; and one whose weights are others."""
    changed = lab.changed(low_rank(0.003))
    for recipe in (*OURS, *OURS_COMPRESSED):
        path = lab.folder / ("ours" if recipe in OURS_COMPRESSED else "ours.gguf")
        calibrations = {"honest": "", "calibrated": str(statistics)}
        for case, calibrate in calibrations.items():
            quantize(QuantizeWishes(lab.source, recipe, output=path, calibrate=calibrate, measure=False), Silent())
            yield lab.look(case, recipe, path, True, calibrate=calibrate, limits=False)
        if recipe in OURS:
            quantize(QuantizeWishes(changed, recipe, output=path, measure=False), Silent())
            yield lab.look("fine-tune 0.3 %", recipe, path, False, limits=False)


def importances(statistics: Statistics, plain: Path) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Measured ones, and harsh ones; embeddings, whose inputs are no activations, get harsh ones in both."""
    random = np.random.default_rng(3)
    measured, harsh = {}, {}
    with open_gguf(plain) as file:
        for name, tensor in file.tensors.items():
            if len(tensor.shape) > 1:
                harsh[name] = np.exp(HARSH_SIGMA * random.standard_normal(tensor.shape[-1], np.float32))
                found = statistics.importance(name)
                measured[name] = harsh[name] if found is None else found
    return measured, harsh


def write_fixtures(source: Path) -> None:
    """Some rows of weights, importances of their columns, and what llama.cpp makes of them with and without those."""
    library = ctypes.CDLL(str(binary(source, "libggml-base.so")))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointers, sizes = [ctypes.c_void_p] * 2, [ctypes.c_int64] * 3
    library.ggml_quantize_chunk.argtypes = (ctypes.c_int, *pointers, *sizes, ctypes.c_void_p)
    random = np.random.default_rng(4)
    weights = (random.standard_t(5, (4, 512)) * 0.02).astype(np.float32)
    weights[1, :256] = 0  # not less: IQ3_S shifts what follows a run of 32 zeros within a block
    importance = np.exp(1.5 * random.standard_normal(512)).astype(np.float32)
    arrays = {"weights": weights, "importance": importance}
    for name in LLAMA_CPP_TYPES:
        for case, pointer in (("plain", None), ("weighted", importance.ctypes.data)):
            if pointer is None and name in NEED_IMPORTANCE:
                continue
            made = np.zeros(len(weights) * TYPES[name].row_bytes(weights.shape[1]), np.uint8)
            library.ggml_quantize_chunk(
                TYPES[name].id, weights.ctypes.data, made.ctypes.data, 0, *weights.shape, pointer
            )
            arrays[f"{name} {case}"] = made
    np.savez_compressed(FIXTURES, **arrays)
    print(f"{FIXTURES}: {FIXTURES.stat().st_size} bytes")


def told(outcomes: Sequence[Outcome]) -> None:
    """A row per type, a column per case: P proven, ? not proven, X refuted."""
    cases = list(dict.fromkeys(outcome.case for outcome in outcomes))
    letters = {Exit.PROVEN: "P", Exit.UNPROVEN: "?", Exit.REFUTED: "X"}
    cells = {(outcome.kind, outcome.case): letters[outcome.exit] for outcome in outcomes}
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    print(table(["type", *cases], [[kind, *(cells.get((kind, case), "") for case in cases)] for kind in kinds]))


def limits_of(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """The smallest changes that would have been found, by type."""
    found = {limit.type: limit for outcome in outcomes for limit in outcome.report.limits}
    return {
        kind: {"noise": limit.noise, "row_scaled": limit.scaled, "bit_flips_found": limit.flips}
        for kind, limit in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--types", nargs="*", default=LLAMA_CPP_TYPES, choices=LLAMA_CPP_TYPES)
    parser.add_argument("--quick", action="store_true", help="honest files only")
    parser.add_argument("--fixtures", action="store_true", help="rewrite the tests' fixtures")
    add_peer_argument(parser)
    arguments = parser.parse_args()
    if arguments.fixtures:
        write_fixtures(arguments.llama_cpp)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain = folder / "plain.gguf"
        quantize(QuantizeWishes(arguments.model, "f16", output=plain, measure=False), Silent())
        with open_model(arguments.model) as model:
            statistics = collect(model, default_text("calibration"), grams=True)
        statistics.save(folder / "statistics.safetensors")
        lab = Lab(arguments.model, plain, folder, Quantizer(arguments.llama_cpp), *importances(statistics, plain))
        theirs = list(by_llama_cpp(lab, arguments.types, arguments.quick))
        ours = list(by_localinfer(lab, folder / "statistics.safetensors"))
    print("\nby llama.cpp (P proven, ? not proven, X refuted)\n")
    told(theirs)
    print("\nby localinfer\n")
    told(ours)
    limits = limits_of(theirs)
    print("\nthe smallest changes that would have been found\n")
    rows = [
        [k, f"{v['noise']:.2g}", f"{v['row_scaled']:.2g}", f"{v['bit_flips_found']:.0%}"] for k, v in limits.items()
    ]
    print(table(["type", "noise on all weights", "one row scaled by 1 +", "flipped bits found"], rows))
    outcomes = [*theirs, *ours]
    wrong = [
        f"{outcome.kind}, {outcome.case}" for outcome in outcomes if outcome.honest != (outcome.exit is Exit.PROVEN)
    ]
    counts = Counter((outcome.honest, outcome.exit.name.lower()) for outcome in outcomes)
    print(f"\nwrong: {', '.join(wrong) or 'none'}\n")
    result = {
        "script": "confusion",
        "model": arguments.model.name,
        "honest": {name: count for (honest, name), count in counts.items() if honest},
        "dishonest": {name: count for (honest, name), count in counts.items() if not honest},
        "wrong": wrong,
        "limits": limits,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
