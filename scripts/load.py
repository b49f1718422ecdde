"""localinfer and llama.cpp's server under the same load: the same file, the same threads, in turn within one run.

    python scripts/load.py MODEL [--threads 2] [--clients 1,4,8,16] [--rounds 3] [--llama-cpp DIR]

Every client holds a conversation of three turns behind a system message that all share, and asks two independent
questions, in an order of its own; between two requests it waits a random time, exponentially distributed, so that
arrivals are a Poisson process. Answers are greedy, streamed, and of a fixed length. Every round gives each server the
same requests, one server after the other (the ones that wait are stopped), in alternating order.

llama.cpp's server runs with one slot per client and flash attention on and off: the better of the two counts for each
number of clients. Tokens are those that the servers report; the time is that of the whole round.

Then every server gets a prompt of about 4,000 tokens while four answers are under way: what happens to the gaps
between their tokens?

Prints tables and last one JSON line; medians of paired rounds, at 8 clients (or the largest number, if 8 is not asked
for):
    throughput_ratio   our tokens per second / llama.cpp's: above 1 we are faster
    ttft_p95_ratio     95th percentile of the time to the first token, ours / llama.cpp's
    prefix_reuse       of the tokens that a turn shares with the turn before, the share that was not computed again
    gap_ratio          99th percentile of the gaps while the long prompt is processed, by that before (ours alone)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command import LOCALINFER
from measure import median_ratio, print_result, table
from peer import add_peer_argument, binary
from prose import collect
from stream_client import Answer, StreamClient

OURS = "localinfer"
PEERS = {"llama.cpp -fa on": "on", "llama.cpp -fa off": "off"}
ANSWER_TOKENS = 64
CONTEXT = 2048  # tokens of one conversation
TURNS, QUESTIONS = 3, 2
PAUSE_SECONDS = 0.1  # mean time between two requests of a client
HEADLINE_CLIENTS = 8
LONG_PROMPT_WORDS, LONG_CONTEXT = 1950, 6144  # some 4,000 tokens
STREAMS, STREAM_TOKENS, QUIET_SECONDS = 4, 600, 1.5  # answers under way, and how long they run undisturbed
SYSTEM = (
    "You are a patient assistant who explains things to people who are new to a subject. You answer in whole "
    "sentences, you say when you are not certain, and you never invent sources. If a question can be understood in "
    "several ways, you name the reading that you chose. You prefer examples to definitions, and short answers to long "
    "ones. Numbers are given with their units. Names of people are written in full when they are first used. "
) * 2


class Server:
    """A server process. It stands still while another one is measured."""

    def __init__(self, name: str, command: list[str | Path], port: int, log: Path) -> None:
        self.name, self.port = name, port
        with log.open("w") as output:
            self._process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
        self._log = log
        self._wait_until_healthy()

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as reply:
                if reply.status == 200:
                    return
            time.sleep(0.05)
        self._process.kill()
        raise SystemExit(f"error: {self.name} does not answer\n\n{self._log.read_text()[-2000:]}")

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def sleep(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait(30)


@dataclass
class Round:
    """What one round of one server brought."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    shared: int = 0  # tokens of turns that stood in the turn before
    reused: int = 0  # of these, tokens that came from the cache

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def first_p95(self) -> float:
        return percentile(self.first, 95)

    def take(self, answer: Answer) -> None:
        self.tokens += answer.usage["completion_tokens"]
        self.first.append(answer.first_token_seconds)
        self.gaps += answer.gaps


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]


