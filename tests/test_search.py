"""`localinfer search` on a hub of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import HubServer, Repository, running
from localinfer.cli.main import execute
from localinfer.hub.report import Silent
from localinfer.hub.search import search

GB = 10**9


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    quants = {f"m-{quant}.gguf": b"GGUF" for quant in ("Q8_0", "Q4_K_M", "F16")}
    small, large = ({"architecture": name, "total": count * GB} for name, count in (("llama", 8), ("other", 70)))
    repositories = {
        "a/llama-8b-GGUF": Repository(quants, downloads=70, gguf=small, tags=("gguf",)),
        "b/llama-70b-GGUF": Repository(quants, downloads=900_000, gguf=large, tags=("gguf",), gated=True),
        "c/llama-odd": Repository({"model.gguf": b"GGUF"}, downloads=3, licence="mit", tags=("gguf",)),
        "d/llama-1b": Repository(
            {"config.json": b"{}", "model.safetensors": b"x"},
            safetensors={"parameters": {"BF16": GB}, "total": GB},
            tags=("safetensors",),
        ),
        "e/other": Repository(quants, tags=("gguf",)),
    }
    server = HubServer(repositories)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with running(server):
        yield server


def test_the_most_downloaded_first_and_what_fits(hub: HubServer) -> None:
    found = search("llama", 10, 8 * GB, Silent())
    assert [each.name for each in found] == ["b/llama-70b-GGUF", "a/llama-8b-GGUF", "c/llama-odd"]
    large, middle, odd = found
    assert (large.choice, large.fits, large.gated) == ("Q4_K_M", False, True)
    assert large.size == pytest.approx(42.8 * GB, rel=0.01)
    assert (middle.choice, middle.fits) == ("Q4_K_M", True)
    assert middle.quants == ("Q4_K_M", "Q8_0", "F16")
    assert (odd.size, odd.fits, odd.licence) == (0, None, "mit")
    assert search("llama 8b", 10, 64 * GB, Silent())[0].choice == "Q8_0"
    assert len(search("llama", 1, None, Silent())) == 1


def test_safetensors_are_another_search(hub: HubServer) -> None:
    (found,) = search("llama", 10, 8 * GB, Silent(), safetensors=True)
    assert (found.name, found.choice, found.size, found.fits) == ("d/llama-1b", "safetensors", 2 * GB, True)


def test_on_the_command_line(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["search", "llama", "8b", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert (found["name"], found["runs"]) == ("a/llama-8b-GGUF", True)
    assert execute(["search", "llama"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[:3] == ["name", "downloads", "size, about"]
    assert lines[1].split("\t")[1] == "900k"
    assert lines[1].endswith("gated")
    assert [line.split("\t")[3] for line in lines[1:]][::2] == ["no: other", "?"]
    assert execute(["search", "nothing-like-it"]) == 0
    assert "nothing found" in capsys.readouterr().err
