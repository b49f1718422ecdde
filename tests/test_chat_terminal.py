"""The chat as a person at a terminal meets it, and as a script at a pipe does."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path

import pytest

from localinfer import LLM
from localinfer.cli.chat_commands import ALIASES, HELP
from localinfer.cli.chat_params import CHAT_PARAMS
from localinfer.cli.chat_session import Session
from localinfer.cli.conversation import Conversation, load
from localinfer.cli.interrupt import interrupt_calls, interrupt_ends
from localinfer.cli.messages import MessageReader
from localinfer.cli.saved import last_path
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import FormatError, LocalInferError
from scripted_model import write_scripted_model
from terminal import Terminal

# --- messages ----------------------------------------------------------------------------------------------------


def messages_of(text: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8", "surrogateescape"))
    reader = MessageReader(tmp_path / "history")
    found = []
    while True:
        try:
            found.append(reader.read().text)
        except EOFError:
            return found


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", []),
        ("one\ntwo\n", ["one", "two"]),
        ("no newline at the end", ["no newline at the end"]),
        ("one\\\n  and more\\\n\ntwo\n", ["one\n  and more\n", "two"]),
        ("ends early\\\n", ["ends early\n"]),
        ('"""one line"""\n', ["one line"]),
        ('"""\n/help\n\n  code\n"""\nnext\n', ["/help\n\n  code", "next"]),
        ('  """first\nlast"""\n', ["first\nlast"]),
        ('"""never closed\nmore\n', ["never closed\nmore"]),
        ('say """quoted""" here\n', ['say """quoted""" here']),
        ("Grüße 🙂\n", ["Grüße 🙂"]),
    ],
)
def test_messages_from_a_pipe(text: str, messages: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert messages_of(text.encode(), monkeypatch, tmp_path) == messages


def test_a_message_that_is_no_utf8_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="not valid UTF-8"):
        messages_of("Grüße\n".encode("latin-1"), monkeypatch, tmp_path)


# --- conversations -----------------------------------------------------------------------------------------------


def test_a_conversation_survives_its_file(tmp_path: Path) -> None:
    said = Conversation("Be brief.")
    said.messages.append({"role": "user", "content": 'multi\nline "quoted" 🙂'})
    said.messages.append({"role": "assistant", "content": "\x1b[31m answer", "tokens": [5, 0, 2**40]})
    path = tmp_path / "folder" / "talk.json"
    path.parent.mkdir()
    said.save(path, "a model")
    assert load(path) == said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said.messages.append({"role": "user", "content": "again"})
    said.save(path, "a model")
    assert load(path) == said
    assert [p.name for p in path.parent.iterdir()] == ["talk.json"]
    assert load(path).with_system()[0] == {"role": "system", "content": "Be brief."}


