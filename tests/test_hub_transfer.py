"""Downloads that break off, and servers that misbehave, through the real huggingface_hub client."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub_server import Cut, HubServer, Refusal, Repository, running
from localinfer.errors import LocalInferError
from localinfer.hub import store, transfer
from localinfer.hub.cache import Place, place_of
from localinfer.hub.pull import pull
from reports import Lines

CONTENT = b"GGUF" + random.Random(0).randbytes(1_500_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME, FILE, MODEL = "some/one-GGUF", "one-Q4_K_M.gguf", "some/one-GGUF:Q4_K_M"
COMMIT = "1" * 40


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer({NAME: Repository({FILE: CONTENT, "README.md": b"about"})})
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(transfer, "LONGEST_WAIT", 0.02)
    with running(server):
        yield server


def place() -> Place:
    return place_of(NAME, COMMIT, FILE, SHA256)


def start(partial: bytes) -> None:
    """Leaves what an earlier pull would have."""
    place().partial.parent.mkdir(parents=True)
    place().partial.write_bytes(partial)


def ranges(hub: HubServer) -> list[str]:
    return [each.range for each in hub.asked("/storage/")]


def assert_installed() -> None:
    assert store.resolve(MODEL).read_bytes() == CONTENT
    assert not place().partial.exists()


# --- what goes on where it stopped -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_connection_that_breaks_costs_nothing_but_what_was_on_its_way(hub: HubServer, how: str) -> None:
    cuts = [1, 17, 65_536, 1_000_001]
    hub.cuts.extend(Cut(position, how, absolute=True) for position in cuts)
    pull(MODEL)
    assert_installed()
    begun = [int(each[6:-1] or 0) for each in ranges(hub)]
    if how == "fin":
        assert begun == [0, *cuts]
        assert hub.sent == len(CONTENT)
    else:  # a reset takes back what was received and not read yet
        assert all(a <= b for a, b in zip(begun, [0, *cuts], strict=True))


def test_what_an_earlier_process_left_is_continued(hub: HubServer) -> None:
    start(CONTENT[:700_000])
    report = Lines()
    pull(MODEL, report=report)
    assert_installed()
    assert ranges(hub) == ["bytes=700000-"]
    assert "0.8 MB to fetch, 0.7 MB are here already" in report.said[0]
    assert report.steps[-1] == (MODEL, len(CONTENT), len(CONTENT))


def test_a_process_that_is_killed_loses_nothing_it_has_written(hub: HubServer, hub_cache: Path) -> None:
    hub.rate = 4_000_000
    hub.cuts.extend([Cut(1_000_000, "call")])
    process = subprocess.Popen([sys.executable, "-m", "localinfer", "pull", MODEL], stderr=subprocess.PIPE, text=True)
    hub.on_cut = process.kill
    process.communicate(timeout=30)
    assert process.returncode == -9
    left = place().partial.stat().st_size
    assert 0 < left <= 1_000_000
    assert place().partial.read_bytes() == CONTENT[:left]
    with pytest.raises(LocalInferError, match="is not installed"):
        store.resolve(MODEL)
    pull(MODEL)
    assert_installed()
    assert ranges(hub)[1:] == [f"bytes={left}-"]
    assert store.remove(MODEL).freed > len(CONTENT), "what the dead process fetched is known to be ours"
    assert not list(hub_cache.rglob(FILE))


def test_huggingface_hub_itself_begins_anew(hub: HubServer) -> None:
    """Why hub/transfer.py exists. If this fails, the library has learned it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    hub.on_cut = lambda: hub.refusals.append(Refusal("/storage", 500))  # to the second request, which ends the call
    first = []
    for _ in range(2):
        hub.cuts.append(Cut(1_000_000, "call"))
        first.append(len(ranges(hub)))
        with pytest.raises(HfHubHTTPError):
            hf_hub_download(NAME, FILE, endpoint=hub.url, revision=COMMIT)
    assert [ranges(hub)[number] for number in first] == ["", ""]


# --- what is not the file ----------------------------------------------------------------------------------------


def test_wrong_bytes_are_fetched_anew(hub: HubServer) -> None:
    hub.once.append(CONTENT[:-1] + b"?")
    report = Lines()
    pull(MODEL, report=report)
    assert_installed()
    assert ranges(hub) == ["", ""]
    assert "is not what was announced: sha256" in report.said[-1]
    assert report.said[-1].endswith("it is fetched anew")


def test_wrong_bytes_from_an_earlier_process_are_fetched_anew(hub: HubServer) -> None:
    start(b"?" * 700_000)
    pull(MODEL)
    assert_installed()
    assert ranges(hub) == ["bytes=700000-", ""]


