"""The tools that a chat lends to its model: what they do, what they refuse, and that nothing is read unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localinfer.cli.calculator import calculate
from localinfer.cli.chat_session import Session
from localinfer.cli.conversation import Conversation, load
from localinfer.cli.file_reader import FileReader
from localinfer.cli.messages import MessageReader
from localinfer.cli.tools import MOST_ROUNDS, Reply, Toolbox
from localinfer.engine.llm import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.text.answer_reader import Call
from scripted_model import write_scripted_model
from terminal import Terminal

# --- the calculator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4 - -1", "21"),
        ("2 + 3^2", "11"),
        ("2 ** 100", str(2**100)),
        ("10 / 4", "2.5"),
        ("10 / 5", "2"),
        ("7 // 2 + 7 % 4", "6"),
        ("0.1 + 0.2", "0.3"),
        ("sqrt(2) ^ 2", "2"),
        ("6 × 7 ÷ 2 − 1", "20"),
        ("round(pi, 4)", "3.1416"),
        ("factorial(20)", str(2432902008176640000)),
        ("max(1, 2.5, ln(e))", "2.5"),
        ("2 ** -1", "0.5"),
    ],
)
def test_the_calculator_calculates(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "is no expression"),
        ("2 +", "is no expression"),
        ("1 / 0", "divides by zero"),
        ("9 ** 9 ** 9", "is too large"),
        ("10 ** 10 ** 10 ** 10", "is too large"),
        ("2 ** 4000 * 2 ** 4000", "is too large"),
        ("factorial(10 ** 6)", "factorial takes"),
        ("exp(1e9)", "is too large"),
        ("1e308 * 10", "is too large, or no number"),
        ("sqrt(-1)", "has no value"),
        ("(-8) ** 0.5", "the root of a negative number"),
        ("__import__('os').system('true')", "neither a number nor a known function"),
        ("().__class__", "neither a number nor a known function"),
        ("'a' * 10 ** 9", "neither a number nor a known function"),
        ("[1] * 10 ** 9", "neither a number nor a known function"),
        ("True + 1", "neither a number"),
        ("open('x')", "neither a number"),
        ("pow(2, 3)", "no function pow"),
        ("(lambda: 1)()", "neither a number nor a known function"),
        ("(" * 400 + "1", ""),
        ("-" * 480 + "1" * 0, ""),
        ("1" * 501, "longer than 500 characters"),
        ("sqrt(1, 2)", "has no value"),
        ("round(1, 10 ** 9)", "at most 400 digits"),
        ("1 << 10 ** 10", "neither a number"),
    ],
)
def test_the_calculator_refuses(expression: str, why: str) -> None:
    begin = time.monotonic()
    with pytest.raises(LocalInferError) as caught:
        calculate(expression)
    assert why in caught.value.message
    assert time.monotonic() - begin < 1


# --- the reader of files -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shared folder"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "today.txt").write_text("Buy milk.\nGrüße\n")
    (folder / ".hidden").write_text("hidden")
    (folder / "binary").write_bytes(b"a\0b")
    (folder / "latin").write_bytes(b"Gr\xfc\xdfe")
    (folder / "large").write_text("x" * 70000)
    os.mkfifo(folder / "pipe")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "way out").symlink_to(tmp_path)
    return folder


def test_files_below_the_folder_are_read(folder: Path) -> None:
    reader = FileReader(folder)
    assert reader.read("notes/today.txt") == reader.read("./notes//today.txt") == "Buy milk.\nGrüße\n"
    assert reader.read(str(folder / "notes" / "today.txt")) == "Buy milk.\nGrüße\n"
    assert reader.names(".") == "binary\nlarge\nlatin\nnotes/\npipe"
    assert reader.names("notes") == "today.txt"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../secret", "outside of the folder"),
        ("notes/../../secret", "outside of the folder"),
        ("/etc/passwd", "outside of the folder"),
        ("link", "it is a link"),
        ("way out/secret", "it is a link|Not a directory"),
        ("absent", "No such file"),
        ("notes", "is a folder"),
        ("pipe", "is no file"),
        ("binary", "is no text"),
        ("latin", "is no text"),
        ("large", "more than 65536 bytes"),
        ("notes/today.txt/x", "Not a directory"),
        ("a\0b", "outside of"),
        ("x" * 300, "File name too long"),
    ],
)
def test_nothing_else_is(folder: Path, name: str, why: str) -> None:
    with pytest.raises(LocalInferError, match=why):
        FileReader(folder).read(name)
    with pytest.raises(LocalInferError):
        FileReader(folder).names(name if name != "notes" else "binary")


def test_a_tools_folder_has_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="is no folder"):
        FileReader(tmp_path / "absent")


# --- what the model is given -------------------------------------------------------------------------------------


def call(name: str, **arguments: object) -> Call:
    return Call(name, json.dumps(arguments))


def test_a_file_is_read_once_that_is_allowed(folder: Path) -> None:
    asked: list[str] = []
    replies: list[Reply] = ["no", "yes", "always"]

    def ask(question: str) -> Reply:
        asked.append(question)
        return replies[len(asked) - 1]

    box = Toolbox(["files"], folder, ask)
    reading = call("read_file", path="notes/today.txt")
    assert "the user does not allow it" in box.run(reading)
    assert box.run(reading) == "Buy milk.\nGrüße\n"
    assert box.run(reading) == "Buy milk.\nGrüße\n"
    assert box.run(reading) == "Buy milk.\nGrüße\n"
    assert asked == [f"The model wants to read {folder}/notes/today.txt (18 B, 2 lines). Allow it?"] * 3
    assert "is a link" in box.run(call("read_file", path="link"))
    assert len(asked) == 3, "what cannot be read is not asked about"


def test_calls_that_make_no_sense_are_answered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = Toolbox(["calculator", "files"], folder, None)
    assert box.run(call("calculator", expression="6*7")) == "42"
    assert "divides by zero" in box.run(call("calculator", expression="1/0"))
    assert "there is no tool rm" in box.run(call("rm", path="/"))
    assert "takes expression" in box.run(call("calculator"))
    assert "takes expression" in box.run(call("calculator", expression=5))
    assert "takes path" in box.run(Call("read_file", "[]"))
    assert "no JSON" in box.run(Call("read_file", "{"))
    assert "does not allow" in box.run(call("read_file", path="notes/today.txt"))
    assert "nobody can be asked at a pipe" in capsys.readouterr().err
    with pytest.raises(LocalInferError, match="there is no tool shell"):
        Toolbox(["shell"], folder, None)


TEMPLATE = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}<|{{ message['role'] if message['role'] != 'tool' else 'user' }}|>
{%- if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% else %}{{ message['content'] }}{% endif %}<|end|>{% endfor %}
{%- if add_generation_prompt %}
{%- if tools and ('calculate' in messages[-1].content or 'forever' in messages[0].content) %}<|calls|>
{%- elif tools and 'read' in messages[-1].content %}<|reads|>
{%- elif messages[-1].role == 'tool' %}<|last|>
{%- else %}<|assistant|>{% endif %}{% endif %}"""
ANSWERS = {
    "calls": ["Let me see.\n", "<tool_call>\n", '{"name": "calculator"', ', "arguments": {"expression": "6*7"', "}}\n",
              "</tool_call>"],
    "reads": [" <tool_call>\n", '{"name": "read_file"', ', "arguments": {"path": "a.txt"', "}}\n ", "\n</tool_call>"],
    "last": ["It", " is", " there", "."],
}  # fmt: skip


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "calling.gguf"
    return str(write_scripted_model(path, template=TEMPLATE, answers=ANSWERS, context=8192))