def test_saving_makes_no_folders(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "deeper" / "talk.json"
    with pytest.raises(LocalInferError, match=r"there is no folder .*deeper") as caught:
        Conversation().save(path, "a model")
    assert "mkdir" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    Conversation().save(path, "a model", overwrite=True)  # where every chat keeps its own
    assert path.exists()
    with pytest.raises(LocalInferError, match="deeper is a folder"):
        Conversation().save(path.parent, "a model")
    with pytest.raises(LocalInferError, match="cannot be written: File name too long"):
        Conversation().save(tmp_path / ("x" * 300), "a model")


def test_saving_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(LocalInferError, match="no saved conversation"):
        Conversation().save(path, "a model")
    assert path.read_text() == "precious"
    with pytest.raises(LocalInferError, match="there is no folder"):
        Conversation().save(path / "under a file", "a model")
    path.unlink()
    one, more, other = ({"role": "user", "content": text} for text in ("one", "more", "other"))
    Conversation("system", [one]).save(path, "a model")
    longer = Conversation("system", [one, more])
    longer.save(path, "a model")
    for shorter in (Conversation("system", [one]), Conversation("", [one, more]), Conversation("system", [one, other])):
        with pytest.raises(LocalInferError, match="holds another conversation") as caught:
            shorter.save(path, "a model")
        assert "choose another name" in caught.value.hint
        assert load(path) == longer
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it has no list of messages"),
        (b"{}", "it has no list of messages"),
        (b'{"messages": 3}', "it has no list of messages"),
        (b'{"messages": ["user"]}', "message 1 is no object"),
        (
            b'{"messages": [{"role": "user", "content": "x"}, {"role": "boss", "content": "x"}]}',
            "the role of message 2",
        ),
        (b'{"messages": [{"content": "x"}]}', "the role of message 1 is not one of system, user, assistant"),
        (b'{"messages": [{"role": "user"}]}', "message 1 has no text"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "message 1 has no text"),
        (b'{"messages": [{"role": "user", "content": "x", "tokens": [1.5]}]}', "the tokens of message 1 are no list"),
    ],
)
def test_loading_explains_a_wrong_file(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=rf"wrong\.json is no saved conversation: {why}") as caught:
        load(path)
    assert "name a file that /save has written" in caught.value.hint
    with pytest.raises(LocalInferError, match=r"there is no file .*absent\.json"):
        load(tmp_path / "absent.json")
    with pytest.raises(LocalInferError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_each_turn_processes_only_its_new_tokens(scripted: str, tmp_path: Path) -> None:
    """The answer's text encodes to other tokens (bytes) than those that were drawn, so this needs the tokens kept."""
    params = SamplingParams(temperature=0)
    with LLM(scripted, context=512) as llm:
        reader = MessageReader(tmp_path / "history")
        first = Session(llm, reader, Conversation("Be brief."), params)
        first.answer("hi")
        one = first.last and first.last.completion
        first.answer("more")
        two = first.last and first.last.completion
        assert one is not None
        assert two is not None
        assert two.cached_tokens == one.prompt_tokens + len(one.tokens) - 1  # the end token was drawn, not processed
        first.run_command(f"/save {tmp_path}/talk.json")
        later = Session(llm, reader, Conversation(), params)
        later.run_command(f"/load {tmp_path}/talk.json")
        later.answer("and more")
        assert later.last is not None
        assert later.last.completion.cached_tokens == two.prompt_tokens + len(two.tokens) - 1


def test_conversations_without_tokens_load(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    path.write_text(json.dumps({"model": "any", "messages": messages}, indent=2))
    assert load(path).messages == messages


# --- Ctrl-C ------------------------------------------------------------------------------------------------------


def test_an_interrupt_is_heard_while_the_main_thread_is_busy() -> None:
    """Without the watching thread the call would come only after the main thread's long wait in C."""
    when: list[float] = []
    before = signal.getsignal(signal.SIGINT)
    with interrupt_calls(lambda: when.append(time.monotonic())):
        start = time.monotonic()
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)  # one call into C, without the GIL
        end = time.monotonic()
    assert len(when) == 1
    assert when[0] - start < (end - start) / 2
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.set_wakeup_fd(-1) == -1
    assert not [t for t in threading.enumerate() if t.name == "interrupt"]


def test_the_default_is_restored_after_loading() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupt_ends():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == before


def test_where_the_last_conversation_is(tmp_path: Path) -> None:
    assert last_path() == tmp_path / "home" / "config" / "last-conversation.json"


# --- the chat at a terminal --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf", context=65536))


@pytest.fixture
def chat(scripted: str) -> Iterator[Terminal]:
    with Terminal("chat", scripted, "--context", "65536", "--no-loop-detection") as terminal:
        terminal.expect("/help for help.")
        terminal.expect("> ")
        yield terminal


def test_a_talk(chat: Terminal, tmp_path: Path) -> None:
    chat.send("hi there\n")
    chat.expect("Hello, wide 🌍!")
    assert "\x1b[2m6 tokens, " in chat.expect(" of 65536")
    chat.expect("> ")
    chat.send("/stats\n")
    chat.expect("of them from the cache")
    chat.expect("ended by     stop")
    chat.expect("> ")
    chat.send(f"/save {tmp_path}/talk.json\n")
    chat.expect("saved: ")
    chat.expect("> ")
    chat.send("/exit\n")
    assert chat.end() == 0
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert len(messages[1].pop("tokens")) == 6
    assert messages == [{"role": "user", "content": "hi there"}, {"role": "assistant", "content": "Hello, wide 🌍!"}]
    assert last_path().read_text() == (tmp_path / "talk.json").read_text()
    history = (tmp_path / "home" / "config" / "history").read_text()
    assert "hi there" in history
    assert stat.S_IMODE((tmp_path / "home" / "config" / "history").stat().st_mode) == 0o600


def test_ctrl_c_stops_the_answer_and_not_the_program(chat: Terminal) -> None:
    chat.send("go on forever\n")
    chat.expect(" tick tick tick tick")
    chat.send("\x03")
    chat.expect("(stopped)", timeout=5)
    chat.expect("> ")
    chat.send("hi\n")
    chat.expect("Hello, wide 🌍!")
    chat.expect("> ")
    said = json.loads(last_path().read_text())["messages"]
    assert [m["role"] for m in said] == ["user", "assistant"] * 2
    assert said[1]["content"].startswith(" tick tick"), "what had been said by then is kept"


def test_ctrl_c_twice_at_the_prompt_leaves(chat: Terminal) -> None:
    chat.interrupt("Ctrl-C again")
    chat.expect("> ")
    chat.send("hi\n")
    chat.expect("Hello, wide 🌍!")
    chat.expect("> ")
    chat.interrupt("Ctrl-C again")
    chat.expect("> ")
    chat.interrupt("[?2004l")  # the line editor gives the terminal back
    assert chat.end() == 0


def test_ctrl_c_clears_what_is_typed(chat: Terminal) -> None:
    """And counts as no first of two, however often it does so."""
    for text in ("half a mess", "another"):
        chat.send(text)
        chat.expect(text)  # Ctrl-C throws keys away that were not read
        chat.interrupt("> ")
    chat.send('"""\n')
    chat.expect(". ")
    chat.interrupt("> ")
    chat.send("one\\\n")
    chat.expect(". ")
    chat.send("two")
    chat.expect("two")
    chat.interrupt("> ")
    assert "Ctrl-C again" not in chat.all
    chat.send("hi\n")
    chat.expect("Hello, wide 🌍!")
    chat.expect("> ")
    assert json.loads(last_path().read_text())["messages"][0]["content"] == "hi"


def test_ctrl_c_that_clears_comes_between_two_that_leave(chat: Terminal) -> None:
    chat.interrupt("Ctrl-C again")
    chat.expect("> ")
    chat.send("typed")
    chat.expect("typed")
    chat.interrupt("> ")
    chat.interrupt("Ctrl-C again")
    chat.expect("> ")
    chat.send("\x04")
    assert chat.end() == 0


def test_ctrl_d_leaves(chat: Terminal) -> None:
    chat.send("\x04")
    assert chat.end() == 0


def test_control_codes_of_the_model_stay_away_from_the_terminal(chat: Terminal) -> None:
    chat.send("show colours\n")
    chat.expect("␛[31mred␇\ufffd1mdone")
    chat.expect("> ")
    assert "\x1b[31m" not in chat.all
    assert "\x07" not in chat.all


def test_messages_of_several_lines(chat: Terminal) -> None:
    def last_message() -> str:
        content: str = json.loads(last_path().read_text())["messages"][-2]["content"]
        return content

    chat.send("one\\\n")
    chat.expect(". ")
    chat.send("two\n")
    chat.expect("Hello, wide 🌍!")
    chat.expect("> ")
    assert last_message() == "one\ntwo"
    chat.send('"""\n')
    chat.expect(". ")
    chat.send("/reset\n")
    chat.expect(". ")
    chat.send('three"""\n')
    chat.expect("Hello, wide 🌍!")
    chat.expect("> ")
    assert last_message() == "/reset\nthree"
    # What a terminal sends for text pasted from the clipboard (bracketed paste), then Enter.
    chat.send("\x1b[200~def f():\n\treturn 1\n# end\x1b[201~")
    chat.expect("# end")
    chat.send("\n")
    chat.expect("Hello, wide 🌍!")
    chat.expect("> ")
    assert last_message() == "def f():\n\treturn 1\n# end"


def test_the_commands(chat: Terminal, tmp_path: Path) -> None:
    def say(text: str, *answers: str) -> None:
        chat.send(f"{text}\n")
        for answer in answers:
            chat.expect(answer)
        chat.expect("> ")

    say("/help", "/params [NAME VALUE]")
    say("/?", "/params [NAME VALUE]")
    say("/HELP", "/params [NAME VALUE]")
    say("/stats", "there is no answer yet")
    say("/xyzzy", "error: there is no command /xyzzy\r\nhint: /help lists them")
    say("/parms", "there is no command /parms", "did you mean /params? /help lists them")
    say("/system", "there is no system message")
    say("/system Be brief.", "the system message is set")
    say("/system", "Be brief.")
    say("hi", "Hello, wide 🌍!")
    assert json.loads(last_path().read_text())["messages"][0] == {"role": "system", "content": "Be brief."}
    say("/params temperature 0.25", "temperature          0.25  (default 0.7)")
    say("/params temperature hot", "temperature takes a number")
    say("/params temperature -1", "temperature is -1.0, but must be >= 0")
    say("/params warmth 1", "there is no sampling parameter warmth")
    say("/params max_tokens 2", "max_tokens           2  (default none)")
    say("hi", "Hello,\r\n(ended: max_tokens 2)")
    say("/params max_tokens none", "max_tokens           none\r\n")
    say("/params stop wide", 'stop                 "wide"')
    say("hi", "Hello, \r\n")
    say("/params stop default", "stop                 none\r\n")
    say("/params", "ignore_eos           false")
    say(f"/load {tmp_path}/absent.json", "there is no file")
    say("/save", "a file name is missing\r\nhint: for example /save talk.json")
    say("/load", "a file name is missing\r\nhint: for example /load talk.json")
    say(f"/save {tmp_path}/absent/talk.json", "there is no folder")
    say(f"/save '{tmp_path}/my talk.json'", "saved: ")
    assert (tmp_path / "my talk.json").exists()
    say("/reset", "the conversation is forgotten")
    say(f"/save {tmp_path}/my talk.json", "holds another conversation")
    say("/load last", "loaded: 6 messages", "the last, by the assistant: Hello, ")
    say("/system none", "the system message is removed")
    chat.send("/quit\n")
    assert chat.end() == 0


def test_bye_leaves(chat: Terminal) -> None:
    chat.send("/bye\n")
    assert chat.end() == 0


def test_lines_break_between_words_at_the_edge(scripted: str) -> None:
    """The answers, and what is said about them; tests/test_wrap.py has the rest."""
    with Terminal("chat", scripted, columns=10) as chat:
        chat.expect("> ")
        chat.send("hi\n")
        chat.expect("Hello, \r\nwide 🌍!")
        chat.expect("> ")
        chat.send("/system\n")
        chat.expect("there is \r\nno system\r\nmessage")


def test_a_conversation_that_outgrows_the_context_is_kept(scripted: str) -> None:
    with Terminal("chat", scripted, "--context", "64", "--no-loop-detection") as chat:
        chat.expect("> ")
        chat.send("hi\n")
        chat.expect("Hello, wide 🌍!")
        chat.expect("> ")
        chat.send(f"{'x' * 80}\n")
        chat.expect("error: the prompt has ")
        assert "tokens, but the context holds 64" in chat.expect("hint: ")
        chat.expect("/reset")
        chat.expect("> ")
        assert len(json.loads(last_path().read_text())["messages"]) == 2
        chat.send("/reset\n")
        chat.expect("> ")
        chat.send("go on forever\n")
        chat.expect("(ended: the context of 64 tokens is full; /reset begins anew)")
        chat.expect("> ")
        chat.send("/exit\n")
        assert chat.end() == 0


def test_an_answer_that_runs_in_circles_ends(scripted: str) -> None:
    with Terminal("chat", scripted, "--context", "512") as chat:
        chat.expect("> ")
        chat.send("go on forever\n")
        chat.expect("(ended: it repeats itself; /params loop_detection false lets it go on)")
        chat.expect("> ")
        chat.send("/params loop_detection false\n")
        chat.expect("loop_detection       false  (default true)")
        chat.expect("> ")
        chat.send("go on forever\n")
        chat.expect("(ended: the context of 512 tokens is full; /reset begins anew)")
        chat.expect("> ")
        chat.send("/exit\n")
        assert chat.end() == 0


def test_the_download_is_offered_and_can_be_declined() -> None:
    with Terminal("chat") as terminal:
        terminal.expect("smollm2:135m is not installed. Download 98.4 MB now? [Y/n] ")
        terminal.send("n\n")
        terminal.expect("hint: localinfer pull smollm2:135m")
        assert terminal.end() == 1


def test_the_question_can_be_left_with_ctrl_c() -> None:
    with Terminal("chat") as terminal:
        terminal.expect("[Y/n] ")
        terminal.interrupt("\r\n")  # what comes next begins a line
        assert terminal.end() == 130
        assert "error" not in terminal.all


def test_the_download_that_was_agreed_to_is_tried() -> None:
    with Terminal("chat") as terminal:
        terminal.expect("[Y/n] ")
        terminal.send("y\n")
        terminal.expect("asking the package index")
        terminal.expect("could not be had from any of its sources")
        assert terminal.end() == 1


@pytest.mark.parametrize("answer", ["y", ""])
def test_after_the_download_the_chat_begins(scripted: str, tmp_path: Path, answer: str) -> None:
    """The question has been read from the same terminal by then. The download itself is test_hub's."""
    pretend = (
        "import os, localinfer.cli.pull\n"
        f"localinfer.cli.pull.pull_model = lambda name: os.symlink({scripted!r}, name)\n"
    )
    with Terminal("chat", before=pretend, folder=tmp_path) as terminal:
        terminal.expect("[Y/n] ")
        terminal.send(f"{answer}\n")
        terminal.expect("/help for help")
        terminal.expect("> ")
        terminal.send("hi\n")
        terminal.expect("Hello, wide 🌍!")
        terminal.expect("> ")
        terminal.send("\x04")
        assert terminal.end() == 0


def test_a_local_file_is_taken_before_a_download_is_offered(scripted: str, tmp_path: Path) -> None:
    (tmp_path / "smollm2:135m").symlink_to(scripted)
    command = [sys.executable, "-m", "localinfer", "chat", "smollm2:135m"]
    done = subprocess.run(command, input=b"hi\n", cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "Hello, wide 🌍!\n", b"")


def test_a_chat_refuses_a_system_message_in_another_encoding(scripted: str) -> None:
    command = [sys.executable, "-m", "localinfer", "chat", scripted, "--system", b"Gr\xfc\xdfe"]
    done = subprocess.run(command, input=b"hi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: --system is not valid UTF-8")


# --- the chat at a pipe ------------------------------------------------------------------------------------------


def test_a_chat_at_a_pipe(scripted: str) -> None:
    command = [sys.executable, "-m", "localinfer", "chat", scripted]
    script = 'hi\nshow colours\n"""/params"""\n/params top_k 3\n'
    done = subprocess.run(command, input=script.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.decode() == "Hello, wide 🌍!\n\x1b[31mred\x07\x9b1mdone\nHello, wide 🌍!\n", (
        "a pipe gets it as it is"
    )
    assert done.stderr.decode() == "top_k                3  (default 40)\n"
    done = subprocess.run(command, input=b"hi\n/nonsense\nhi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (1, "Hello, wide 🌍!\n"), "a script stops at the first error"
    assert b"error: there is no command /nonsense" in done.stderr


def test_a_chat_needs_a_chat_model(tmp_path: Path) -> None:
    base = write_scripted_model(tmp_path / "base.gguf", template="")
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[-1]['content'] }}")
    command = [sys.executable, "-m", "localinfer", "chat", str(base)]
    done = subprocess.run(command, input=b"hi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"has no chat template" in done.stderr
    done = subprocess.run([*command, "--template", str(template)], input=b"hi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (0, "Hello, wide 🌍!\n"), done.stderr
    done = subprocess.run([*command, "--template", "absent"], input=b"hi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_chat_goes_on_where_nothing_can_be_saved(scripted: str, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    command = [sys.executable, "-m", "localinfer", "chat", scripted]
    done = subprocess.run(command, input=b"hi\nhi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (0, 2 * "Hello, wide 🌍!\n")
    assert done.stderr.count(b"/load last will not find this conversation") == 1


def session(params: SamplingParams) -> Session:
    """One for commands that need no model."""
    return Session(None, None, Conversation(), params)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [f for f in fields(SamplingParams) if f.name in CHAT_PARAMS], ids=lambda f: f.name)
def test_every_parameter_of_a_chat_can_be_set(field: Field[object]) -> None:
    params = SamplingParams(max_tokens=2)
    text, value = {"bool": ("true", True), "float": ("0.5", 0.5), "tuple[str, ...]": ("a b", ("a b",))}.get(
        str(field.type), ("1", (1,) if "tuple" in str(field.type) else 1)
    )
    if field.name == "dry_base":
        text, value = "2", 2.0
    chat = session(params)
    chat.run_command(f"/params {field.name} {text}")
    assert getattr(chat.params, field.name) == value
    chat.run_command(f"/params {field.name} default")
    assert chat.params == params


def test_parameters_are_shown_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(CHAT_PARAMS) <= {field.name for field in fields(SamplingParams)}
    defaults = SamplingParams(temperature=0.7, ignore_eos=True, stop=('say "no"', "\n"), stop_token_ids=(3, 5))
    chat = session(defaults)
    chat.run_command("/params")
    shown = capsys.readouterr().err
    assert "ignore_eos           true\n" in shown
    assert "seed                 none\n" in shown
    assert 'stop                 "say \\"no\\"" "\\n"\n' in shown
    for line in shown.splitlines()[:-1]:
        chat.run_command(f"/params {line}")
    assert chat.params == defaults
    capsys.readouterr()
    for typed, line in (
        ("ignore_eos off", "ignore_eos           false  (default true)"),
        ("--top-k=5", "top_k                5  (default 0)"),
        ("Top-P 1", "top_p                1"),
        ("stop = a=b", 'stop                 "a=b"  (default "say \\"no\\"" "\\n")'),
        ("stop_token_ids 7, 8", "stop_token_ids       7 8  (default 3 5)"),
        ("stop_token_ids none", "stop_token_ids       none  (default 3 5)"),
        ("seed 5", "seed                 5  (default none)"),
        ("seed NONE", "seed                 none"),
    ):
        chat.run_command(f"/params {typed}")
        assert capsys.readouterr().err == line + "\n"


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("topk 3", "there is no sampling parameter topk", "did you mean top_k"),
        ("xyzzy 3", "there is no sampling parameter xyzzy", "/params shows all of them"),
        ("logprobs true", "logprobs has no effect in a chat", "/params shows what has"),
        ("ignore_eos maybe", "ignore_eos takes true or false, not 'maybe'", "/params ignore_eos default resets it"),
        ("top_k 1.5", "top_k takes a whole number, not '1.5'", "/params top_k default resets it"),
        ("stop_token_ids 1 x", "stop_token_ids takes a whole number, not '1 x'", "/params stop_token_ids default"),
        ('stop "\\x"', "stop takes a text, not", "/params stop default resets it"),
    ],
)
def test_parameters_that_make_no_sense(typed: str, message: str, hint: str) -> None:
    with pytest.raises(LocalInferError) as caught:
        session(SamplingParams()).run_command(f"/params {typed}")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_the_help_fits_a_terminal_of_80_columns() -> None:
    assert all(len(line) < 80 for line in HELP.splitlines())
    commands = session(SamplingParams()).commands.handlers
    for word in [*commands, *ALIASES]:
        assert word in HELP
    assert set(ALIASES.values()) <= set(commands)
