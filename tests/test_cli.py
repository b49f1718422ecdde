"""The command line: what it prints where, its exit codes, and what it says when something is wrong."""

from __future__ import annotations

import ast
import io
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from localinfer import __version__
from localinfer.cli import output
from localinfer.cli.loading import recommended_sampling
from localinfer.cli.main import COMMANDS, READER_LEFT, build_app, execute
from localinfer.cli.output import size
from localinfer.engine.plan import CHUNK
from localinfer.engine.sampling import SamplingParams
from localinfer.hub.catalog import CATALOG
from localinfer.hub.folders import models_folder
from localinfer.hub.store import RECORD
from scripted_model import write_scripted_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf"))


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_scripted_model(tmp_path_factory.mktemp("models") / "base.gguf", template="", context=64))


@dataclass
class Done:
    code: int
    out: str
    err: str


class Cli:
    """Runs command lines in this process, which costs a tenth of starting one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, stdin: str | bytes = b"") -> Done:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        self._capsys.readouterr()
        code = execute(list(arguments))
        return Done(code, *self._capsys.readouterr())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Cli:
    return Cli(monkeypatch, capsys)


def process(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "localinfer", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)


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
    long = capsys.readouterr()
    assert long.out.startswith(f"Usage: localinfer {name}")
    assert execute([name, "-h"]) == 0
    assert capsys.readouterr() == long


def test_help_is_also_a_word(capsys: Capture) -> None:
    for words, options in ((["help"], ["--help"]), (["help", "chat"], ["chat", "--help"])):
        assert execute(options) == 0
        expected = capsys.readouterr()
        assert execute(words) == 0
        assert capsys.readouterr() == expected


def test_the_help_names_the_exit_codes(capsys: Capture) -> None:
    assert execute(["-h"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "0 done; 1 an error" in words
    assert "2 a command line that makes no sense; 130 Ctrl-C; 141 whoever read the output left" in words


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
        (
            ["bench", "x", "--prompt", "99999999999999"],
            "--prompt is 99999999999999, but at most",
            "localinfer bench --help",
        ),
        (["run", "x", "y", "--max-tokens", "9" * 5000], "'--max-tokens'", "localinfer run --help"),
        (["bench", "x", "--decode", "-5"], "--decode takes token counts", "localinfer bench --help"),
        (["bench", "x", "--kv-type", "f8"], "--kv-type", "localinfer bench --help"),
        (["run", "x", "y", "--kv-type", "f16,f8"], "'f16,f8' is not one of f16, bf16, int8", "localinfer run --help"),
        (["run", "x", "y", "--kv-type", "f16,f16,f16"], "two of them", "localinfer run --help"),
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], message: str, hint: str, capsys: Capture) -> None:
    assert execute(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert last == f"hint: {hint}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["pull", "nonsense"],
        ["rm", "nonsense"],
        ["show", ""],
        ["show", "/dev/null"],
        ["show", "nonsense"],
        ["show", "none.gguf"],
        ["bench", "smollm2:135m"],
    ],
)
def test_an_explained_error_exits_with_1(arguments: list[str], capsys: Capture) -> None:
    assert execute(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    assert first.startswith("error: ")
    assert last.startswith("hint: ")


def test_a_bug_keeps_its_traceback_and_asks_for_a_report(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("localinfer.hub.store.installed", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        execute(["list"])
    assert "Please report it" in capsys.readouterr().err


def test_processes_have_the_exit_codes_too() -> None:
    assert process("list").returncode == 0
    done = process("show", "none.gguf")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Traceback" not in done.stderr
    assert process("list", "--nonsense").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "stream"),
    [
        ("show MODEL --json", "stdout"),
        ("list", "stdout"),
        ("list", "stderr"),
        ("-h", "stdout"),
        ("list --nonsense", "stderr"),
        ("rm nonsense", "stderr"),
    ],
)
def test_a_reader_that_leaves_is_no_error(arguments: str, stream: str, scripted: str) -> None:
    """As in `localinfer list | head -1`, but certain: the pipe is closed before anything is written to it."""
    install("mine", scripted)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "localinfer", *arguments.replace("MODEL", scripted).split()]
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, **streams) as process:  # type: ignore[call-overload]
        os.close(writer)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == READER_LEFT
    assert not (errors if stream == "stdout" else out and b"Traceback" in out)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("shell", "code", "message"),
    [
        ("run MODEL hi >&-", 1, "error: standard output cannot be written: Bad file descriptor"),
        ("--help >&-", 1, "error: standard output cannot be written: Bad file descriptor"),
        ("run MODEL hi >/dev/full", 1, "error: standard output cannot be written: No space left on device"),
        ("--help >/dev/full", 1, "error: standard output cannot be written: No space left on device"),
        ("show MODEL --json >/dev/full", 1, "error: standard output cannot be written: No space left on device"),
        ("chat MODEL <&-", 0, ""),
        ("run MODEL hi <&- >&- 2>&-", 1, ""),
        ("list >&- 2>&-", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full(
    shell: str, code: int, message: str, unbuffered: str, scripted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "/dev/full" in shell and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = f'exec "{sys.executable}" -m localinfer {shell.replace("MODEL", scripted)}'
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.decode().rstrip("\n")) == (code, b"", message)


COMMAND_NAMED = re.compile(r"(?:^|`|, or |; )localinfer ((?:--help|[a-z]+)[^`;,]*)")
PROSE = {"met"}  # behind the name of the program, but no command


def named_commands() -> list[tuple[str, str]]:
    """Every command line that a message or hint names: where, and the words behind `localinfer`."""
    found = []
    for folder in ("localinfer", "kernels", "models"):
        for path in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                    found += [(f"{path.name}:{node.lineno}", m[1]) for m in COMMAND_NAMED.finditer(node.value)]
    return [(where, line) for where, line in found if line.split()[0] not in PROSE]


def test_every_command_that_a_message_names_exists() -> None:
    found = named_commands()
    assert {"pull NAME --verify", "doctor", "list"} <= {line for _, line in found}
    for where, line in found:
        name, *rest = line.split()
        assert name in COMMANDS or name.startswith("--"), f"{where} names `localinfer {line}`"
        if name in COMMANDS:
            command = typer.main.get_command(build_app(name)).commands[name]  # type: ignore[attr-defined]
            options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
            for word in rest:
                assert not word.startswith("--") or word in options, f"{where} names `localinfer {line}`"


# --- list, show, doctor, bench -----------------------------------------------------------------------------------


def install(name: str, path: str) -> None:
    folder = models_folder() / name.replace(":", "-")
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
    table = f"name\ton disk\tlicence\tpath\nmine\t{size(path.stat().st_blocks * 512)}\t\t{path}\n"
    assert capsys.readouterr().out == table
    assert execute(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["installed"][0]["path"] == str(path)
    assert {entry["name"] for entry in listed["available"]} == {"smollm2:135m", "gemma3:270m", "minilm:l6-v2"}
    assert execute(["show", "mine"]) == 0
    (models_folder() / "broken").mkdir()
    capsys.readouterr()
    assert execute(["list"]) == 0
    captured = capsys.readouterr()
    assert captured.out == table
    assert "not usable: " in captured.err
    assert "broken/record.json cannot be read" in captured.err
    assert execute(["list", "--json"]) == 0
    assert "broken" in json.loads(capsys.readouterr().out)["problems"][0]["message"]
    assert execute(["rm", "broken"]) == 0
    assert execute(["rm", "mine"]) == 0
    assert not path.exists()


def test_show_describes_a_file(scripted: str, base_model: str, capsys: Capture) -> None:
    assert execute(["show", scripted]) == 0
    text = capsys.readouterr().out
    assert "general.architecture                          llama" in text
    assert "F32\t12\t477696\t1910784\t1.9 MB" in text
    assert "tokenizer.ggml.add_bos_token                  true\n" in text
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


def test_show_says_what_a_chat_samples_with(scripted: str, base_model: str, cli: Cli) -> None:
    line = "chat sampling: temperature 0.7, top_k 40, top_p 0.95 (recommended by localinfer)\n"
    assert line in cli("show", scripted).out
    assert "chat sampling" not in cli("show", base_model).out
    entry = CATALOG["smollm2:135m"]
    folder = models_folder() / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / entry.file).symlink_to(scripted)
    assert "chat sampling: temperature 0.2, top_p 0.9 (recommended by the model card)\n" in cli("show", "smollm2").out
    sampling = json.loads(cli("show", "smollm2", "--json").out)["chat_sampling"]
    assert sampling == {"recommended_by": "the model card", "parameters": {"temperature": 0.2, "top_p": 0.9}}
    by_file = SamplingParams(temperature=0.5)
    assert recommended_sampling(by_file, folder / entry.file) == (by_file, "the model's file")


@pytest.mark.parametrize(
    ("name", "means"),
    [("SmolLM2:135M", "smollm2:135m"), ("smollm2", "smollm2:135m"), ("GEMMA3", "gemma3:270m"), ("Mine", "mine")],
)
def test_names_need_no_case_and_no_tag(name: str, means: str, scripted: str, cli: Cli) -> None:
    install("mine", scripted)
    done = cli("show", name)
    if means == "mine":
        assert (done.code, done.err) == (0, "")
        assert cli("run", name, "hi").out == "Hello, wide 🌍!\n"
        assert json.loads(cli("run", name, "hi", "--json").out)["model"] == "mine"
        assert cli("rm", name).err.startswith("mine is removed: ")
    else:
        assert (done.code, done.err) == (1, f"error: {means} is not installed\nhint: localinfer pull {means}\n")


@pytest.mark.parametrize("command", ["show", "run", "chat", "pull"])
def test_a_name_that_is_nearly_right_is_corrected(command: str, cli: Cli) -> None:
    for name, means in (("smolm2", "smollm2:135m"), ("gemma", "gemma3:270m"), ("smollm2:latest", "smollm2:135m")):
        done = cli(command, name, stdin="hi")
        assert (done.code, done.out) == (1, "")
        assert name in done.err
        assert f"hint: did you mean {means}?" in done.err
    assert "did you mean" not in cli(command, "xyzzy", stdin="hi").err


def test_a_name_that_fits_several_models_lists_them(scripted: str, cli: Cli) -> None:
    install("twin:1b", scripted)
    install("twin:2b", scripted)
    done = cli("run", "Twin", "hi")
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: Twin may be one of 2 models\nhint: say which: twin:1b, twin:2b\n"


def test_a_base_model_is_not_downloaded_for_a_chat(cli: Cli) -> None:
    done = cli("chat", "Gemma3", "--yes")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: gemma3:270m has no chat template")
    assert "hint: localinfer run --raw gemma3:270m PROMPT" in done.err


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
    assert set(found["cores"]["used"]) <= set(found["cores"]["allowed"])
    assert "cores       " + found["cores"]["words"] in text
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        assert {"avx2", "avx", "asimd"} & set(found["features"])
        assert all(f" {name}" in Path("/proc/cpuinfo").read_text() for name in found["features"])


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("LOCALINFER_CPU_ISA", "nonsense", "'nonsense' cannot run on this processor"),
        ("LOCALINFER_NATIVE_DIR", "/nowhere", "does not load"),
    ],
)
def test_doctor_says_why_a_backend_is_not_usable(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    done = process("doctor")
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("backend     cpu")]
    assert line.startswith("backend     cpu: NOT usable: ")
    assert reason in line


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
    settings = {"kv_type": "f16", "quant": "", "threads": 0, "rounds": 2, "context": 632, "chunk": CHUNK}
    assert report["settings"] == settings
    assert execute(["bench", scripted, *lengths, "--threads", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["settings"]["threads"], report["backend"]["threads"]) == (1, "1")
    assert execute(["bench", scripted, *lengths, "--kv-type", "f16,int8", "--json"]) == 0
    smaller = json.loads(capsys.readouterr().out)
    assert smaller["settings"]["kv_type"] == "f16,int8"
    assert smaller["memory_plan"]["kv"] < report["memory_plan"]["kv"]
    assert execute(["bench", scripted, "--prompt", "8", "--decode", "0", "--rounds", "1"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "what\ttokens\tdepth\ttokens/s\tslowest\tfastest"
    assert row.startswith("prefill\t8\t0\t")
    assert execute(["bench", scripted, "--prompt", "0", "--decode", "0"]) == 1


# --- run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [(["say hi"], ""), ([], "say hi\n"), (["say"], "hi\n"), (["", "--system", "Be brief."], "hi")],
)
def test_run_takes_its_prompt_from_argument_and_input(
    arguments: list[str], stdin: str, scripted: str, cli: Cli
) -> None:
    done = cli("run", scripted, *arguments, stdin=stdin)
    assert (done.code, done.out, done.err) == (0, "Hello, wide 🌍!\n", "")


def test_run_prompts_are_joined_by_a_newline(scripted: str, cli: Cli) -> None:
    counts = []
    for arguments, stdin in ((["ab\ncd"], ""), (["ab"], "cd\n"), ([], "ab\ncd")):
        report = json.loads(cli("run", scripted, *arguments, "--json", stdin=stdin).out)
        counts.append(report["stats"]["prompt_tokens"])
    assert len(set(counts)) == 1


def test_run_as_data(scripted: str, cli: Cli) -> None:
    done = cli("run", scripted, "hi", "--json", "--seed", "5", "--stats")
    report = json.loads(done.out)
    assert report["text"] == "Hello, wide 🌍!"
    assert len(report["tokens"]) == report["stats"]["completion_tokens"] == 6
    assert (report["finish_reason"], report["finish_detail"], report["seed"]) == ("stop", "token 2", 5)
    assert (report["backend"], report["context"]) == ("cpu", 4096)
    assert report["stats"]["decode_tokens_per_second"] > 0
    assert "answer 6 tokens, " in done.err


def test_run_ends_where_it_is_told_to(scripted: str, cli: Cli) -> None:
    assert cli("run", scripted, "hi", "--max-tokens", "2").out == "Hello,\n"
    done = cli("run", scripted, "hi", "--stop", "wide", "--stop", "never")
    assert (done.out, done.err) == ("Hello, \n", "")
    done = cli("run", scripted, "go on forever", "--context", "64", "--no-loop-detection")
    assert done.out.startswith(" tick tick")
    assert "note: the answer ends early: the context of 64 tokens is full" in done.err


def test_an_answer_that_runs_in_circles_ends(scripted: str, base_model: str, cli: Cli) -> None:
    done = cli("run", scripted, "go on forever")
    assert done.out.startswith(" tick tick")
    assert done.err == "note: ended, for it repeats itself; --no-loop-detection lets it go on\n"
    assert json.loads(cli("run", scripted, "go on forever", "--json").out)["finish_reason"] == "loop"
    raw = ["run", scripted, "<|forever|>", "--raw", "--special", "--context", "256", "--json"]
    assert json.loads(cli(*raw).out)["finish_reason"] == "length", "--raw adds nothing that was not asked for"
    assert json.loads(cli(*raw, "--loop-detection").out)["finish_reason"] == "loop"


def test_run_says_what_helps_against_a_full_context(scripted: str, cli: Cli) -> None:
    done = cli("run", scripted, "x" * 100, "--context", "64")
    assert (done.code, done.out) == (1, "")
    assert "but the context holds 64" in done.err
    assert done.err.endswith("hint: shorten the prompt, or give a larger --context\n")
    done = cli("run", scripted, "hi", "--context", "64", "--max-tokens", "60")
    assert done.code == 1
    assert "and 60 more are asked for" in done.err
    assert done.err.endswith("hint: shorten the prompt, lower --max-tokens, or give a larger --context\n")


def test_run_without_a_template_continues_the_text(base_model: str, scripted: str, cli: Cli) -> None:
    done = cli("run", base_model, "A", "--raw", "--max-tokens", "2")
    assert (done.out, done.err) == ("Hello,\n", "")
    done = cli("run", base_model, "A", "--max-tokens", "2")
    assert done.out == "Hello,\n"
    assert "note: the model has no chat template" in done.err
    done = cli("run", base_model, "A", "--system", "B")
    assert (done.code, done.out) == (1, "")
    plain = json.loads(cli("run", scripted, "<|forever|>", "--raw", "--max-tokens", "3", "--json").out)
    assert plain["text"] == "Hello, wide", "text is not taken for a special token"
    special = cli("run", scripted, "<|forever|>", "--raw", "--special", "--max-tokens", "3")
    assert special.out == " tick tick tick\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        ([], b"", 2, "there is no prompt"),
        (["x", "--special"], b"", 2, "--special goes with --raw only"),
        (["x", "--raw", "--system", "y"], b"", 2, "--system needs the chat template"),
        (["x", "--temperature", "-1"], b"", 1, "temperature is -1.0, but must be >= 0"),
        (["x", "--top-p", "high"], b"", 2, "--top-p"),
        (["x", "--backend", "gpu"], b"", 1, "there is no backend 'gpu'"),
        (["x", "--context", "1"], b"", 1, "context is 1, but must be"),
        (["x", "--context", "68719484928"], b"", 1, "context is 68719484928, but must be"),
        (["x", "--threads", "4294967298"], b"", 1, "threads is 4294967298, but must be"),
        (["x", "--seed", "-1"], b"", 1, "seed is -1, but must be"),
        (["x", "--seed", str(2**64)], b"", 1, "seed is 18446744073709551616, but must be"),
        (["Gr\udcfc\udcdfe"], b"", 1, "the prompt is not valid UTF-8"),
        (["x", "--system", "Gr\udcfc\udcdfe"], b"", 1, "--system is not valid UTF-8"),
        (["x", "--stop", "\udcff"], b"", 1, "--stop is not valid UTF-8"),
        ([], b"Gr\xfc\xdfe", 1, "standard input is not valid UTF-8 at byte 2"),
    ],
)
def test_run_explains_what_it_refuses(
    arguments: list[str], stdin: bytes, code: int, message: str, scripted: str, cli: Cli
) -> None:
    done = cli("run", scripted, *arguments, stdin=stdin)
    assert (done.code, done.out) == (code, "")
    text = done.err
    assert text.startswith("error: ")
    assert message in text
    assert "Traceback" not in text
    assert ("Invalid value" in text) == ("--top-p" in message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file TEMPLATE"),
        (b"\xff", "the chat template TEMPLATE is not valid UTF-8 at byte 0"),
        (b"fine\n{% for message in messages %}", "the chat template TEMPLATE is no valid jinja2: line 2: Unexpected"),
        (b"{{ messages[0 }}", "the chat template TEMPLATE is no valid jinja2: line 1: unexpected '}'"),
        (b"x" * (1 << 21), "the chat template TEMPLATE is no valid jinja2: it has 2097152 characters"),
        (b"{{ " + b"(" * 5000 + b")" * 5000 + b" }}", "the chat template TEMPLATE is no valid jinja2: "),
        ("a folder", "the chat template TEMPLATE cannot be read: Is a directory"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_explained(
    content: bytes | str | None, message: str, scripted: str, tmp_path: Path, cli: Cli
) -> None:
    path = tmp_path / "template.jinja"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    for command in ("run", "chat"):
        done = cli(command, scripted, "--template", str(path), stdin="hi")
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("error: " + message.replace("TEMPLATE", str(path)))
        assert "hint: --template takes the path of a jinja2 file" in done.err


def test_run_says_when_it_waits_for_a_pipe(scripted: str) -> None:
    command = [sys.executable, "-m", "localinfer", "run", scripted, "hi"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        assert b"waiting for standard input" in running.stderr.readline()
        out, _ = running.communicate(b"there", timeout=30)
    assert out.decode() == "Hello, wide 🌍!\n"


def test_a_pipe_gets_utf8_whatever_the_locale(scripted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert process("run", scripted, "Grüße").stdout.decode("utf-8") == "Hello, wide 🌍!\n"


def start_forever(scripted: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "localinfer", "run", scripted, "<|forever|>", "--raw", "--special"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    assert process.stdout.read(5) == b" tick"
    return process


def test_ctrl_c_ends_run_at_once(scripted: str) -> None:
    with start_forever(scripted) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=5)
    # Killed by the signal, which a shell reports as 130.
    assert (process.returncode, errors) == (-signal.SIGINT, b"")


def test_run_ends_quietly_when_its_reader_leaves(scripted: str) -> None:
    with start_forever(scripted) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == READER_LEFT


def test_ctrl_c_while_a_pull_waits_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        command = [sys.executable, "-m", "localinfer", "pull", "smollm2:135m"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            silent.accept()[0].close()  # pip is there
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in errors
    assert list(models_folder().iterdir()) == []


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
