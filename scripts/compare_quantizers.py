"""KL divergence to the source at equal file size: ours against llama.cpp's quantizer with its own imatrix.

    python scripts/compare_quantizers.py MODEL... [--targets q4_k_m q3_k_m q2_k] [--ablations]

A MODEL is a folder with safetensors, or a .gguf file. A quantized one is turned into F16 first; of its tensors, those
for which llama.cpp would choose the very type that they came from lie on that type's grid, so they stay F16 on both
sides, and ours never gets a type as fine as the one that a tensor came from.

Both sides see the same calibration text (localinfer's), and both files are judged on another one (localinfer's
evaluation text), by our engine; --judge llama.cpp has llama.cpp compute the logits as well. Ours may not be a byte
larger.
Needs llama.cpp built by scripts/build_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_cpp_quantize import Quantizer, imatrix
from measure import table
from peer import LlamaCpp, add_peer_argument

from localinfer.checkpoints import open_model
from localinfer.evaluate.divergence import Reference
from localinfer.evaluate.texts import default_text
from localinfer.evaluate.windows import Windows, windows_of
from localinfer.hub.report import Silent
from localinfer.kernels.types import TYPES
from localinfer.quantize.pipeline import Wishes, quantize
from localinfer.quantize.sensitivity import LADDER
from localinfer.text.tokenizer import load_tokenizer

TARGETS = ("q4_k_m", "q3_k_m", "q2_k")
WINDOW = 512


class Prepared(NamedTuple):
    """A source for both sides: an F16 file, and of each tensor the quantized type that it came from, if any."""

    name: str
    path: Path
    came_from: Mapping[str, str]


class Row(NamedTuple):
    """One quantized file and how far it is from its source; `their_kl` as llama.cpp computes the logits."""

    model: str
    target: str
    what: str
    size: int
    kl: float
    kl_error: float
    p99: float
    top1: float
    judged: float
    seconds: float


def prepare(model: Path, folder: Path) -> Prepared:
    """The model as F16."""
    with open_model(model) as file:
        kinds = {name: tensor.type for name, tensor in file.tensors.items()}
    came_from = {name: kind.name for name, kind in kinds.items() if kind.block_size > 1}
    name = model.name.removesuffix(".gguf")
    matrices = {kind.name for kind in kinds.values()} - {"F32"}
    if model.suffix == ".gguf" and matrices == {"F16"}:
        return Prepared(name, model, {})
    path = folder / f"{name}-f16.gguf"
    if not path.exists():
        quantize(Wishes(model, "f16", output=path, measure=False), Silent())
    return Prepared(name, path, came_from)


def bits(kind: str) -> float:
    """Bits per weight of a type."""
    return 8 * TYPES[kind].block_bytes / TYPES[kind].block_size


class Judge:
    """Measures files against one source over the evaluation text."""

    def __init__(self, source: Prepared, windows: int, peer: Path | None) -> None:
        with open_model(source.path) as file:
            tokenizer = load_tokenizer(file.metadata)
        self._windows = windows_of(tokenizer, default_text("evaluation"), WINDOW, windows)
        self._stack = ExitStack()
        self._reference = self._stack.enter_context(Reference(source.path, self._windows))
        self._peer = peer
        self._source_logits = [] if peer is None else list(peer_logits(peer, source.path, self._windows))

    def row(self, source: Prepared, target: str, what: str, path: Path, seconds: float) -> Row:
        found = self._reference.compare(path)
        judged = float("nan")
        if self._peer is not None:
            pairs = zip(self._source_logits, peer_logits(self._peer, path, self._windows), strict=True)
            judged = float(np.mean([divergence(p, q).mean() for p, q in pairs]))
        return Row(
            source.name,
            target,
            what,
            path.stat().st_size,
            found.kl_mean.value,
            found.kl_mean.error or 0.0,
            found.kl_p99.value,
            found.top1.value,
            judged,
            seconds,
        )

    def close(self) -> None:
        self._stack.close()


def peer_logits(peer: Path, model: Path, windows: Windows) -> list[npt.NDArray[Any]]:
    """llama.cpp's logits at the scored positions, window by window, as float16 differences from their row's maximum."""
    found = []
    with LlamaCpp(peer, model, 2, False, [windows.size]) as driver:
        for tokens in windows.tokens:
            scored = driver.logits(list(tokens))[windows.scored_from : -1]
            found.append(scored)
    return found


def divergence(p: npt.NDArray[Any], q: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """KL(p || q) by row, in nats, of logits."""
    logs = []
    for logits in (p, q):
        shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
        logs.append(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
    result: npt.NDArray[Any] = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1)
    return result


def compare(source: Prepared, target: str, folder: Path, judge: Judge, peer: Peer, ablations: bool) -> list[Row]:
    """llama.cpp's file, and ours of at most its size."""
    theirs = folder / f"{source.name}-{target}-llama.cpp.gguf"
    start = time.perf_counter()
    peer.quantizer.quantize(source.path, theirs, target, peer.importance)
    pinned = {name: "F16" for name, kind in types_of(theirs).items() if source.came_from.get(name) == kind}
    if source.came_from and not set(source.came_from) - set(pinned):
        print(f"{source.name}, {target}: every tensor comes from the type that it would get: nothing to compare\n")
        return []
    if pinned:
        peer.quantizer.quantize(source.path, theirs, target, peer.importance, pinned)
    rows = [judge.row(source, target, "llama.cpp + imatrix", theirs, time.perf_counter() - start)]
    allowed: dict[str, Sequence[str]] = dict.fromkeys(pinned, ("F16",))
    allowed |= {
        name: [finer for finer in LADDER if bits(finer) < bits(kind)]
        for name, kind in source.came_from.items()
        if name not in pinned
    }
    runs: dict[str, dict[str, Any]] = {"localinfer": {"fit": str(theirs.stat().st_size), "calibrate": "default"}}
    if ablations:
        pins = {"tensors": dict.fromkeys(pinned, ("F16",))}
        runs |= {
            "same types": {"to": target, **pins},
            "same types, calibrated": {"to": target, "calibrate": "default", "feedback": False, **pins},
            "same types, feedback": {"to": target, "calibrate": "default", **pins},
            "mixed, no feedback": runs["localinfer"] | {"feedback": False},
        }
    for what, wishes in runs.items():
        path = folder / f"{source.name}-{target}-{what.replace(' ', '-').replace(',', '')}.gguf"
        start = time.perf_counter()
        settings = {"tensors": allowed} | wishes
        quantize(Wishes(source.path, output=path, measure=False, force=True, **settings), Silent())
        rows.append(judge.row(source, target, what, path, time.perf_counter() - start))
        print(f"{what}: {rows[-1].kl:.5f} ({rows[-1].size})", file=sys.stderr, flush=True)
        if "fit" in wishes and path.stat().st_size > theirs.stat().st_size:
            raise SystemExit(f"error: {path} is larger than {theirs}")
    return rows