def test_a_call_is_answered_and_the_conversation_keeps_both(calling: str, tmp_path: Path) -> None:
    with LLM(calling, context=8192) as llm:
        box = Toolbox(["calculator"], tmp_path, None)
        session = Session(
            llm,
            MessageReader(tmp_path / "history"),
            Conversation(),
            SamplingParams(),
            tools=box,
            kept=tmp_path / "c.json",
        )
        session.answer("calculate it")
        roles = [(m["role"], m["content"]) for m in session.conversation.messages]
        assert roles == [
            ("user", "calculate it"),
            ("assistant", "Let me see."),
            ("tool", "42"),
            ("assistant", "It is there."),
        ]
        made, result = session.conversation.messages[1:3]
        assert made["tool_calls"][0]["function"] == {"name": "calculator", "arguments": '{"expression": "6*7"}'}
        assert result["tool_call_id"] == made["tool_calls"][0]["id"]
        assert load(tmp_path / "c.json") == session.conversation
        session.run_command("/reset")
        session.answer("forever")
        rounds = [m for m in session.conversation.messages if m["role"] == "tool"]
        assert len(rounds) == MOST_ROUNDS, "a model that calls and calls is stopped"


def test_reading_is_asked_about_at_the_terminal(calling: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\x1b[31mred\x1b]52;c;aGk=\x07\n")
    options = ("--tools", "calculator,files", "--tools-folder", str(tmp_path))
    with Terminal("chat", calling, *options) as chat:
        chat.expect("> ")
        chat.send("read it\n")
        chat.expect(f"The model wants to read {tmp_path}/a.txt (")
        chat.expect("[y]es, [n]o, [a]lways in this session: ")
        chat.send("what?\n")
        chat.expect("[y]es, [n]o, [a]lways in this session: ")
        chat.send("n\n")
        chat.expect("the user does not allow it")
        chat.expect("It is there.")
        chat.expect("> ")
        chat.send("read it\n")
        chat.expect("[a]lways in this session: ")
        chat.send("a\n")
        chat.expect("␛[31mred")
        chat.expect("It is there.")
        chat.expect("> ")
        chat.send("read it\n")
        chat.expect("(allowed for this session: read ")
        chat.expect("It is there.")
        chat.expect("> ")
        assert "\x1b[31m" not in chat.all
        assert "\x1b]" not in chat.all
        chat.send("/exit\n")
        assert chat.end() == 0


def test_tools_need_a_template_that_knows_them(tmp_path: Path, calling: str) -> None:
    without = str(write_scripted_model(tmp_path / "without.gguf"))
    for model, tools, message in (
        (without, "calculator", b"cannot be lent tools: its chat template shows it none"),
        (calling, "shell", b"there is no tool shell"),
        (calling, "files", b"absent is no folder"),
    ):
        command = [sys.executable, "-m", "localinfer", "chat", model, "--tools", tools, "--tools-folder", "absent"]
        done = subprocess.run(command, input=b"hi\n", capture_output=True, timeout=60)
        assert (done.returncode, done.stdout) == (1, b"")
        assert message in done.stderr
