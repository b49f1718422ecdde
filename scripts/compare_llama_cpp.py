"""localinfer and llama.cpp side by side: the same file, the same threads, in turn within one run.

    python scripts/compare_llama_cpp.py MODEL [--threads 2] [--rounds 5] [--llama-cpp DIR]

Every round measures each cell on both, one right after the other, in alternating order:
    prefill 512     a prompt of 512 tokens into an empty context
    decode          128 tokens one by one from an empty context
    decode at 4096  the same after 4,096 tokens
    start           from process start to the first byte of the answer, of `localinfer run` and a program of llama.cpp
and probes what the machine can do at most (native/probe.cpp). llama.cpp runs with flash attention on and off: the
better of the two counts in each cell. Rates are of steps alone, as in llama-bench, whose figures are printed, too. Peak
memory is the largest resident set of `localinfer run` and llama-completion for a prompt of about 4,000 tokens.

Prints tables and last one JSON line. Ratios are medians of paired rounds:
    prefill_ratio, decode_ratio, decode_4096_ratio  our rate / llama.cpp's: above 1 we are faster
    start_ratio           our time / llama.cpp's
    peak_memory_ratio     our peak / (size of the file + KV cache)
    bandwidth_share       bytes of weights and KV that decoding must read, per second / the read bandwidth probed
    integer_share         multiplications of prefill's matrix products per second / the integer peak probed
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import median_ratio, print_result, table
from ours import BLOCK, CHUNK, kv_bytes_read, matmul_work
from peer import NATIVE, Child, LlamaCpp, add_peer_argument, binary, compile_native, run_timed
from prose import collect

from localinfer import models
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import LoadConfig
from localinfer.kernels.cpu.backend import CpuBackend

OURS = "localinfer"
FLASH = {"llama.cpp -fa on": True, "llama.cpp -fa off": False}
START_PROMPT = "The capital of France is"
START_CONTEXT = 4096
SETTLE_SECONDS = 0.7  # llama.cpp's threads spin for a quarter of a second after their last work: not into the next turn
# The best that the instructions of a backend can do, by the names in native/probe.cpp.
PEAKS = {"avx512vnni": ("dpbusd_256", "dpbusd_512"), "avx2": ("maddubs_256",), "portable": ("maddubs_256",)}

Times = dict[str, list[float]]  # by who: seconds of each round


class Cell:
    """One thing that is measured: the command to give both sides, and the seconds they took."""

    def __init__(self, name: str, tokens: int, command: str) -> None:
        self.name = name
        self.tokens = tokens
        self.command = command
        self.seconds: Times = {who: [] for who in (OURS, *FLASH)}

    def run(self, children: dict[str, Child], reverse: bool) -> None:
        for who in reversed(children) if reverse else children:
            time.sleep(SETTLE_SECONDS)
            self.seconds[who].append(float(children[who].ask(self.command)))

    @property
    def best_peer(self) -> str:
        return min(FLASH, key=lambda who: statistics.median(self.seconds[who]))

    @property
    def ratio(self) -> float:
        """How many times faster we are."""
        return median_ratio(self.seconds[self.best_peer], self.seconds[OURS])

    def row(self) -> list[object]:
        rates = [self.tokens / statistics.median(self.seconds[who]) for who in (OURS, *FLASH)]
        return [self.name, *rates, f"{self.ratio:.2f}x"]


def localinfer_run(model: Path, prompt: str, threads: int, context: int, tokens: int) -> list[str | Path]:
    program = Path(sys.executable).with_name("localinfer")
    options = ["--raw", "--max-tokens", str(tokens), "--threads", str(threads), "--context", str(context)]
    return [program, "run", model, prompt, *options]


def peer_programs(source: Path, model: Path, threads: int, context: int) -> dict[str, list[str | Path]]:
    """The ways to start llama.cpp, without its warm-up run, which only delays the first token."""
    common: list[str | Path] = ["-m", model, "-t", str(threads), "-c", str(context), "--no-warmup", "--temp", "0"]
    completion = [binary(source, "llama-completion"), *common, "-no-cnv", "--no-display-prompt"]
    return {
        "llama-completion": completion,
        "llama-completion --no-repack": [*completion, "--no-repack"],
        "llama-cli": [binary(source, "llama-cli"), *common, "-st", "--simple-io"],
    }


class Starts:
    """Seconds from process start to the first token, of us and of every way to start the peer."""

    def __init__(self, model: Path, threads: int, source: Path) -> None:
        self.commands: dict[str, list[str | Path]] = {
            OURS: localinfer_run(model, START_PROMPT, threads, START_CONTEXT, 1)
        }
        for name, command in peer_programs(source, model, threads, START_CONTEXT).items():
            self.commands[name] = [*command, "-p", START_PROMPT, "-n", "1"]
        self.seconds: Times = {who: [] for who in self.commands}

    def run(self) -> None:
        for who, command in self.commands.items():
            time.sleep(SETTLE_SECONDS)
            # llama-cli greets before it loads, so that its first byte says nothing: its time is that of the whole run.
            self.seconds[who].append(run_timed(command, until_output=who != "llama-cli").seconds)

    @property
    def best_peer(self) -> str:
        return min((w for w in self.seconds if w != OURS), key=lambda who: statistics.median(self.seconds[who]))

    @property
    def ratio(self) -> float:
        return median_ratio(self.seconds[OURS], self.seconds[self.best_peer])


def prompt_of(tokens: int, tokenizer: LlamaCpp, text: str) -> str:
    """A beginning of the text of at most that many tokens, and nearly so many."""
    while (count := len(tokenizer.tokenize(text))) > tokens:
        text = text[: int(len(text) * tokens / count) - 1]
    return text


def peak_memory(model: Path, threads: int, source: Path, prompt: str, context: int, tokens: int) -> dict[str, int]:
    """Peak bytes of the real programs, whole process."""
    peaks = {OURS: run_timed(localinfer_run(model, prompt, threads, context, tokens)).peak}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(prompt)
        file.flush()
        for name, command in peer_programs(source, model, threads, context).items():
            if name != "llama-cli":
                peaks[name] = run_timed([*command, "-f", file.name, "-n", str(tokens)]).peak
    return peaks


def llama_bench(source: Path, model: Path, threads: int, prefill: int, decode: int) -> list[list[object]]:
    """What llama-bench itself says, to show that our driver does not slow the peer down."""
    command = [binary(source, "llama-bench"), "-m", model, "-t", str(threads), "-fa", "0,1", "-r", "2", "-o", "json"]
    lengths = ["-p", str(prefill), "-n", str(decode)]
    done = subprocess.run([*command, *lengths], check=True, capture_output=True, text=True)
    return [
        [f"prefill {r['n_prompt']}" if r["n_prompt"] else f"decode {r['n_gen']}", f"{r['flash_attn']}", r["avg_ts"]]
        for r in json.loads(done.stdout)
    ]


class Work:
    """What a step must read and multiply, the instruction set that does it, and what is reserved for it."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        backend = CpuBackend()
        self.isa = backend.isa
        with open_gguf(path) as file:
            self.file_size = file.file_size
            self.program = models.record(file.metadata, file, context)
            self.read, self.per_token, self.per_row = matmul_work(self.program, file)
            blocks = -(-context // BLOCK)
            config = LoadConfig(CHUNK, 1, 1, context, blocks, BLOCK, threads=threads)
            self.plan = backend.plan(self.program, file, config).parts

    def decode_bytes(self, depth: int, count: int) -> int:
        """Bytes that `count` tokens after `depth` others read: weights and keys and values."""
        return sum(self.read + kv_bytes_read(self.program, depth + i) for i in range(count))

    def prefill_multiplications(self, count: int) -> int:
        return count * self.per_token + self.per_row


def shares(amount: int, seconds: list[float], peaks: list[float]) -> float:
    """The median over the rounds of amount / seconds / what the probe reached in the same round."""
    return statistics.median(amount / s / p for s, p in zip(seconds, peaks, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4096)
    add_peer_argument(parser)
    options = parser.parse_args()
    model, threads, source = options.model, options.threads, options.llama_cpp

    short, deep = max(options.prefill, options.decode), options.depth + options.decode
    work = Work(model, deep, threads)
    probe = compile_native(NATIVE / "probe.cpp")
    cells = {
        "prefill": Cell(f"prefill {options.prefill}", options.prefill, f"prefill 0 {options.prefill}"),
        "decode": Cell(f"decode {options.decode}", options.decode, f"decode 0 0 {options.decode}"),
        "deep": Cell(
            f"decode {options.decode} at {options.depth}",
            options.decode,
            f"decode 1 {options.depth} {options.decode}",
        ),
    }
    starts = Starts(model, threads, source)
    children: dict[str, Child] = {
        OURS: Child([sys.executable, Path(__file__).with_name("ours.py"), model, str(threads), str(short), str(deep)])
    }
    children |= {who: LlamaCpp(source, model, threads, flash, [short, deep]) for who, flash in FLASH.items()}
    for child in children.values():  # once unmeasured: memory is touched, and the deep context is filled
        child.ask("decode 0 0 4")
        child.ask(f"decode 1 {options.depth} 4")
    probes: list[dict[str, float]] = []
    for number in range(options.rounds):
        for cell in cells.values():
            cell.run(children, reverse=number % 2 == 1)
        starts.run()
        probes.append(json.loads(subprocess.run([probe, str(threads)], check=True, capture_output=True).stdout))
        print(f"round {number + 1} of {options.rounds}", flush=True)
    tokenizer = children[next(iter(FLASH))]
    assert isinstance(tokenizer, LlamaCpp)
    prompt = prompt_of(options.depth - 2, tokenizer, collect(source))
    for child in children.values():
        child.close()
    peaks = peak_memory(model, threads, source, prompt, deep, options.decode)
    bench = llama_bench(source, model, threads, options.prefill, options.decode)

    bandwidths = [p["read"] for p in probes]
    integer_peaks = [max(p[name] for name in PEAKS[work.isa] if name in p) for p in probes]
    kv = work.plan["kv"]
    needed = work.file_size + kv
    result: dict[str, Any] = {
        "prefill_ratio": cells["prefill"].ratio,
        "decode_ratio": cells["decode"].ratio,
        "decode_4096_ratio": cells["deep"].ratio,
        "start_ratio": starts.ratio,
        "peak_memory_ratio": peaks[OURS] / needed,
        "bandwidth_share": shares(work.decode_bytes(0, options.decode), cells["decode"].seconds[OURS], bandwidths),
        "integer_share": shares(
            work.prefill_multiplications(options.prefill), cells["prefill"].seconds[OURS], integer_peaks
        ),
        "bandwidth_share_4096": shares(
            work.decode_bytes(options.depth, options.decode), cells["deep"].seconds[OURS], bandwidths
        ),
        "threads": threads,
        "rounds": options.rounds,
        "isa": work.isa,
        "seconds": {name: cell.seconds for name, cell in cells.items()} | {"start": starts.seconds},
        "probes": probes,
        "peak_bytes": peaks,
        "file_bytes": work.file_size,
        "kv_bytes": kv,
    }
    print(f"\n{model.name}, {threads} threads, {work.isa}: tokens per second, medians of {options.rounds} rounds\n")
    print(table(("", OURS, *FLASH, "ratio"), [cell.row() for cell in cells.values()]))
    print("\nllama-bench, by itself afterwards\n")
    print(table(("", "flash attention", "tokens/s"), bench))
    print("\nseconds from process start to the first token\n")
    print(table(("", "seconds"), [(who, statistics.median(s)) for who, s in starts.seconds.items()]))
    print(f"\nours / {starts.best_peer}: {starts.ratio:.2f}")
    print(f"\npeak memory, a prompt of about {options.depth} tokens and {options.decode} more, MB\n")
    rows = [*peaks.items(), ("file", work.file_size), ("KV cache", kv)]
    print(table(("", "MB", "/ (file + KV)"), [(who, size / 1e6, size / needed) for who, size in rows]))
    print("\nprobed in the same rounds (medians), and our share of it\n")
    rates = {name: statistics.median(p[name] for p in probes) for name in probes[0] if name != "threads"}
    print(table(("", "G/s"), [(name, rate / 1e9) for name, rate in rates.items()]))
    print(f"\ndecode: {result['bandwidth_share']:.0%} of the read bandwidth, at {options.depth}: ", end="")
    print(f"{result['bandwidth_share_4096']:.0%}; prefill: {result['integer_share']:.0%} of the integer peak\n")
    for name, good, rule in verdicts(result):
        print(f"{'reached' if good else 'MISSED '}  {name}: {rule}")
    print_result(result)


def verdicts(result: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """`(what, whether it was reached, the rule)` for every goal of docs/benchmarks.md."""
    bandwidth, integer = result["bandwidth_share"] >= 0.85, result["integer_share"] >= 0.60
    deep_bandwidth = result["bandwidth_share_4096"] >= 0.85
    return [
        ("prefill", result["prefill_ratio"] >= 3 or integer, "3 times as fast, or 60 % of the integer peak"),
        ("decode", result["decode_ratio"] >= 2 or bandwidth, "twice as fast, or 85 % of the read bandwidth"),
        (
            "decode at depth",
            result["decode_4096_ratio"] >= 3 or deep_bandwidth,
            "3 times as fast, or 85 % of the read bandwidth",
        ),
        ("start", result["start_ratio"] <= 0.7, "at most 0.7 of the peer's time"),
        ("peak memory", result["peak_memory_ratio"] <= 1.15, "at most file + KV cache + 15 %"),
    ]


if __name__ == "__main__":
    main()
