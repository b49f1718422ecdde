"""Well-behaved conversations beside clients that misbehave: nobody may disturb them, and nothing may be left behind.

    python scripts/soak.py MODEL [--minutes 30] [--conversations 100] [--hostile 8] [--threads 0]

Starts `localinfer serve MODEL`. First every conversation is held alone, and its tokens are recorded: three turns,
greedy or sampled, whole or streamed. Then all are held again and again at the same time, with pauses, while hostile
clients leave in the middle, send garbage, prompts and bodies that are too long, and parameters that make no sense.
Every answer must have the recorded tokens. In the end nobody asks any more, and what the server holds is looked at.

Memory is compared between the end of a warm-up (a tenth of the time, after every KV block was used once) and the end,
both without requests under way.

Prints a table and last one JSON line:
    answers         that the conversations got in the crowd
    failed          of them, those that were errors; changed: those with another token
    hostile         requests that misbehaved; server_errors: those that were answered with a 5xx
    memory_growth   resident memory of the server, end / start - 1
    blocks_leaked   KV blocks in use when nobody asks
    health_p99_ms   of /health, asked ten times a second meanwhile
    ok              whether nothing failed or changed, no 5xx came, memory grew by at most 3 % and no block leaked
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from command import LOCALINFER
from measure import print_result, table

TURNS = 3
ANSWER_TOKENS = 16
CONTEXT, PARALLEL, KV_TOKENS = (
    1024,
    8,
    8192,
)  # a small pool: it is full, and has been touched, before memory is looked at
MOST_BODY = 1 << 20  # bytes: --max-body 1
PAUSE_SECONDS = 0.5  # of a client between two requests, on average
MOST_GROWTH = 0.03
QUIET_SECONDS = 120.0
CHAT = "/v1/chat/completions"
WORDS = ("river", "stone", "lamp", "winter", "copper", "garden", "engine", "paper", "cloud", "bridge", "seven", "moss")


class Server:
    """The server as a process of its own; `port` is where it listens."""

    def __init__(self, *arguments: str) -> None:
        command = [*LOCALINFER, "serve", *arguments, "--port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if found := re.match(r"ready: http://127.0.0.1:(\d+)/", line):
                self.port = int(found[1])
                return
        raise SystemExit(f"error: the server did not start (exit code {self._process.wait()})\n\n{''.join(lines)}")

    @property
    def resident(self) -> int:
        """Bytes of memory that it holds."""
        with open(f"/proc/{self._process.pid}/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

    def close(self) -> int:
        """Its exit code, after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=QUIET_SECONDS)
        return self._process.returncode


@dataclass(frozen=True)
class Conversation:
    """What a client says turn by turn, and how it wants to be answered."""

    texts: tuple[str, ...]
    sampling: dict[str, Any]
    streamed: bool

    @classmethod
    def number(cls, index: int) -> Conversation:
        draw = random.Random(index)
        texts = tuple(" ".join(draw.choices(WORDS, k=draw.randint(5, 40))) + "?" for _ in range(TURNS))
        sampling = {"temperature": 0} if index % 3 == 0 else {"temperature": 0.9, "top_p": 0.9, "seed": index}
        return cls(texts, sampling, streamed=index % 2 == 1)

    def body(self, earlier: list[dict[str, Any]]) -> dict[str, Any]:
        """The request whose turn it is; `earlier` are the messages so far, answers included."""
        text = self.texts[len(earlier) // 2]
        body = {"messages": [*earlier, {"role": "user", "content": text}], "max_tokens": ANSWER_TOKENS}
        return body | {"return_token_ids": True, "stream": self.streamed} | self.sampling


@dataclass
class Result:
    """What happened so far."""

    answers: int = 0
    failed: int = 0
    changed: int = 0
    hostile: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)  # of answers to hostile requests; 0: none
    health: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def server_errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if status >= 500)

    def complain(self, text: str) -> None:
        if len(self.complaints) < 20:
            self.complaints.append(text[:300])


async def request(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body or b'')}"
        writer.write(head.encode() + b"\r\n\r\n" + (body or b""))
        return _parsed(await reader.read())
    finally:
        writer.close()


def _parsed(answer: bytes) -> tuple[int, bytes]:
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, b""
    if b"transfer-encoding: chunked" in head.lower():
        pieces = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        rest = b"".join(pieces)
    return int(head.split()[1]), rest


def message_of(body: bytes, streamed: bool) -> dict[str, Any]:
    """The answer as a message with its tokens; ValueError if there is none."""
    if not streamed:
        found: dict[str, Any] = json.loads(body)["choices"][0]["message"]
        return {key: found[key] for key in ("role", "content", "tokens")}
    content, tokens = "", None
    for event in body.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        data = json.loads(event[6:])
        if "error" in data:
            raise ValueError(f"the answer broke off: {data}")
        for choice in data["choices"]:
            content += choice["delta"].get("content") or ""
            tokens = choice["delta"].get("tokens", tokens)
    if tokens is None or not body.endswith(b"data: [DONE]\n\n"):
        raise ValueError(f"a stream without its end: {body[-200:]!r}")
    return {"role": "assistant", "content": content, "tokens": tokens}


