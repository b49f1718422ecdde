"""What goes wrong around a server: it ends or goes on with clear words and in a clean state.

Every server here is a process of its own, as people run it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripted_model import write_scripted_model
from serving import PATIENCE, Serving

ANSWER = "Hello, wide 🌍!"
CONTEXT = 65536
# With these an answer to "forever" takes many times longer than any of these tests.
LASTING = ("--context", str(CONTEXT))
FOREVER = {"max_tokens": CONTEXT - 5000}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf", context=CONTEXT)


@pytest.fixture
def model(scripted: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copy(scripted, tmp_path / "model.gguf"))


def text_of(answer: tuple[int, object]) -> object:
    status, body = answer
    assert status == 200, body
    assert isinstance(body, dict)
    return body["choices"][0]["message"]["content"]


# --- ports, files and signals around the start -------------------------------------------------------------------


def test_killed_and_started_again_on_the_same_port(scripted: Path) -> None:
    with Serving(str(scripted), *LASTING) as server:
        port = server.port
        # Open connections, one of them with an answer under way, are what keeps a port busy.
        with server.streaming("forever", **FOREVER), server.socket():
            server.process.kill()
            assert server.wait() == -signal.SIGKILL
            with Serving(str(scripted), port=port) as again:
                assert again.port == port
                assert text_of(again.chat("hi")) == ANSWER


def test_a_port_in_use_is_named(scripted: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Serving(str(scripted), port=port, ready=False) as server:
            assert server.wait() == 1
            said = "\n".join(server.said)
    assert f"error: port {port} of 127.0.0.1 is in use" in said
    assert "--port" in said.partition("hint: ")[2]
    assert "Traceback" not in said


def test_two_servers_do_not_share_a_port(scripted: Path) -> None:
    with Serving(str(scripted)) as server, Serving(str(scripted), port=server.port, ready=False) as second:
        assert second.wait() == 1
        assert any("is in use" in line for line in second.said)
        assert text_of(server.chat("hi")) == ANSWER


LOADS_FOREVER = """
import sys, threading
from pathlib import Path
from localinfer.server.on_demand import ModelSource
from localinfer.server.process import run
from localinfer.server.settings import ServerSettings

def say(text):
    print(text, file=sys.stderr, flush=True)

def load(promised):
    say("loading")
    threading.Event().wait()

sys.exit(run(ServerSettings(port=0), [ModelSource("slow", Path("slow.gguf"), 64, load)], say))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_first_model_is_loaded_ends_the_process(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOADS_FOREVER], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
        assert said == "stopped before it was ready\n"
        assert process.returncode == 128 + number
    finally:
        process.kill()
        process.wait()


def test_a_model_that_cannot_be_loaded_ends_the_start(model: Path) -> None:
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2])
    with Serving(str(model), ready=False) as server:
        assert server.wait() == 1
    said = "\n".join(server.said)
    assert said.startswith(f"error: {model}: ")
    assert "Traceback" not in said


# --- while it serves ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a device of Linux")
def test_a_full_disk_loses_lines_of_the_log_and_nothing_else(scripted: Path) -> None:
    with Serving(str(scripted), "--log-file", "/dev/full") as server:
        for _ in range(3):
            assert text_of(server.chat("hi")) == ANSWER
        assert os.strerror(errno.ENOSPC) in server.wait_for("the log file /dev/full cannot be written")
        assert text_of(server.chat("hi")) == ANSWER
        assert server.stop() == 0
        assert sum("/dev/full" in line for line in server.said) == 1