def test_too_many_bytes_from_an_earlier_process_are_dropped(hub: HubServer) -> None:
    start(CONTENT + b"?")
    pull(MODEL)
    assert_installed()
    assert ranges(hub) == [""]


def test_a_whole_file_that_lacks_its_name_only_is_checked(hub: HubServer) -> None:
    start(CONTENT)
    pull(MODEL)
    assert_installed()
    assert ranges(hub) == []


def test_a_hub_that_always_sends_other_bytes_gets_no_model(hub: HubServer) -> None:
    hub.always = CONTENT[:-1] + b"?"
    with pytest.raises(LocalInferError, match=f"is not what was announced: sha256 .*, expected {SHA256}"):
        pull(MODEL)
    assert store.installed().models == []
    assert not place().blob.exists()
    assert not place().pointer.is_symlink()
    assert len(ranges(hub)) == 2


def test_small_files_are_checked_too(hub: HubServer) -> None:
    config = b'{"model_type": "llama"}'
    repository = Repository({"config.json": config, "model.safetensors": CONTENT})
    hub.repositories["some/folder"] = repository
    oid = repository.git_oid("config.json")
    assert hashlib.sha1(b"blob 23\0" + config).hexdigest() == oid
    place_of("some/folder", COMMIT, "config.json", oid).partial.parent.mkdir(parents=True)
    place_of("some/folder", COMMIT, "config.json", oid).partial.write_bytes(b"?" * len(config))
    path = pull("some/folder").path
    assert (path / "config.json").read_bytes() == config


def test_another_length_is_another_file(hub: HubServer) -> None:
    hub.always = CONTENT + b"?"
    with pytest.raises(LocalInferError, match=f"is another file: {len(CONTENT) + 1} bytes, expected {len(CONTENT)}"):
        pull(MODEL)


# --- servers that misbehave --------------------------------------------------------------------------------------


def test_a_server_without_ranges_sends_all_of_it(hub: HubServer) -> None:
    hub.ranges = False
    start(b"?" * 700_000)
    pull(MODEL)
    assert_installed()
    assert ranges(hub) == ["bytes=700000-"], "the whole came, and its hash was right at once"


def test_a_server_that_begins_anew_and_breaks_off_each_time_is_given_up(hub: HubServer) -> None:
    hub.ranges = False
    hub.cuts.extend([Cut(500_000), *[Cut(400_000)] * 100])
    with pytest.raises(LocalInferError, match=rf"broke off: .* \(400000 of {len(CONTENT)} bytes are here\)"):
        pull(MODEL)
    assert len(ranges(hub)) == 1 + transfer.FRUITLESS_TRIES


