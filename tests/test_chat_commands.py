"""What a person does with a conversation: asks again, edits, undoes, copies; lists and resumes what was kept."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localinfer.cli.conversation import Conversation, load
from localinfer.cli.saved import last_path, meant, new_path, saved_conversations
from localinfer.errors import LocalInferError
from localinfer.hub.folders import conversations_folder
from scripted_model import write_scripted_model
from terminal import Terminal

TEMPLATE = """\
{%- for message in messages %}<|{{ message['role'] }}|>
{%- if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message['content'] }}<|end|>{% endfor %}
{%- if add_generation_prompt %}{% set last = messages[-1]['content'] %}
{{- '<|code|>' if 'code' in last else '<|thinks|>' if 'think' in last and enable_thinking is not false
    else '<|forever|>' if 'forever' in last else '<|colours|>' if 'colours' in last else '<|assistant|>' }}
{%- endif %}"""
ANSWERS = {
    "code": ["```py\n", "one = 1\n", "```", "\n\n and:\n\n", "~~~\n", "two", " = ", "2\n", "~~~ "],
    "thinks": ["<think>\n", "Well,", " let me", " see.", "\n</think>\n\n", "It is", " **bold", "**."],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "talking.gguf"
    return str(write_scripted_model(path, template=TEMPLATE, answers=ANSWERS, context=8192))


class Talk(Terminal):
    """A chat that has begun."""

    def __init__(self, model: str, *options: str, columns: int = 100) -> None:
        super().__init__("chat", model, "--context", "8192", *options, columns=columns)
        self.expect("> ")

    def say(self, text: str, *answers: str) -> None:
        self.send(f"{text}\n")
        for answer in answers:
            self.expect(answer)
        self.expect("\x1b[?2004h> ")

    def leave(self) -> None:
        self.send("/exit\n")
        assert self.end() == 0


@pytest.fixture
def talk(model: str) -> Iterator[Talk]:
    with Talk(model) as chat:
        yield chat


def kept() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(last_path().read_text())["messages"]
    return messages


def test_an_answer_again_and_the_earlier_one_back(talk: Talk) -> None:
    talk.say("/regen", "you have not said anything yet")
    talk.say("hi", "Hello, wide 🌍!")
    talk.say("/regen", "Hello, wide 🌍!", "(version 2 of 2; /regen back shows the one before)")
    assert [m["role"] for m in kept()] == ["user", "assistant"]
    talk.say("/regen ?", "  1  Hello, wide", "* 2  Hello, wide")
    talk.say("/regen back", "(version 1 of 2)", "Hello, wide 🌍!")
    talk.say("/regen back", "there is no version 0 of this answer")
    talk.say("/regen next", "(version 2 of 2)")
    talk.say("/regen 1", "(version 1 of 2)")
    talk.say("/regen 3", "there is no version 3")
    talk.say("/regen x", "/regen takes back, next, ? or the number of a version, not x")
    found = load(last_path())
    assert (len(found.versions), found.version) == (2, 0)
    talk.say("/undo", "taken away: hi")
    assert not saved_conversations(), "what is empty is not kept"
    talk.leave()


def test_the_last_message_is_edited(talk: Talk, tmp_path: Path) -> None:
    talk.say("helo", "Hello, wide 🌍!")
    talk.send("/edit\n")
    talk.expect("> helo")
    talk.send("\x7flo there\n")
    talk.expect("Hello, wide 🌍!")
    talk.expect("> ")
    assert [m["content"] for m in kept()] == ["hello there", "Hello, wide 🌍!"]
    talk.say("/regen back", "(version 1 of 2)")
    assert kept()[0]["content"] == "helo"
    talk.send("/edit\n")
    talk.expect("> helo")
    talk.interrupt("(not changed)")
    talk.expect("> ")
    talk.say("/edit everything", "/edit takes nothing or editor")
    assert kept()[0]["content"] == "helo"
    talk.leave()


def test_the_last_message_is_edited_in_an_editor(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "second line" >> "$1"\n')
    editor.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(editor))
    with Talk(model) as talk:
        talk.say("first line", "Hello, wide 🌍!")
        talk.say("/edit editor", "Hello, wide 🌍!")
        assert kept()[0]["content"] == "first line\nsecond line"
        editor.write_text("#!/bin/sh\nexit 3\n")
        talk.say("/edit editor", "failed with exit code")
        editor.unlink()
        talk.say("/edit editor", "cannot be started")
        talk.leave()


def test_the_history_is_searched(talk: Talk) -> None:
    talk.say("a needle here", "Hello, wide 🌍!")
    talk.say("hay", "Hello, wide 🌍!")
    talk.send("\x12need")
    talk.expect("(reverse-i-search)")
    talk.expect("d': a ")
    talk.send("\r")
    talk.expect("Hello, wide 🌍!")
    talk.expect("> ")
    assert kept()[-2]["content"] == "a needle here"
    talk.leave()


def clipboard(text: bytes) -> str:
    return f"\x1b]52;c;{base64.b64encode(text).decode()}\x07"


def test_code_is_copied_when_asked_only(talk: Talk) -> None:
    talk.say("/copy", "the last answer has no code block")
    talk.say("some code", "─── py", "one = 1", "two = 2")
    assert "\x1b]" not in talk.all
    talk.say("/copy", clipboard(b"two = 2\n"), "sent 1 line to the clipboard")
    talk.say("/copy 1", clipboard(b"one = 1\n"))
    talk.say("/copy 3", "the last answer has code blocks 1 to 2, and none 3")
    talk.leave()


def test_answers_are_drawn_or_shown_as_they_were_written(talk: Talk) -> None:
    talk.say("think", "┆ thought for 4 tokens", "It is", "\x1b[1mbold\x1b[0m.")
    assert "let me" not in talk.all
    talk.say("/markdown off", "answers are shown as they were written")
    talk.say("/think show", "thoughts are shown")
    talk.say("think", "┆ Well,", " let me", " see.", "┆ thought for 4 tokens", "It is **bold**.")
    talk.say("/think hide", "thoughts are told in one line")
    talk.say("/think", "Well, let me see.")
    talk.say("/think off", "the model does not think before it answers")
    talk.say("think", "Hello, wide 🌍!")
    talk.say("/think on", "the model thinks before it answers")
    talk.say("think", "thought for 4 tokens")
    talk.say("/think twice", "/think takes show, hide, on or off, not twice")
    talk.say("/markdown x", "/markdown takes on or off, not x")
    talk.say("/tokens", "the conversation has ", " of 8192 tokens, in 8 messages")
    talk.say("/tokens Hello", "5 tokens: ")
    message = kept()[1]
    assert (message["content"], message["reasoning_content"]) == ("It is **bold**.", "Well, let me see.")
    talk.leave()


@pytest.mark.parametrize("options", [(), ("--plain",)], ids=["drawn", "plain"])
def test_control_codes_do_nothing_however_answers_are_shown(model: str, options: tuple[str, ...]) -> None:
    with Talk(model, *options) as talk:
        talk.say("colours", "␛[31mred␇\ufffd1mdone")
        for sequence in ("\x1b[31m", "\x07", "\x9b"):
            assert sequence not in talk.all
        talk.leave()


def test_typed_ahead_stays_out_of_the_answer(talk: Talk) -> None:
    talk.send("go on forever\n")
    talk.expect(" tick tick")
    talk.send("hi")
    talk.expect("(ended: it repeats itself")
    assert "tickhi" not in talk.all
    talk.expect("> hi")
    talk.send("\n")
    talk.expect("Hello, wide 🌍!")
    talk.expect("> ")
    talk.leave()


def test_conversations_are_listed_and_resumed(model: str) -> None:
    with Talk(model) as talk:
        talk.say("/list", "no conversation has been kept yet")
        talk.say("about apples", "Hello, wide 🌍!")
        talk.say("/new", "the conversation is forgotten")
        talk.say("about pears", "Hello, wide 🌍!")
        talk.say("/list", "*  1  ", "about pears", "   2  ", "about apples")
        talk.say("/resume 2", "loaded: 2 messages", "the last, by the assistant: Hello")
        talk.say("more", "Hello, wide 🌍!")
        talk.say("/resume nothing", "there is no conversation nothing")
        talk.say("/resume about", "2 conversations have about in their titles")
        talk.leave()
    assert [each.title for each in saved_conversations()] == ["about apples", "about pears"]
    assert [len(load(each.path).messages) for each in saved_conversations()] == [4, 2]
    assert {stat.S_IMODE(each.path.stat().st_mode) for each in saved_conversations()} == {0o600}
    listing = subprocess.run(
        [sys.executable, "-m", "localinfer", "chat", "--list"], capture_output=True, text=True, check=True
    )
    rows = [line.split("\t") for line in listing.stdout.splitlines()]
    assert [row[0] for row in rows] == ["number", "1", "2"]
    assert [row[-1] for row in rows] == ["title", "about apples", "about pears"]
    assert rows[1][3] == model
    with Terminal("chat", "--resume", "pears", columns=100) as chat:  # the model is the conversation's
        chat.expect("resumed: about pears")
        chat.expect("> ")
        chat.send("on\n")
        chat.expect("Hello, wide 🌍!")
        chat.expect("> ")
        chat.send("/exit\n")
        assert chat.end() == 0
    assert len(load(meant("pears").path).messages) == 4
    with Terminal("chat", model, "--resume") as chat:
        chat.expect("resumed: about pears")


def test_nothing_is_lost_when_the_chat_is_killed(model: str) -> None:
    with Talk(model, "--no-loop-detection") as talk:
        talk.say("first", "Hello, wide 🌍!")
        talk.send("go on forever\n")
        talk.expect(" tick tick")
        talk.process.send_signal(signal.SIGKILL)
        talk.process.wait()
    assert [m["content"] for m in kept()] == ["first", "Hello, wide 🌍!", "go on forever"]
    assert [path.suffix for path in conversations_folder().iterdir()] == [".json"]


def test_a_private_chat_leaves_nothing(model: str, tmp_path: Path) -> None:
    with Talk(model, "--private") as talk:
        talk.say("a secret", "Hello, wide 🌍!")
        talk.leave()
    left = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert all(b"a secret" not in path.read_bytes() for path in left)


def test_chats_at_a_pipe_do_not_fill_the_list(model: str) -> None:
    command = [sys.executable, "-m", "localinfer", "chat", model]
    done = subprocess.run(command, input=b"think\n", capture_output=True, timeout=60)
    assert done.stdout.decode() == "<think>\nWell, let me see.\n</think>\n\nIt is **bold**.\n", "as it is written"
    assert not saved_conversations()
    assert load(last_path()).title == "think"
    done = subprocess.run([*command, "--thoughts", "hide"], input=b"think\n", capture_output=True, timeout=60)
    assert done.stdout.decode() == "It is **bold**.\n"
    done = subprocess.run([*command, "--no-think"], input=b"think\n", capture_output=True, timeout=60)
    assert done.stdout.decode() == "Hello, wide 🌍!\n"
    done = subprocess.run([*command, "--thinking-budget", "1"], input=b"think\n", capture_output=True, timeout=60)
    assert done.stdout.decode().startswith("<think>\nWell,"), done.stderr
    assert "let me" not in done.stdout.decode()
    done = subprocess.run([*command, "--resume"], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"no conversation has been kept yet" in done.stderr


def test_run_tells_thoughts_apart(model: str) -> None:
    command = [sys.executable, "-m", "localinfer", "run", model, "think"]

    def output(*options: str) -> str:
        done = subprocess.run([*command, *options], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    assert output() == "<think>\nWell, let me see.\n</think>\n\nIt is **bold**.\n"
    assert output("--thoughts", "hide") == "It is **bold**.\n"
    assert output("--no-think") == "Hello, wide 🌍!\n"
    data = json.loads(output("--json"))
    assert (data["text"], data["reasoning"]) == ("It is **bold**.", "Well, let me see.")
    with Terminal("run", model, "think") as terminal:
        terminal.expect("┆ thought for 4 tokens")
        terminal.expect("It is **bold**.")
        assert terminal.end() == 0
        assert "let me" not in terminal.all


def test_a_model_that_cannot_choose_says_so(tmp_path: Path) -> None:
    plain = str(write_scripted_model(tmp_path / "plain.gguf"))
    for words in (["chat", plain, "--think"], ["run", plain, "hi", "--no-think"]):
        done = subprocess.run([sys.executable, "-m", "localinfer", *words], input=b"hi\n", capture_output=True)
        assert done.returncode == 1
        assert b"does not read enable_thinking" in done.stderr


# --- versions and files, without a model -------------------------------------------------------------------------


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_versions_survive_their_file(tmp_path: Path) -> None:
    talk = Conversation()
    for number in range(2):
        talk.begin_turn(user(f"question {number}"))
        talk.messages.append(said(f"answer {number}"))
    talk.begin_version(user("question 1"))
    talk.messages.append(said("another"))
    talk.begin_version(user("edited"))
    talk.messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "42", "name": "f", "tool_call_id": "x"},
        {"role": "assistant", "content": "now", "reasoning_content": "well"},
    ]
    talk.take_version(1)
    assert [m["content"] for m in talk.messages] == ["question 0", "answer 0", "question 1", "another"]
    talk.save(tmp_path / "talk.json", "model")
    again = load(tmp_path / "talk.json")
    assert again == talk
    again.take_version(2)
    assert again.messages[-1]["content"] == "now"
    again.take_version(0)
    assert again.messages[-1]["content"] == "answer 1"
    again.begin_turn(user("on"))
    assert again.versions == []
    assert again.drop_turn() == [user("on")]


@pytest.mark.parametrize("extra", ['"versions": 3', '"versions": [3], "version": 0', '"versions": [], "version": 5',
                                   '"versions": [[]], "version": "x"'])  # fmt: skip
def test_versions_that_make_no_sense_are_left_out(extra: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(f'{{"messages": [{json.dumps(user("hi"))}], {extra}}}')
    assert load(path) == Conversation("", [user("hi")])


def test_files_that_are_no_conversations_are_not_listed() -> None:
    conversations_folder().mkdir(parents=True)
    for name, content in (("a", "x"), ("b", "[]"), ("c", '{"title": 3'), ("d", "\xff")):
        (conversations_folder() / f"{name}.json").write_text(content, encoding="latin-1")
    os.mkdir(conversations_folder() / "e.json")
    assert saved_conversations() == []
    with pytest.raises(LocalInferError, match="no conversation has been kept yet"):
        meant("")
    Conversation("", [user("x\x1b[31m" * 40)]).save(new_path(), "m", overwrite=True)
    first = meant("1")
    assert len(first.title) <= 60
    assert meant(first.name) == first
    assert new_path() != new_path().with_name(first.path.name)