def test_whoever_reads_standard_error_may_leave(scripted: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "localinfer", "serve", str(scripted), "--port", "0"], stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            while not process.stderr.readline().startswith(b"ready: "):
                assert process.poll() is None
            process.stderr.close()
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_a_log_file_that_cannot_be_opened_ends_the_start(scripted: Path, tmp_path: Path) -> None:
    with Serving(str(scripted), "--log-file", str(tmp_path / "no" / "log"), ready=False) as server:
        assert server.wait() == 1
    assert any(line.startswith("error: the log file") for line in server.said)


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "delete"])
def test_a_model_file_that_changes_while_it_is_served(model: Path, damage: str) -> None:
    data = model.read_bytes()
    with Serving(str(model), "--idle-unload", "0.1", *LASTING) as server:
        with server.streaming("forever", **FOREVER) as answer:
            if damage == "delete":
                model.unlink()
            elif damage == "truncate":
                os.truncate(model, 100)
            else:
                model.write_bytes(b"\xff" * len(data))
            # Texts become tokens and tokens texts by the vocabulary, which was mapped from the file.
            for text in ("hi", "something else, 123 🌍"):
                assert text_of(server.chat(text)) == ANSWER
            status, body = server.ask("/tokenize", {"content": "Hello tick"})
            assert status == 200, body
            assert answer.readline() == b"\n"
            assert answer.readline().startswith(b"data: ")
        # Once it has been unloaded, the file is missed.
        server.wait_until("/health", lambda health: health["models"][0]["state"] == "unloaded")
        status, body = server.chat("hi")
        assert (status, body["error"]["code"]) == (503, "model_not_loaded")
        assert "could not be loaded" in body["error"]["message"]
        # And found again.
        model.write_bytes(data)
        assert text_of(server.chat("hi")) == ANSWER
        assert server.stop() == 0


# --- signals while it serves -------------------------------------------------------------------------------------


def test_sigterm_lets_answers_finish_and_takes_no_new_ones(scripted: Path) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    with Serving(str(scripted)) as server, server.connection() as begun, server.connection() as later:
        # A request that has begun: as long as its last byte is missing, it cannot be over.
        begun.putrequest("POST", "/v1/chat/completions")
        begun.putheader("content-length", str(len(body)))
        begun.endheaders(body[:-1])
        later.request("GET", "/health")
        assert later.getresponse().read()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("^stopping: 1 request")
        later.request("GET", "/health")
        refused = later.getresponse()
        assert refused.status == 503
        assert b"shutting_down" in refused.read()
        assert server.process.poll() is None
        begun.send(body[-1:])
        answer = begun.getresponse()
        assert answer.status == 200
        assert ANSWER in answer.read().decode()
        assert server.wait() == 0
        assert server.said[-1] == "stopped"


def test_what_takes_longer_than_the_drain_is_cut_off(scripted: Path) -> None:
    with Serving(str(scripted), "--drain", "0.1", *LASTING) as server, server.streaming("forever", **FOREVER) as answer:
        assert server.stop() == 1
        rest = answer.read().decode()
    assert "data: [DONE]" not in rest
    assert '{"error":' in rest
    assert any("cut off" in line for line in server.said)


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_stops_at_once(scripted: Path, first: signal.Signals, second: signal.Signals) -> None:
    with Serving(str(scripted), *LASTING) as server, server.streaming("forever", **FOREVER):
        server.process.send_signal(first)
        server.wait_for("^stopping: ")
        assert server.stop(second) == 128 + second
        assert server.said[-1] == "stopped at once"


@pytest.mark.parametrize(("drain", "last_word"), [("60", "end"), ("0", "forever")])
def test_a_signal_during_prefill(scripted: Path, drain: str, last_word: str) -> None:
    """On most machines the signal comes while the prompt is processed; on any, the same must happen."""
    with Serving(str(scripted), "--drain", drain, *LASTING) as server, server.connection() as connection:
        body = {"messages": [{"role": "user", "content": 4000 * "x" + last_word}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        if last_word == "forever":
            server.wait_until("/slots", lambda slots: any(slot["is_processing"] for slot in slots))
        code = server.stop()
        response = connection.getresponse()
        answer = response.read().decode()
        if drain == "60":
            assert (code, response.status) == (0, 200)
            assert ANSWER in answer
        else:
            assert (code, response.status) == (1, 503)
            assert "error" in answer
        assert not any("Traceback" in line for line in server.said)