class Load:
    """The requests of one round: the same for every server."""

    def __init__(self, sentences: list[str], clients: int, seed: int) -> None:
        self._sentences, self._clients, self._seed = sentences, clients, seed

    def run(self, server: Server) -> Round:
        with server.awake():
            return asyncio.run(self._run(server.port))

    async def _run(self, port: int) -> Round:
        result = Round()
        start = time.perf_counter()
        await asyncio.gather(*(self._client(port, number, result) for number in range(self._clients)))
        result.seconds = time.perf_counter() - start
        return result

    async def _client(self, port: int, number: int, result: Round) -> None:
        chance = random.Random(1000 * self._seed + number)
        connection = StreamClient(port)
        pick = lambda count: " ".join(chance.sample(self._sentences, count))  # noqa: E731
        messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
        work = ["turn"] * TURNS + ["question"] * QUESTIONS
        chance.shuffle(work)
        before = 0  # tokens that the next turn begins with
        for kind in work:
            await asyncio.sleep(chance.expovariate(1 / PAUSE_SECONDS))
            if kind == "question":
                text = f"{pick(6)}\n\nIn other words:"
                result.take(await connection.ask("/v1/completions", body(prompt=text)))
                continue
            messages.append({"role": "user", "content": f"Explain this: {pick(1)}"})
            answer = await connection.ask("/v1/chat/completions", body(messages=messages))
            messages.append({"role": "assistant", "content": answer.text})
            result.take(answer)
            if before:
                cached = (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                result.shared += before
                result.reused += min(cached, before)
            before = answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
        connection.close()


@dataclass
class Disturbance:
    """Gaps between the tokens of answers before and while a long prompt is processed, in seconds."""

    usual: list[float]
    during: list[float]
    long_prompt_seconds: float  # until its first token
    long_prompt_tokens: int

    @property
    def ratio(self) -> float:
        return percentile(self.during, 99) / percentile(self.usual, 99)


async def disturb(port: int, sentences: list[str], seed: int) -> Disturbance:
    """Lets some answers run, then sends a long prompt."""
    chance = random.Random(seed)
    words = " ".join(chance.sample(sentences, len(sentences))).split()

    async def stream() -> Answer:
        prompt = " ".join(chance.sample(sentences, 2))
        # Sampled, so that the text does not repeat itself: drafted tokens would come in bunches, with no gaps inside.
        fields = {"prompt": prompt, "max_tokens": STREAM_TOKENS, "temperature": 1.0, "seed": chance.randrange(2**31)}
        return await StreamClient(port).ask("/v1/completions", body(**fields))

    streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
    await asyncio.sleep(QUIET_SECONDS)
    prompt = " ".join((words * 2)[:LONG_PROMPT_WORDS])
    long = await StreamClient(port).ask("/v1/completions", body(prompt=prompt, max_tokens=1))
    usual, during = [], []
    for answer in [await stream for stream in streams]:
        steady = answer.sent + QUIET_SECONDS / 2
        for begin, end in zip(answer.times, answer.times[1:], strict=False):
            if begin > steady and end < long.sent:
                usual.append(end - begin)
            elif end > long.sent and begin < long.times[0]:
                during.append(end - begin)
    return Disturbance(usual, during, long.first_token_seconds, long.usage["prompt_tokens"])


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "any", "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, **fields}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_servers(
    model: Path, clients: int, threads: int, source: Path, logs: Path, context: int = CONTEXT
) -> dict[str, Server]:
    """All of them, asleep."""
    port = free_port()
    ours = [*LOCALINFER, "serve", model, "--alias", f"any={model}", "--port", str(port)]
    ours += ["--threads", str(threads), "--context", str(context), "--parallel", str(clients)]
    servers = {OURS: Server(OURS, ours, port, logs / "localinfer.log")}
    servers[OURS].sleep()
    for name, flash in PEERS.items():
        port = free_port()
        command: list[str | Path] = [binary(source, "llama-server"), "-m", model, "--port", str(port), "-fa", flash]
        command += ["-t", str(threads), "-tb", str(threads), "-np", str(clients), "-c", str(clients * context)]
        servers[name] = Server(name, command, port, logs / f"llama-{flash}.log")
        servers[name].sleep()
    return servers


def measure(clients: int, arguments: argparse.Namespace, sentences: list[str]) -> dict[str, list[Round]]:
    """The rounds of every server."""
    rounds: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory() as logs:
        servers = start_servers(arguments.model, clients, arguments.threads, arguments.llama_cpp, Path(logs))
        try:
            for number in range(arguments.rounds + 1):
                load = Load(sentences, clients if number else 1, number)  # the first one warms up
                order = list(servers) if number % 2 else list(reversed(servers))
                for name in order:
                    result = load.run(servers[name])
                    if number:
                        rounds.setdefault(name, []).append(result)
        finally:
            for server in servers.values():
                server.close()
    return rounds


