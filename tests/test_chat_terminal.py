"""The chat as a person at a terminal meets it, and as a script at a pipe does."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from localinfer.cli.conversation import Conversation, last_path, load
from localinfer.cli.interrupt import interrupt_calls, interrupt_ends
from localinfer.cli.messages import MessageReader
from localinfer.errors import FormatError, LocalInferError

# --- messages ----------------------------------------------------------------------------------------------------


def messages_of(text: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    reader = MessageReader(tmp_path / "history")
    found = []
    while True:
        try:
            found.append(reader.read())
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
    said.add("user", 'multi\nline "quoted" 🙂')
    said.add("assistant", "\x1b[31m answer")
    path = tmp_path / "folder" / "talk.json"
    said.save(path, "a model")
    assert load(path) == said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said.add("user", "again")
    said.save(path, "a model")
    assert load(path) == said
    assert [p.name for p in path.parent.iterdir()] == ["talk.json"]
    assert load(path).with_system()[0] == {"role": "system", "content": "Be brief."}


def test_saving_spares_files_that_are_no_conversations(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(LocalInferError, match="no saved conversation"):
        Conversation().save(path, "a model")
    assert path.read_text() == "precious"
    with pytest.raises(LocalInferError, match="cannot be written"):
        Conversation().save(path / "under a file", "a model")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b'{"messages": 3}', b'{"messages": [{"role": "user"}]}', b"[" * 100_000,
     b'{"messages": [{"role": "boss", "content": "x"}]}', b'{"messages": [{"role": "user", "content": 5}]}'],
)  # fmt: skip
def test_loading_explains_a_wrong_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"wrong\.json is no saved conversation"):
        load(path)
    with pytest.raises(LocalInferError, match="cannot be read"):
        load(tmp_path / "absent.json")


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
