"""The command line: what it prints where, its exit codes, and what it says when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from localinfer import __version__
from localinfer.cli import output
from localinfer.cli.main import COMMANDS, build_app, execute
from localinfer.hub.folders import models_folder
from localinfer.hub.store import RECORD
from scripted_model import write_scripted_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf"))


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_scripted_model(tmp_path_factory.mktemp("models") / "base.gguf", chat=False, context=64))


def localinfer(*arguments: str, stdin: str | bytes = "", **options: object) -> subprocess.CompletedProcess[bytes]:
    """Runs the command as a process of its own."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    command = [sys.executable, "-m", "localinfer", *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


# --- help, versions, wrong command lines -------------------------------------------------------------------------


def test_help_without_arguments(capsys: Capture) -> None:
    assert execute([]) == 0
    plain = capsys.readouterr()
    assert execute(["--help"]) == 0
    assert capsys.readouterr() == plain
    assert plain.err == ""
    for name in COMMANDS:
        assert f"\n  {name} " in plain.out
    assert "..." not in plain.out.partition("Commands:")[2], "a first sentence is too long for the list"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: Capture) -> None:
    assert execute([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: localinfer {name}")


def test_the_application_in_typers_own_runner() -> None:
    result = CliRunner().invoke(build_app(), ["--version"])
    assert (result.exit_code, result.output) == (0, f"localinfer {__version__}\n")
    result = CliRunner().invoke(build_app("doctor"), ["doctor", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["versions"]["localinfer"] == __version__


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["nonsense"], "nonsense", "localinfer --help"),
        (["--nonsense"], "--nonsense", "localinfer --help"),
        (["pull"], "Missing argument", "localinfer pull --help"),
        (["pull", "a", "b"], "extra argument", "localinfer pull --help"),
        (["bench", "x", "--rounds", "0"], "--rounds", "localinfer bench --help"),
        (["bench", "x", "--depth", "1,a"], "--depth takes token counts", "localinfer bench --help"),
        (["bench", "x", "--decode", "-5"], "--decode takes token counts", "localinfer bench --help"),
        (["bench", "x", "--kv-type", "f8"], "--kv-type", "localinfer bench --help"),
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], message: str, hint: str, capsys: Capture) -> None:
    assert execute(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, empty, last = captured.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert (empty, last) == ("", f"hint: {hint}")


@pytest.mark.parametrize(
    "arguments",
    [["pull", "nonsense"], ["rm", "nonsense"], ["show", "nonsense"], ["show", "none.gguf"], ["bench", "smollm2:135m"]],
)
def test_an_explained_error_exits_with_1(arguments: list[str], capsys: Capture) -> None:
    assert execute(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    first, empty, last = captured.err.splitlines()
    assert first.startswith("error: ")
    assert (empty, last[:6]) == ("", "hint: ")


def test_a_bug_keeps_its_traceback_and_asks_for_a_report(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("localinfer.hub.store.installed", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        execute(["list"])
    assert "Please report it" in capsys.readouterr().err


def test_processes_have_the_exit_codes_too() -> None:
    assert localinfer("list").returncode == 0
    done = localinfer("show", "none.gguf")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Traceback" not in done.stderr
    assert localinfer("list", "--nonsense").returncode == 2


def test_help_is_quick() -> None:
    """0.25 s on an idle machine is the promise; a busy one gets three tries and some slack."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert localinfer("--help").returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


def test_a_reader_that_leaves_is_no_error(scripted: str) -> None:
    command = [sys.executable, "-m", "localinfer", "show", scripted, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


# --- list, show, doctor, bench -----------------------------------------------------------------------------------


def install(name: str, path: str) -> None:
    folder = models_folder() / name
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(Path(path).read_bytes())
    record = {"name": name, "file": "model.gguf", "source": "a test", "sha256": "0" * 64, "size": 5, "time": "now"}
    (folder / RECORD).write_text(json.dumps(record))


def test_list_tells_what_is_there(scripted: str, capsys: Capture) -> None:
    assert execute(["list"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no model is installed\ncan be pulled: smollm2:135m (98.4 MB)" in captured.err
    install("mine", scripted)
    assert execute(["list"]) == 0
    path = models_folder() / "mine" / "model.gguf"
    assert capsys.readouterr().out == f"name\tsize\tpath\nmine\t5 B\t{path}\n"
    assert execute(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["installed"][0]["path"] == str(path)
    assert {entry["name"] for entry in listed["available"]} == {"smollm2:135m", "gemma3:270m"}
    assert execute(["show", "mine"]) == 0
    assert execute(["rm", "mine"]) == 0
    assert not path.exists()


def test_show_describes_a_file(scripted: str, base_model: str, capsys: Capture) -> None:
    assert execute(["show", scripted]) == 0
    text = capsys.readouterr().out
    assert "general.architecture                          llama" in text
    assert "F32\t12\t477696\t1910784\t1.9 MB" in text
    assert "chat template: yes" in text
    assert "context: made for 4096 tokens" in text
    assert execute(["show", base_model]) == 0
    assert "chat template: no" in capsys.readouterr().out
    assert execute(["show", scripted, "--json", "--program"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tensors"] == [{"type": "F32", "tensors": 12, "weights": 477696, "bytes": 1910784}]
    assert found["memory_plan"]["total"] == sum(found["memory_plan"]["parts"].values())
    assert found["program"][0].startswith("program scripted")
    assert execute(["show", scripted, "--program"]) == 0
    assert capsys.readouterr().out.splitlines() == found["program"]


def test_show_explains_a_damaged_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 40)
    assert execute(["show", str(path)]) == 1
    assert "damaged.gguf" in capsys.readouterr().err


def test_doctor_says_what_works(capsys: Capture) -> None:
    assert execute(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "backend     cpu: usable" in text
    assert f"localinfer {__version__}" in text
    assert str(models_folder()) in text
    assert execute(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backends"]["cpu"]["usable"] is True
    assert found["memory"]["total"] > found["memory"]["available"] > 0


def test_bench_measures_every_case(scripted: str, capsys: Capture) -> None:
    lengths = ["--prompt", "8,600", "--decode", "4", "--depth", "0,32", "--rounds", "2"]
    assert execute(["bench", scripted, *lengths, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    cases = [(r["what"], r["tokens"], r["depth"]) for r in report["results"]]
    assert cases == [(w, n, d) for d in (0, 32) for w, n in (("prefill", 8), ("prefill", 600), ("decode", 4))]
    for result in report["results"]:
        assert len(result["seconds"]) == 2
        assert result["slowest"] <= result["tokens_per_second"] <= result["fastest"]
    assert len(bytes.fromhex(report["model"]["sha256"])) == 32
    assert report["backend"]["name"] == "cpu"
    assert set(report) == {
        "model", "hardware", "backend", "settings", "versions", "load_seconds", "memory_plan", "peak_memory", "results"
    }  # fmt: skip
    assert execute(["bench", scripted, "--prompt", "8", "--decode", "0", "--rounds", "1"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "what\ttokens\tdepth\ttokens/s\tslowest\tfastest"
    assert row.startswith("prefill\t8\t0\t")
    assert execute(["bench", scripted, "--prompt", "0", "--decode", "0"]) == 1


# --- what reaches the terminal -----------------------------------------------------------------------------------


def test_nothing_reaches_a_terminal_that_it_would_obey() -> None:
    obeyed = "".join(map(chr, [*range(32), *range(0x7F, 0xA0), 0x202E, 0x2066])).replace("\n", "").replace("\t", "")
    shown = output.harmless(obeyed)
    assert not set(shown) & set(obeyed)
    assert output.harmless("\x1b[2J\x07\x7f\x9b1m") == "␛[2J␇␡\ufffd1m"
    kept = "Grüße, 世界 🙂👨‍👩‍👧\n\tété שלום"
    assert output.harmless(kept) == kept
    assert output.harmless("a\r\nb") == "a\nb"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (5 * 10**15, "5000.0 TB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert output.size(count) == text


def test_a_table_for_a_pipe_keeps_one_line_per_row(capsys: Capture) -> None:
    output.emit_table(("a", "b"), [("x\ty", "two\nlines"), ("\x1b[0m", 3)])
    assert capsys.readouterr().out == "a\tb\nx y\ttwo lines\n␛[0m\t3\n"