class Peer(NamedTuple):
    """llama.cpp's quantizer, and what its tool knows of the inputs."""

    quantizer: Quantizer
    importance: Mapping[str, npt.NDArray[np.float32]]


def types_of(path: Path) -> dict[str, str]:
    with open_model(path) as file:
        return {name: tensor.type.name for name, tensor in file.tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--windows", type=int, default=None, help=f"windows of {WINDOW} tokens to judge on (all)")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp's tool: one on a machine that is busy")
    parser.add_argument("--judge", choices=("ours", "llama.cpp"), default="ours")
    parser.add_argument("--ablations", action="store_true", help="also what each part of ours does by itself")
    parser.add_argument("--work", type=Path, help="keep the files in this folder")
    add_peer_argument(parser)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text = folder / "calibration.txt"
        text.write_text(default_text("calibration"), encoding="utf-8")
        quantizer = Quantizer(arguments.llama_cpp)
        for model in arguments.models:
            source = prepare(model, folder)
            importance = imatrix(
                arguments.llama_cpp,
                source.path,
                text,
                folder / f"{source.name}.imatrix.gguf",
                WINDOW,
                arguments.threads,
            )
            peer = Peer(quantizer, importance)
            judge = Judge(source, arguments.windows, arguments.llama_cpp if arguments.judge == "llama.cpp" else None)
            for target in arguments.targets:
                found = compare(source, target, folder, judge, peer, arguments.ablations)
                if found:
                    print(report(found), flush=True)
                rows += found
            judge.close()
    print(json.dumps({"rows": [as_data(row, rows) for row in rows]}))


def report(rows: Sequence[Row]) -> str:
    """A table of one model and target."""
    header = (
        f"{rows[0].model}, {rows[0].target}",
        "bytes",
        "KL",
        "±",
        "KL p99",
        "top-1",
        "KL (llama.cpp)",
        "ratio",
        "s",
    )
    return table(
        header,
        [(r.what, r.size, r.kl, r.kl_error, r.p99, r.top1, r.judged, r.kl / rows[0].kl, r.seconds) for r in rows],
    )


def as_data(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    base = next(r for r in rows if (r.model, r.target) == (row.model, row.target))
    return row._asdict() | {"ratio": row.kl / base.kl, "judged": None if np.isnan(row.judged) else row.judged}


if __name__ == "__main__":
    main()
