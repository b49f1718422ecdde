"""The commands of a chat, which begin with a slash."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localinfer.cli.chat_params import check_name, described, parsed, split_setting
from localinfer.cli.code_blocks import code_blocks, to_clipboard
from localinfer.cli.conversation import Conversation, load
from localinfer.cli.output import emit, harmless, note
from localinfer.cli.saved import last_path, meant, piped_path, saved_conversations
from localinfer.cli.statistics import context_use, rates
from localinfer.errors import LocalInferError

if TYPE_CHECKING:
    from localinfer.cli.chat_session import Session

HELP = '''\
The last message and its answer
  /regen [back|next|N]  answer again, or go to another version; ? lists them
  /edit [editor]        change your last message, here or in $EDITOR
  /undo                 take the last message and its answer away
  /copy [N]             the last code block, or the N-th, to the clipboard
  /stats                tokens, cache and speed of the last answer
  /tokens [TEXT]        how many tokens the conversation, or a text, has
Conversations, which are kept as you talk
  /list                 those that were kept
  /resume [NAME]        go on with one: its number, name, or words of its
                        title; the last without
  /reset                begin a new one, keep the system message; also /new
  /save FILE            write the conversation to a file
  /load FILE            go on with a saved conversation; "last": where the
                        last chat ended
Settings
  /system [TEXT]        show the system message, or set it and begin anew;
                        "none" removes it
  /params [NAME VALUE]  show the sampling parameters, or set one to a value or
                        to "default"
  /think [show|hide]    the last thought; show thoughts, or one line of each
  /think on|off         let the model think first, or not
  /markdown on|off      draw answers, or show them as they were written
  /help                 this list; also /?
  /exit                 leave; so do /quit, /bye, Ctrl-D, and Ctrl-C twice
A line that ends with \\ goes on in the next.
""" begins and ends a message of several lines.
Ctrl-C stops an answer, or clears what is typed. Ctrl-R searches what you said.'''

ALIASES = {"/?": "/help", "/quit": "/exit", "/bye": "/exit", "/new": "/reset"}
SHOWN_OF_LAST = 200  # characters of the last message that `/load` shows
LISTED = 20  # conversations that `/list` shows
PIECES = 200  # tokens of a text that `/tokens` shows


class Leave(Exception):
    """The person wants to go."""


class Commands:
    """What a person can tell a session to do."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.handlers: dict[str, Callable[[str], None]] = {
            "/help": lambda rest: note(HELP),
            "/regen": self._regen,
            "/edit": self._edit,
            "/undo": self._undo,
            "/copy": self._copy,
            "/stats": self._stats,
            "/tokens": self._tokens,
            "/list": self._list,
            "/resume": self._resume,
            "/reset": self._reset,
            "/save": self._save,
            "/load": self._load,
            "/system": self._system,
            "/params": self._params,
            "/think": self._think,
            "/markdown": self._markdown,
            "/exit": self._exit,
        }

    def run(self, line: str) -> None:
        """Runs a line; LocalInferError says what is wrong with it."""
        typed, _, rest = line.partition(" ")
        word = ALIASES.get(typed.lower(), typed.lower())
        if word not in self.handlers:
            from localinfer.hub.names import near

            guesses = near(word, self.handlers)[:2]
            hint = f"did you mean {' or '.join(guesses)}? " if guesses else ""
            hint += '/help lists them; to send such a message, put it between """ and """'
            raise LocalInferError(f"there is no command {typed}", hint)
        self.handlers[word](rest.strip())

    @property
    def _conversation(self) -> Conversation:
        return self._session.conversation

    def _last_message(self) -> str:
        turn = self._conversation.last_turn
        if not turn:
            raise LocalInferError("you have not said anything yet", "type a message first")
        text: str = turn[0]["content"]
        return text

    # --- the last turn

    def _regen(self, rest: str) -> None:
        message = self._last_message()
        conversation = self._conversation
        count, now = max(1, len(conversation.versions)), conversation.version
        if not rest:
            self._session.answer_again(message)
            if (count := len(conversation.versions)) > 1:
                note(f"(version {count} of {count}; /regen back shows the one before)")
        elif rest == "?":
            for number, turn in enumerate(conversation.versions or [conversation.last_turn]):
                text = " ".join(turn[-1]["content"].split()) if len(turn) > 1 else "(no answer)"
                note(f"{'*' if number == now else ' '} {number + 1}  {_cut(text, 60)}")
        elif rest in ("back", "next") or rest.isdecimal():
            wanted = {"back": now - 1, "next": now + 1}[rest] if not rest.isdecimal() else int(rest) - 1
            if not 0 <= wanted < count:
                words = f"there is {'one version' if count == 1 else f'no version {wanted + 1}'} of this answer"
                raise LocalInferError(words, "/regen makes another, /regen ? lists them")
            conversation.take_version(wanted)
            self._session.keep()
            note(f"(version {wanted + 1} of {count})")
            self._show_last()
        else:
            raise LocalInferError(f"/regen takes back, next, ? or the number of a version, not {rest}")

    def _edit(self, rest: str) -> None:
        message = self._last_message()
        if rest not in ("", "editor"):
            raise LocalInferError(f"/edit takes nothing or editor, not {rest}")
        if not self._session.reader.interactive:
            raise LocalInferError("/edit needs a terminal")
        if rest == "editor" or not self._session.reader.editing:
            from localinfer.cli.editor import edited

            text = edited(message)
        else:
            text = self._session.reader.read_again(message)
        if not text.strip() or text == message:
            note("(not changed)")
            return
        self._session.answer_again(text)

    def _undo(self, rest: str) -> None:
        message = self._last_message()
        self._conversation.drop_turn()
        self._session.keep()
        note(f"taken away: {_cut(' '.join(message.split()), 60)}")

    def _copy(self, rest: str) -> None:
        answers = [m["content"] for m in self._conversation.messages if m["role"] == "assistant"]
        blocks = code_blocks(answers[-1]) if answers else []
        if not blocks:
            raise LocalInferError("the last answer has no code block")
        if rest and not (rest.isdecimal() and 1 <= int(rest) <= len(blocks)):
            raise LocalInferError(f"the last answer has code blocks 1 to {len(blocks)}, and none {rest}")
        block = blocks[int(rest or len(blocks)) - 1]
        if not sys.stdout.isatty():
            emit(block)
            return
        sys.stdout.write(to_clipboard(block))
        sys.stdout.flush()
        lines = block.count("\n")
        note(f"sent {lines} line{'' if lines == 1 else 's'} to the clipboard, if the terminal lets programs do that")

    def _stats(self, rest: str) -> None:
        if self._session.last is None:
            note("there is no answer yet")
            return
        completion, thought = self._session.last.completion, self._session.last.thought_tokens
        note(f"prompt       {completion.prompt_tokens} tokens, {completion.cached_tokens} of them from the cache")
        note(f"prefill      {completion.prefill_seconds:.3f} s")
        note(f"answer       {rates(completion)}" + (f", {thought} of them thought" if thought else ""))
        note(f"ended by     {completion.finish_reason}: {completion.finish_detail}")
        note(f"context      {context_use(completion, self._session.llm.context)}")

    def _tokens(self, rest: str) -> None:
        llm = self._session.llm
        if rest:
            ids = llm.tokenize(rest, add_special=False)
            pieces = [llm.detokenize([token]) for token in ids[:PIECES]]
            shown = " ".join(f"{piece!r}" for piece in pieces)
            note(f"{len(ids)} tokens: {shown}{' …' if len(ids) > PIECES else ''}")
            return
        messages = self._conversation.with_system()
        count = len(llm.chat_tokens(messages, self._session.variables)) if messages else 0
        note(f"the conversation has {count} of {llm.context} tokens, in {len(messages)} messages")

    # --- conversations

    def _list(self, rest: str) -> None:
        every = saved_conversations()
        if not every:
            note("no conversation has been kept yet")
        for number, each in enumerate(every[:LISTED], 1):
            mark = "*" if each.path == self._session.kept else " "
            note(f"{mark}{number:3}  {each.when}  {each.title}")
        if len(every) > LISTED:
            note(f"and {len(every) - LISTED} more: localinfer chat --list shows all")

    def _resume(self, rest: str) -> None:
        saved = meant(rest)
        self._session.conversation, self._session.kept = load(saved.path), saved.path
        self._say_loaded()

    def _reset(self, rest: str) -> None:
        self._begin_anew(self._conversation.system)
        note("the conversation is forgotten")

    def _save(self, rest: str) -> None:
        path = _path(rest, "/save")
        self._conversation.save(path, self._session.llm.name)
        note(f"saved: {path}")

    def _load(self, rest: str) -> None:
        path = last_path() if rest == "last" else _path(rest, "/load")
        self._session.conversation = load(path)
        # What came from elsewhere is kept as a conversation of its own.
        self._session.kept = path if rest == "last" and path != piped_path() else None
        self._session.keep()
        self._say_loaded()

    def _say_loaded(self) -> None:
        count = len(self._conversation.messages)
        note(f"loaded: {count} message{'' if count == 1 else 's'}")
        if self._conversation.messages:
            last = self._conversation.messages[-1]
            note(f"the last, by the {last['role']}: {_cut(last['content'], SHOWN_OF_LAST)}")

    def _show_last(self) -> None:
        turn = self._conversation.last_turn
        view = self._session.display.view(raw=False)
        view.said(turn[-1]["content"] if len(turn) > 1 else "")
        view.over()
        emit("\n")

    def _begin_anew(self, system: str) -> None:
        self._session.conversation, self._session.kept = Conversation(system), None

    # --- settings

    def _system(self, rest: str) -> None:
        if not rest:
            note(self._conversation.system or "there is no system message")
            return
        self._begin_anew("" if rest.lower() == "none" else rest)
        done = "set" if self._conversation.system else "removed"
        note(f"the system message is {done}, the conversation is forgotten")

    def _params(self, rest: str) -> None:
        session = self._session
        if not rest:
            note(described(session.params, session.defaults))
            note("`localinfer chat --help` says what they do")
            return
        name, value = split_setting(rest)
        check_name(name)
        if value:
            chosen = getattr(session.defaults, name) if value.lower() == "default" else parsed(name, value)
            session.params = session.params.changed(**{name: chosen})
        note(described(session.params, session.defaults, (name,)))

    def _think(self, rest: str) -> None:
        session = self._session
        if not rest:
            thought = session.last.thought if session.last is not None else ""
            note(thought or "there was no thought in the last answer")
        elif rest in ("show", "hide"):
            session.display.thoughts = rest == "show"
            note(f"thoughts are {'shown' if rest == 'show' else 'told in one line'}")
        elif rest in ("on", "off"):
            from localinfer.cli.thinking import thinking_variables

            session.variables |= thinking_variables(session.llm.chat_template, rest == "on")
            note(f"the model {'thinks' if rest == 'on' else 'does not think'} before it answers")
        else:
            raise LocalInferError(f"/think takes show, hide, on or off, not {rest}")

    def _markdown(self, rest: str) -> None:
        if rest not in ("", "on", "off"):
            raise LocalInferError(f"/markdown takes on or off, not {rest}")
        if rest:
            self._session.display.markdown = rest == "on"
        note(f"answers are {'drawn' if self._session.display.markdown else 'shown as they were written'}")

    def _exit(self, rest: str) -> None:
        raise Leave


def _cut(text: str, length: int) -> str:
    return harmless(text if len(text) <= length else text[:length] + "…")


def _path(rest: str, command: str) -> Path:
    if not rest:
        raise LocalInferError("a file name is missing", f"for example {command} talk.json")
    if "\0" in rest:
        raise LocalInferError("no file name has a zero byte in it")
    if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "\"'":
        rest = rest[1:-1]
    return Path(os.path.expanduser(rest))