def measure_disturbance(arguments: argparse.Namespace, sentences: list[str]) -> dict[str, list[Disturbance]]:
    """The rounds of every server."""
    rounds: dict[str, list[Disturbance]] = {}
    with tempfile.TemporaryDirectory() as logs:
        servers = start_servers(
            arguments.model, STREAMS + 1, arguments.threads, arguments.llama_cpp, Path(logs), LONG_CONTEXT
        )
        try:
            for number in range(arguments.rounds):
                for name, server in servers.items():
                    with server.awake():
                        rounds.setdefault(name, []).append(asyncio.run(disturb(server.port, sentences, number)))
        finally:
            for server in servers.values():
                server.close()
    return rounds


def rows(clients: int, rounds: dict[str, list[Round]]) -> list[list[object]]:
    found = []
    for name in (OURS, *PEERS):
        mine = rounds[name]
        median = lambda values: statistics.median(values)  # noqa: E731
        milliseconds = [1000 * median([percentile(r.first, p) for r in mine]) for p in (50, 95)] + [
            1000 * median([percentile(r.gaps, p) for r in mine]) for p in (50, 99)
        ]
        reuse = sum(r.reused for r in mine) / max(1, sum(r.shared for r in mine))
        found.append([f"{clients} clients, {name}", median([r.rate for r in mine]), *milliseconds, f"{reuse:.1%}"])
    return found


def disturbance_row(name: str, found: list[Disturbance]) -> list[object]:
    seconds = (
        [f.long_prompt_seconds for f in found],
        [statistics.mean(f.usual) for f in found],
        [percentile(f.usual, 99) for f in found],
        [percentile(f.during, 99) for f in found],
    )
    times = [1000 * statistics.median(values) for values in seconds]
    return [name, found[0].long_prompt_tokens, *times, statistics.median([f.ratio for f in found])]


def compare(rounds: dict[str, list[Round]]) -> dict[str, float]:
    """The ratios for one number of clients; in each, the peer's better setting counts."""
    ours = rounds[OURS]
    throughput = max(PEERS, key=lambda name: statistics.median([r.rate for r in rounds[name]]))
    quickest = min(PEERS, key=lambda name: statistics.median([r.first_p95 for r in rounds[name]]))
    return {
        "throughput_ratio": round(median_ratio([r.rate for r in ours], [r.rate for r in rounds[throughput]]), 3),
        "ttft_p95_ratio": round(median_ratio([r.first_p95 for r in ours], [r.first_p95 for r in rounds[quickest]]), 3),
        "prefix_reuse": round(sum(r.reused for r in ours) / max(1, sum(r.shared for r in ours)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clients", default="1,4,8,16", help="numbers of clients (default: 1,4,8,16)")
    parser.add_argument("--rounds", type=int, default=3)
    add_peer_argument(parser)
    arguments = parser.parse_args()
    sentences = collect(arguments.llama_cpp).splitlines()
    results = {n: measure(n, arguments, sentences) for n in map(int, arguments.clients.split(","))}
    header: tuple[str, ...] = ("", "tokens/s", "first ms p50", "p95", "gap ms p50", "p99", "prefix reuse")
    print(table(header, [row for clients, rounds in results.items() for row in rows(clients, rounds)]), end="\n\n")
    ratios = {clients: compare(rounds) for clients, rounds in results.items()}
    header = ("clients", *next(iter(ratios.values())))
    print(table(header, [[clients, *found.values()] for clients, found in ratios.items()]), end="\n\n")
    disturbed = measure_disturbance(arguments, sentences)
    header = (
        "a long prompt arrives",
        "its tokens",
        "its first ms",
        "usual gap ms mean",
        "p99",
        "p99 meanwhile",
        "p99 / p99",
    )
    print(table(header, [disturbance_row(name, found) for name, found in disturbed.items()]), end="\n\n")
    gap_ratio = round(statistics.median([found.ratio for found in disturbed[OURS]]), 3)
    headline = HEADLINE_CLIENTS if HEADLINE_CLIENTS in ratios else max(ratios)
    print_result({"clients": headline, **ratios[headline], "gap_ratio": gap_ratio, "by_clients": ratios})


if __name__ == "__main__":
    main()