def test_large_files_are_asked_for_in_parts(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RESPONSE_LIMIT", 600_000)
    pull(MODEL)
    assert_installed()
    assert ranges(hub) == ["bytes=0-599999", "bytes=600000-1199999", "bytes=1200000-"]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("when", ["seconds", "date", "limit"])
def test_who_asks_to_wait_is_heard(hub: HubServer, status: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    headers = {
        "seconds": {"Retry-After": "7"},
        "date": {"Retry-After": formatdate(time.time() + 7, usegmt=True)},
        "limit": {"RateLimit": '"resolvers";r=0;t=7'},
    }[when]
    hub.refusals.extend([Refusal("/api/models/some", status, headers), Refusal("/storage", status, headers)])
    report = Lines()
    pull(MODEL, report=report)
    assert_installed()
    asked = [wait for wait in waits if wait > 1]
    assert len(asked) == 2
    assert all(5 < wait <= 7 for wait in asked)
    assert any(f"answers {status}; trying again in" in line for line in report.said)


def test_who_asks_to_wait_too_long_is_an_error_that_says_how_long(hub: HubServer) -> None:
    hub.cuts.append(Cut(1000))
    hub.refusals.append(Refusal("/storage", 429, {"Retry-After": "86400"}))
    with pytest.raises(LocalInferError, match=r"asks to wait for 86400 seconds \(0 of"):
        pull(MODEL)


def test_a_server_that_is_down_for_a_moment_is_asked_again(hub: HubServer) -> None:
    hub.refusals.extend([Refusal("/api/models", 502), Refusal("/api/models", 500)])
    hub.refusals.extend([Refusal(f"/{NAME}", 503), Refusal("/storage", 504)])
    pull(MODEL)
    assert_installed()
    assert not hub.refusals


def test_a_server_that_stays_down_is_given_up_and_what_came_stays(hub: HubServer) -> None:
    hub.cuts.append(Cut(1_000_000))
    hub.cuts.extend([Cut(0)] * transfer.FRUITLESS_TRIES)
    with pytest.raises(LocalInferError, match=rf"broke off: .* \(1000000 of {len(CONTENT)} bytes are here\)") as caught:
        pull(MODEL)
    assert "it goes on where it stopped" in caught.value.hint
    assert place().partial.stat().st_size == 1_000_000
    pull(MODEL)
    assert_installed()


def test_an_address_that_expires_is_asked_for_anew(hub: HubServer) -> None:
    hub.refusals.append(Refusal("/storage", 403))
    pull(MODEL)
    assert_installed()
    assert len(hub.asked(f"/{NAME}/resolve")) == 2


def test_a_server_that_falls_silent_is_left(hub: HubServer) -> None:
    hub.cuts.append(Cut(1_000_000, "stall"))
    begin = time.monotonic()
    pull(MODEL)  # HF_HUB_DOWNLOAD_TIMEOUT is 1 s here
    assert_installed()
    assert time.monotonic() - begin < 5
    assert ranges(hub) == ["", "bytes=1000000-"]


def test_the_token_stays_on_the_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "good")
    hub.cuts.append(Cut(1000))
    pull(MODEL)
    assert {each.token for each in hub.asked("/storage")} == {""}
    assert {each.token for each in hub.asked("/resolve")} == {"Bearer good"}


def test_a_safe_address_that_leads_to_an_unsafe_one_is_refused(tmp_path: Path) -> None:
    remote = transfer.Remote("https://example.org/a.gguf", {}, None, "")
    download = transfer._Download(remote, tmp_path / "a", Lines(), lambda done, total: None)
    url = SimpleNamespace(scheme="http")
    answer = SimpleNamespace(history=[], status_code=200, headers={"Content-Length": "9"}, url=url)
    with pytest.raises(LocalInferError, match="whoever is on the way could change it"):
        download._accept(answer, None)
    url.scheme = "https"
    download._accept(answer, None)


# --- two at once -------------------------------------------------------------------------------------------------


def test_two_pulls_at_once_fetch_once(hub: HubServer) -> None:
    hub.rate = 4_000_000
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(pull(MODEL).path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [place().pointer] * 2
    assert_installed()
    assert ranges(hub) == [""]


def test_a_download_of_huggingface_hub_itself_is_waited_for(hub: HubServer) -> None:
    from huggingface_hub.utils import WeakFileLock

    place().lock.parent.mkdir(parents=True)
    report = Lines()
    thread = threading.Thread(target=lambda: pull(MODEL, report=report))
    with WeakFileLock(place().lock):
        thread.start()
        while not any(f"another process is fetching {FILE}" in line for line in report.said):
            assert thread.is_alive()
            time.sleep(0.01)
        assert ranges(hub) == []
    thread.join(30)
    assert_installed()


def test_two_processes_that_write_at_once_despite_the_lock_do_no_harm(hub: HubServer, tmp_path: Path) -> None:
    """Some network file systems grant a lock twice."""
    hub.rate = 4_000_000
    remote = transfer.Remote(f"{hub.url}/{NAME}/resolve/main/{FILE}", {}, len(CONTENT), f"sha256:{SHA256}")
    found: list[str] = []

    def fetch() -> None:
        found.append(transfer.transfer(remote, tmp_path / "partial", Lines(), lambda done, total: None))

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    threads[0].start()
    time.sleep(0.1)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert found == [f"sha256:{SHA256}"] * 2
    assert (tmp_path / "partial").read_bytes() == CONTENT


def test_a_disk_that_fills_up_is_said(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    write = transfer._Download._write

    def full(self: transfer._Download, file: object, piece: bytes) -> None:
        if self._position > 500_000:
            raise OSError(28, os.strerror(28))
        write(self, file, piece)

    monkeypatch.setattr(transfer._Download, "_write", full)
    with pytest.raises(LocalInferError, match="the disk is full"):
        pull(MODEL)
    monkeypatch.undo()


@pytest.mark.parametrize("broken", [lambda path: path.unlink(), lambda path: path.write_bytes(b"short")])
def test_a_file_that_was_lost_or_cut_is_fetched_again(hub: HubServer, broken: Callable[[Path], object]) -> None:
    broken(Path(os.path.realpath(pull(MODEL).path)))
    pull(MODEL)
    assert_installed()


def test_verify_replaces_a_file_that_has_changed(hub: HubServer) -> None:
    path = pull(MODEL).path
    Path(os.path.realpath(path)).write_bytes(CONTENT[:-1] + b"?")
    pull(MODEL)
    assert path.read_bytes() != CONTENT, "without --verify the size is what counts"
    report = Lines()
    pull(MODEL, verify=True, report=report)
    assert_installed()
    assert any("is not the file that the hub names; it is replaced" in line for line in report.said)
    pull(MODEL, verify=True, report=report)
    assert report.said[-1] == f"{path} has the expected sha256 {SHA256}"
