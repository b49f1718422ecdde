"""Pulls one file while the pull is killed and its connections are cut, 200 times, at random bytes.

    python scripts/interrupt_pull.py

A hub of our own (tests/hub_server.py) serves the file at the speed of a line of 10 MB/s. What counts is what it sent:
every byte beyond the file's size was downloaded twice, those included that were on their way when the process died.
Prints a table and, last, one JSON line; ends with 1 if the file is not right or more than 1 % was downloaded twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from command import LOCALINFER

from hub_server import Cut, HubServer, Repository, running

NAME, FILE = "someone/large-GGUF", "large-Q4_K_M.gguf"
KINDS = {"call": "kill -9 of the process", "fin": "connection closed", "rst": "connection reset"}
LIMIT = 0.01


class Interruption(NamedTuple):
    """Where in the file it came, and how many bytes before that the next request began."""

    how: str
    position: int
    again: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interruptions", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the file")
    parser.add_argument("--rate", type=float, default=10, help="speed of the line, in MB/s")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = interrupt(Path(name), options.interruptions, options.megabytes << 20, options.rate, options.seed)
    print(json.dumps(result))
    return 0 if result["right"] and result["again_share"] < LIMIT else 1


def interrupt(folder: Path, count: int, size: int, rate: float, seed: int) -> dict[str, object]:
    """Pulls until it is there, and prints the table."""
    chance = random.Random(seed)
    content = write_file(folder / "source", size, chance)
    with mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data, content:
        sha256 = hashlib.sha256(data).hexdigest()
        hub = HubServer({NAME: Repository({FILE: data}, announce={FILE: sha256})})
        hub.rate = int(rate * 1e6)
        positions = sorted(chance.sample(range(1, size), count))
        hub.cuts.extend(Cut(position, chance.choice(list(KINDS)), absolute=True) for position in positions)
        cuts = list(hub.cuts)
        with running(hub):
            start = time.monotonic()
            starts, path = pull(hub, folder)
            seconds = time.monotonic() - start
        again = hub.sent - size
        right = hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    left = list(folder.rglob("*.incomplete"))
    requests = [int(each.range[6:-1] or 0) for each in hub.asked("/storage/")]
    found = [
        Interruption(cut.how, cut.after, max(0, cut.after - begun))
        for cut, begun in zip(cuts, requests[1:], strict=False)
    ]
    print_table(found)
    print(f"\nfile of {size} bytes, sent {hub.sent}: {again} twice ({100 * again / size:.3f} %)")
    print(f"{starts} processes, {len(requests)} requests, {seconds:.0f} s at {rate:g} MB/s; sha256 right: {right}")
    return {
        "interruptions": count - len(hub.cuts),
        "size": size,
        "sent": hub.sent,
        "again": again,
        "again_share": round(again / size, 6),
        "processes": starts,
        "requests": len(requests),
        "seconds": round(seconds, 1),
        "right": right and not left,
    }


def write_file(path: Path, size: int, chance: random.Random) -> BinaryIO:
    file = open(path, "w+b")  # noqa: SIM115
    for _ in range(0, size, 1 << 20):
        file.write(chance.randbytes(1 << 20))
    file.truncate(size)
    file.flush()
    return file


def pull(hub: HubServer, folder: Path) -> tuple[int, Path]:
    """Runs `localinfer pull`, again after each death; how often it was started, and the file."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "huggingface"),
        "LOCALINFER_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    starts = 0
    while True:
        starts += 1
        process = subprocess.Popen(
            [*LOCALINFER, "pull", f"{NAME}:Q4_K_M"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        hub.on_cut = process.kill
        _, said = process.communicate()
        if process.returncode == 0:
            break
        if process.returncode > 0:
            sys.exit(f"localinfer pull failed:\n{said}")
    (path,) = (folder / "huggingface").rglob(FILE)
    return starts, path


def print_table(found: list[Interruption]) -> None:
    print(f"{'interruption':24} {'times':>6} {'bytes again: median':>20} {'most':>10} {'together':>10}")
    for how, words in KINDS.items():
        again = [each.again for each in found if each.how == how] or [0]
        times = sum(each.how == how for each in found)
        print(f"{words:24} {times:6} {statistics.median(again):20.0f} {max(again):10} {sum(again):10}")


if __name__ == "__main__":
    sys.exit(main())
