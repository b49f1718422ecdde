"""How long /health takes while answers are computed: engine and event loop must not block each other.

    python scripts/health_latency.py MODEL [--answers 16] [--seconds 20] [--threads 0]

Starts `localinfer serve MODEL`, keeps that many streamed answers going, and asks /health on one connection after
another. Prints a table and last one JSON line: requests, p50_ms, p99_ms, worst_ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time

from measure import print_result, table
from soak import CHAT, Server, request


async def answer_for_ever(port: int, number: int) -> None:
    """One streamed answer after another."""
    messages = [{"role": "user", "content": f"Count from {number} on, and never stop."}]
    body = {"messages": messages, "stream": True, "ignore_eos": True, "max_tokens": 500}
    while True:
        status, answer = await request(port, CHAT, json.dumps(body).encode())
        if status != 200:
            raise SystemExit(f"error: an answer failed: {status} {answer.decode(errors='replace')}")


async def measure(port: int, answers: int, seconds: float) -> list[float]:
    """Seconds that each /health took."""
    tasks = [asyncio.create_task(answer_for_ever(port, number)) for number in range(answers)]
    await asyncio.sleep(min(2.0, seconds / 2))
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        await request(port, "/health")
        taken.append(time.perf_counter() - start)
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an installed model, or the path of a .gguf file")
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    sizes = ["--parallel", str(arguments.answers), "--context", "1024", "--log-file", "/dev/null"]
    server = Server(arguments.model, *sizes, "--threads", str(arguments.threads))
    try:
        taken = asyncio.run(measure(server.port, arguments.answers, arguments.seconds))
    finally:
        server.close()
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    values = {"p50_ms": 1000 * cuts[49], "p99_ms": 1000 * cuts[98], "worst_ms": 1000 * max(taken)}
    print(table((f"/health beside {arguments.answers} answers", "ms"), list(values.items())))
    print_result({"requests": len(taken)} | {name: round(value, 2) for name, value in values.items()})


if __name__ == "__main__":
    main()
