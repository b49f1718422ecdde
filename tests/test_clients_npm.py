"""npm's clients: what tests/npm/clients/*.mjs say is what is expected of Python's."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conversation import CALL, KEY, REPORT, TEXT, Talking, talking
from node_packages import environment, installed

pytestmark = pytest.mark.network
CLIENT_SECONDS = 60.0
CLIENTS = ("ai", "openai", "anthropic")
# What is asked -> the status, and words that reach whoever asked.
ERRORS = {
    "too long": (400, "maximum context length"),
    "no such model": (404, "llama9"),
    "bad field": (400, "temperature"),
    "wrong key": (401, "this API key is none of those"),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed("clients", tmp_path_factory.mktemp("npm")) as found:
        yield found


@pytest.fixture(scope="module")
def server(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    with talking(tmp_path_factory.mktemp("server")) as found:
        yield found


def start(packages: Path, server: Talking, client: str, *arguments: str) -> subprocess.Popen[str]:
    """The client's script; what it says by and by is its standard output, as lines of JSON."""
    node = shutil.which("node")
    assert node is not None
    return subprocess.Popen(
        [node, str(packages / f"{client}.mjs"), *arguments],
        env=environment(packages, SERVER_URL=server.url, SERVER_KEY=KEY),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_streams_tools_schemas_and_errors(packages: Path, server: Talking, client: str) -> None:
    with start(packages, server, client) as process:
        said, complained = process.communicate(timeout=CLIENT_SECONDS)
    assert process.returncode == 0, said + complained
    found: dict[str, Any] = {line["what"]: line["found"] for line in map(json.loads, said.splitlines())}
    assert "".join(found["stream"]) == TEXT
    assert len(found["stream"]) > 2
    assert found["tools"] == {"answer": "".join(REPORT), "calls": [CALL]}
    assert found["structured"]["kind"] in ("cat", "dog")
    assert found["structured"]["size"] in (1, 2, 3)
    for what, (status, words) in ERRORS.items():
        assert found[what] is not None, f"{what}: no error"
        assert found[what]["status"] == status
        assert words in found[what]["message"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_leaves_frees_its_place(packages: Path, server: Talking, client: str) -> None:
    with start(packages, server, client, "leave") as process:
        assert process.stdout is not None
        with server.seeing_the_client_leave():
            assert json.loads(process.stdout.readline()) == {"what": "leave", "found": " tick"}
        assert process.poll() is None, "it left, and is still there"
        _, complained = process.communicate(timeout=CLIENT_SECONDS)
    assert process.returncode == 0, complained