async def converse(
    port: int, conversation: Conversation, pause: Callable[[], Awaitable[None]] | None = None
) -> list[dict[str, Any]]:
    """Holds a conversation; its answers as messages. ValueError or OSError if one fails."""
    messages: list[dict[str, Any]] = []
    for text in conversation.texts:
        status, body = await request(port, CHAT, json.dumps(conversation.body(messages)).encode())
        if status != 200:
            raise ValueError(f"{status}: {body!r}")
        messages += [{"role": "user", "content": text}, message_of(body, conversation.streamed)]
        if pause is not None:
            await pause()
    return messages[1::2]


class Soak:
    """All clients of one server."""

    def __init__(self, server: Server, conversations: int, hostile: int) -> None:
        self._server, self._port = server, server.port
        self._conversations = [Conversation.number(index) for index in range(conversations)]
        self._hostile = hostile
        self._expected: list[list[dict[str, Any]]] = []
        self.result = Result()

    async def record(self) -> None:
        """Holds every conversation alone."""
        self._expected = [await converse(self._port, conversation) for conversation in self._conversations]

    async def fill(self) -> None:
        """Uses every KV block once: memory is given to a process when it first writes to it."""
        draw = random.Random(0)
        for _ in range(KV_TOKENS // CONTEXT + 1):
            prompt = [draw.randrange(10, 200) for _ in range(CONTEXT - 1)]
            status, body = await request(
                self._port, "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
            )
            if status != 200:
                raise SystemExit(f"error: the cache could not be filled: {status} {body.decode(errors='replace')}")

    async def run(self, seconds: float) -> None:
        """The crowd, for so long; every request that has begun is waited for."""
        end = time.monotonic() + seconds
        await asyncio.gather(
            self._watch(end),
            *(self._well_behaved(index, end) for index in range(len(self._conversations))),
            *(self._misbehaved(index, end) for index in range(self._hostile)),
        )

    async def quiet(self) -> int:
        """Waits until the server works for nobody; the KV blocks that are in use even then."""
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            metrics = await self._metrics()
            busy = metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]
            leaked = round(metrics["vllm:kv_cache_usage_perc"] * metrics["localinfer:kv_blocks"])
            if not busy and not leaked:
                return 0
            await asyncio.sleep(0.1)
        return leaked

    async def _metrics(self) -> dict[str, float]:
        _, body = await request(self._port, "/metrics")
        lines = (line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, _, value in lines}

    async def _well_behaved(self, index: int, end: float) -> None:
        draw = random.Random(1000 + index)

        async def pause() -> None:
            await asyncio.sleep(draw.expovariate(1 / PAUSE_SECONDS))

        await pause()
        while time.monotonic() < end:
            self.result.answers += TURNS
            try:
                answers = await converse(self._port, self._conversations[index], pause)
            except (OSError, ValueError, KeyError) as error:
                self.result.failed += 1
                self.result.complain(f"conversation {index}: {error!r}")
                continue
            if answers != self._expected[index]:
                self.result.changed += 1
                self.result.complain(f"conversation {index}: {answers} instead of {self._expected[index]}")

    async def _misbehaved(self, index: int, end: float) -> None:
        draw = random.Random(2000 + index)
        while time.monotonic() < end:
            kind = draw.choice(sorted(HOSTILE))
            self.result.hostile[kind] += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                status = await HOSTILE[kind](self._port, draw)
                self.result.statuses[status] += 1
                if status >= 500 or (status == 200 and kind not in LEAVE):
                    self.result.complain(f"{kind}: was answered with {status}")
            await asyncio.sleep(draw.expovariate(1 / PAUSE_SECONDS))

    async def _watch(self, end: float) -> None:
        while time.monotonic() < end:
            start = time.perf_counter()
            await request(self._port, "/health")
            self.result.health.append(time.perf_counter() - start)
            await asyncio.sleep(0.1)


