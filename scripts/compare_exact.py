"""How far localinfer and llama.cpp are from exact arithmetic, on the same file and the same real text.

    python scripts/compare_exact.py MODEL [--positions 4096] [--llama-cpp DIR]

Exact are the file's weights dequantized to float32 in transformers (see exact_model.py). At every position the
distribution of the next token is compared: Kullback-Leibler divergence KL(exact || other) in float64, and whether
the most likely token is the same. Prints means, the paired difference with its standard error, and last one JSON line.
llama.cpp runs with flash attention on and off; ours is compared with the closer of the two.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from measure import mean_and_error, paired_difference, print_result, table
from ours import OpenModel
from peer import LlamaCpp, add_peer_argument
from prose import collect

ROWS = 64  # distributions at a time: a row of 262,144 logits takes 2 MB in float64
OURS = "localinfer"
PEERS = {"llama.cpp, flash attention": True, "llama.cpp, no flash attention": False}


class Comparison:
    """Collects the two figures, position by position, of one program under test."""

    def __init__(self) -> None:
        self.divergence: list[float] = []
        self.agreement: list[float] = []

    def add(self, exact: npt.NDArray[Any], other: npt.NDArray[Any]) -> None:
        """Both are logits `[positions, vocabulary]`."""
        for start in range(0, len(exact), ROWS):
            rows = slice(start, start + ROWS)
            p = torch.log_softmax(torch.from_numpy(exact[rows]).double(), -1)
            q = torch.log_softmax(torch.from_numpy(other[rows]).double(), -1)
            self.divergence += (p.exp() * (p - q)).sum(-1).tolist()
            self.agreement += (p.argmax(-1) == q.argmax(-1)).double().tolist()


def chunks_of(ids: list[int], begin: list[int], size: int, positions: int) -> list[list[int]]:
    """Texts of `size` ids, each starting with `begin`, that have `positions` positions together."""
    step = size - len(begin)
    chunks = [begin + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)]
    needed = -(-positions // size)
    if len(chunks) < needed:
        raise SystemExit(f"error: the text has {len(chunks) * size} positions, {positions} were asked for")
    return chunks[:needed]


def tiles_of_ours(model: OpenModel, ids: list[int]) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    """Logits of all ids, `model.rows` of them at a time."""
    for start in range(0, len(ids), model.rows):
        part = ids[start : start + model.rows]
        logits = model.executable.step(model.batch(part, start, 0, "all"))
        yield slice(start, start + len(part)), logits.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=512, help="length of each text (default 512)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="cpu", help="localinfer's backend (default cpu)")
    add_peer_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    import exact_model  # transformers takes seconds to import

    text = collect(arguments.llama_cpp)
    exact = exact_model.load(arguments.model)
    ours = OpenModel(arguments.model, arguments.threads, [arguments.chunk], arguments.backend, chunk=ROWS, rows=ROWS)
    peers = {
        name: LlamaCpp(arguments.llama_cpp, arguments.model, arguments.threads, flash, [arguments.chunk])
        for name, flash in PEERS.items()
    }
    ids = next(iter(peers.values())).tokenize(text)
    chunks = chunks_of(ids, exact.begin, arguments.chunk, arguments.positions)
    results = {name: Comparison() for name in (OURS, *peers)}
    for number, chunk in enumerate(chunks, 1):
        reference = exact.logits(chunk)
        for rows, logits in tiles_of_ours(ours, chunk):
            results[OURS].add(reference[rows], logits)
        for name, peer in peers.items():
            results[name].add(reference, peer.logits(chunk))
        print(f"text {number} of {len(chunks)}", flush=True)
    for peer in peers.values():
        peer.close()
    ours.close()

    rows = []
    for name, result in results.items():
        kl, kl_error = mean_and_error(result.divergence)
        top1, top1_error = mean_and_error(result.agreement)
        rows.append((name, kl, kl_error, top1, top1_error))
    closest = min(peers, key=lambda name: mean_and_error(results[name].divergence)[0])
    kl_gap, kl_gap_error = paired_difference(results[OURS].divergence, results[closest].divergence)
    top1_gap, top1_gap_error = paired_difference(results[OURS].agreement, results[closest].agreement)
    rows.append((f"{OURS} - {closest}", kl_gap, kl_gap_error, top1_gap, top1_gap_error))
    digest = hashlib.sha256(text.encode()).hexdigest()
    print(f"\n{arguments.model.name}: {len(results[OURS].divergence)} positions of text sha256 {digest[:16]}\n")
    print(table(("", "mean KL", "std. error", "top-1 agreement", "std. error"), rows))
    good = kl_gap <= kl_gap_error and top1_gap >= -top1_gap_error
    print(
        f"\n{'as close as llama.cpp or closer' if good else 'FARTHER than llama.cpp'}, within one paired standard error"
    )
    figures = {row[0]: row for row in rows}
    print_result(
        {
            "mean_kl": {"localinfer": figures[OURS][1], "llama.cpp": figures[closest][1]},
            "top1": {"localinfer": figures[OURS][3], "llama.cpp": figures[closest][3]},
            "paired_error": {"mean_kl": kl_gap_error, "top1": top1_gap_error},
            "positions": len(results[OURS].divergence),
            "text_sha256": digest,
            "as_close": good,
        }
    )


if __name__ == "__main__":
    main()