def _long_answer(draw: random.Random) -> bytes:
    messages = [{"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.randint(5, 300)))}]
    return json.dumps({"messages": messages, "stream": draw.random() < 0.5, "max_tokens": 500}).encode()


async def leave(port: int, draw: random.Random) -> int:
    """Asks for a long answer and goes: before it, or in the middle."""
    body = _long_answer(draw)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    await writer.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(draw.random()):
            await reader.readexactly(draw.choice((1, 500, 2000)))
    writer.transport.abort()
    return 0


async def leave_while_sending(port: int, draw: random.Random) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b'POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"mess' % CHAT.encode())
    await writer.drain()
    await asyncio.sleep(draw.random())
    writer.transport.abort()
    return 0


async def send_garbage(port: int, draw: random.Random) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(draw.randbytes(draw.randint(1, 2000)) + b"\r\n\r\n")
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return _parsed(answer)[0] if answer.startswith(b"HTTP/") else 0


async def send_no_json(port: int, draw: random.Random) -> int:
    bodies = (b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": 1}', b"[" * 5000, b'{"messages": [' + b"{" * 3000)
    return (await request(port, CHAT, draw.choice(bodies)))[0]


async def send_nonsense(port: int, draw: random.Random) -> int:
    fields: dict[str, Any] = draw.choice(
        (
            {"temperature": -1},
            {"temperature": "hot"},
            {"n": 0},
            {"n": 10_000},
            {"top_p": 7},
            {"max_tokens": -5},
            {"model": "no-such-model"},
            {"stop": [1]},
            {"logit_bias": {"x": 1}},
            {"messages": []},
            {"messages": [{"role": "nobody", "content": "hi"}]},
            {"messages": [{"role": "user", "content": 5}]},
        )
    )
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4} | fields
    return (await request(port, CHAT, json.dumps(body).encode()))[0]


async def send_long_prompt(port: int, draw: random.Random) -> int:
    messages = [{"role": "user", "content": " ".join(draw.choices(WORDS, k=3 * CONTEXT))}]
    return (await request(port, CHAT, json.dumps({"messages": messages}).encode()))[0]


async def send_long_body(port: int, draw: random.Random) -> int:
    return (await request(port, CHAT, b"x" * (MOST_BODY + draw.randint(1, MOST_BODY))))[0]


HOSTILE = {
    "leaves": leave,
    "leaves while sending": leave_while_sending,
    "garbage": send_garbage,
    "no JSON": send_no_json,
    "nonsense": send_nonsense,
    "long prompt": send_long_prompt,
    "long body": send_long_body,
}
LEAVE = {"leaves", "leaves while sending"}


@contextlib.contextmanager
def served(model: str, threads: int, conversations: int) -> Iterator[Server]:
    sizes = {"--context": CONTEXT, "--parallel": PARALLEL, "--kv-tokens": KV_TOKENS, "--threads": threads}
    limits = {"--max-body": MOST_BODY >> 20, "--queue": 2 * conversations, "--log-file": "/dev/null"}
    server = Server(model, *(str(part) for pair in (sizes | limits).items() for part in pair))
    try:
        yield server
    finally:
        code = server.close()
    if code:
        raise SystemExit(f"error: the server ended with exit code {code}")


def soak(model: str, *, minutes: float, conversations: int, hostile: int, threads: int) -> dict[str, Any]:
    """Runs it, prints the table, and returns what the JSON line says."""
    seconds = 60 * minutes
    with served(model, threads, conversations) as server:
        crowd = Soak(server, conversations, hostile)

        async def run() -> tuple[int, int, int]:
            await crowd.record()
            await crowd.fill()
            await crowd.run(seconds / 10)
            await crowd.quiet()
            start = server.resident
            await crowd.run(seconds)
            leaked = await crowd.quiet()
            return start, server.resident, leaked

        start, end, leaked = asyncio.run(run())
    result = crowd.result
    growth = end / start - 1
    p99 = sorted(result.health)[int(0.99 * (len(result.health) - 1))]
    wrong = result.failed + result.changed + result.server_errors + leaked
    rows = [
        ("conversations", conversations),
        ("answers in the crowd", result.answers),
        ("failed", result.failed),
        ("with another token", result.changed),
        *((f"hostile: {kind}", count) for kind, count in sorted(result.hostile.items())),
        *((f"answered with {status or 'nothing'}", count) for status, count in sorted(result.statuses.items())),
        ("memory at the start, MiB", start / 2**20),
        ("memory at the end, MiB", end / 2**20),
        ("KV blocks leaked", leaked),
        ("/health p99, ms", 1000 * p99),
    ]
    print(table(("what", "count"), rows))
    print("\n".join(result.complaints), file=sys.stderr)
    return {
        "minutes": minutes,
        "conversations": conversations,
        "answers": result.answers,
        "failed": result.failed,
        "changed": result.changed,
        "hostile": result.hostile.total(),
        "server_errors": result.server_errors,
        "memory_growth": round(growth, 5),
        "blocks_leaked": leaked,
        "health_p99_ms": round(1000 * p99, 2),
        "ok": not wrong and growth <= MOST_GROWTH,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an installed model, or the path of a .gguf file")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--hostile", type=int, default=8, help="clients that misbehave")
    parser.add_argument("--threads", type=int, default=0)
    arguments = vars(parser.parse_args())
    values = soak(arguments.pop("model"), **arguments)
    print_result(values)
    sys.exit(0 if values["ok"] else 1)


if __name__ == "__main__":
    main()
