"""A chat in the terminal: messages in, streamed answers out, and the commands that begin with a slash."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localinfer.cli.chat_params import check_name, described, parsed, split_setting
from localinfer.cli.conversation import Conversation, last_path, load
from localinfer.cli.interrupt import interrupt_calls
from localinfer.cli.messages import LineCleared, Message, MessageReader
from localinfer.cli.output import Answer, aside, emit, error, note
from localinfer.cli.statistics import context_use, rates
from localinfer.engine.llm import LLM, Completion
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import ContextLengthError, LocalInferError

HELP = '''\
/help                 this list; also /?
/reset                forget the conversation, keep the system message
/system [TEXT]        show the system message, or set it and forget the
                      conversation; "none" removes it
/params [NAME VALUE]  show the sampling parameters, or set one to a value or to
                      "default"
/stats                tokens, cache and speed of the last answer
/save FILE            write the conversation to a file
/load FILE            go on with a saved conversation; "last": where the last
                      chat ended
/exit                 leave; so do /quit, /bye, Ctrl-D, and Ctrl-C twice
A line that ends with \\ goes on in the next.
""" begins and ends a message of several lines.
Ctrl-C stops an answer, or clears what is typed.'''

ALIASES = {"/?": "/help", "/quit": "/exit", "/bye": "/exit"}
SHOWN_OF_LAST = 200  # characters of the last message that `/load` shows


class Leave(Exception):
    """The person wants to go."""


@dataclass
class Session:
    """One conversation with one loaded model. `params` start as `defaults`."""

    llm: LLM
    reader: MessageReader
    conversation: Conversation
    params: SamplingParams

    def __post_init__(self) -> None:
        self.defaults = self.params
        self.last: Completion | None = None
        self._keeping = True
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda rest: note(HELP),
            "/reset": self._reset,
            "/system": self._system,
            "/params": self._params,
            "/stats": self._stats,
            "/save": self._save,
            "/load": self._load,
            "/exit": self._exit,
        }

    def run(self) -> None:
        """Reads and answers messages until the person leaves or the input ends."""
        interrupted = False
        while True:
            try:
                message = self.reader.read()
                interrupted = False
                if message.text.strip():
                    self._take(message)
            except LineCleared:
                interrupted = False
                note("")
            except KeyboardInterrupt:
                if interrupted:
                    note("")
                    return
                interrupted = True
                note("\n(Ctrl-C again, Ctrl-D or /exit to leave)")
            except EOFError:
                if self.reader.interactive:
                    note("")
                return
            except Leave:
                return
            except LocalInferError as problem:
                if not self.reader.interactive:
                    raise
                error(problem.message, problem.hint)

    def _take(self, message: Message) -> None:
        if message.quoted or "\n" in message.text or not message.text.lstrip().startswith("/"):
            self.answer(message.text)
        else:
            self.run_command(message.text.strip())

    def run_command(self, line: str) -> None:
        """Runs a line such as "/params top_k 40"; LocalInferError says what is wrong with it."""
        typed, _, rest = line.partition(" ")
        word = ALIASES.get(typed.lower(), typed.lower())
        if word not in self._commands:
            from localinfer.hub.names import near

            guesses = near(word, self._commands)[:2]
            hint = f"did you mean {' or '.join(guesses)}? " if guesses else ""
            hint += '/help lists them; to send such a message, put it between """ and """'
            raise LocalInferError(f"there is no command {typed}", hint)
        self._commands[word](rest.strip())

    def answer(self, message: str) -> None:
        """Asks the model and streams its answer; both become part of the conversation. Raises as `LLM.chat` does."""
        asked = {"role": "user", "content": message}
        try:
            stream = self.llm.chat([*self.conversation.with_system(), asked], self.params, stream=True)
        except ContextLengthError as problem:
            raise ContextLengthError(
                problem.message,
                "the message was not added; /reset forgets the conversation, a larger --context gives more room"
                + ("; or lower max_tokens with /params" if self.params.max_tokens else ""),
            ) from problem
        with stream, interrupt_calls(stream.cancel):
            written = Answer()
            for chunk in stream:
                written.write(chunk.text)
        self.last = completion = stream.completion
        emit("\n")
        self.conversation.messages += [asked, completion.message]
        self._keep()
        if completion.finish_reason == "cancelled":
            note("(stopped)")
        elif completion.finish_reason == "loop":
            note("(ended: it repeats itself; /params loop_detection false lets it go on)")
        elif completion.finish_reason == "length":
            full = completion.prompt_tokens + len(completion.tokens) >= self.llm.context
            note(f"(ended: {completion.finish_detail}{'; /reset begins anew' if full else ''})")
        if self.reader.interactive:
            aside(f"{rates(completion)}, context {context_use(completion, self.llm.context)}")

    def _keep(self) -> None:
        """Saves the conversation for `/load last`; a chat goes on where that is not possible."""
        try:
            self.conversation.save(last_path(), self.llm.name, overwrite=True)
        except LocalInferError as problem:
            if self._keeping:
                note(f"note: {problem.message}; /load last will not find this conversation")
            self._keeping = False

    def _reset(self, rest: str) -> None:
        self.conversation.messages.clear()
        note("the conversation is forgotten")

    def _system(self, rest: str) -> None:
        if not rest:
            note(self.conversation.system or "there is no system message")
            return
        self.conversation.system = "" if rest.lower() == "none" else rest
        self.conversation.messages.clear()
        note(f"the system message is {'set' if self.conversation.system else 'removed'}, the conversation is forgotten")

    def _params(self, rest: str) -> None:
        if not rest:
            note(described(self.params, self.defaults))
            note("`localinfer chat --help` says what they do")
            return
        name, value = split_setting(rest)
        check_name(name)
        if value:
            chosen = getattr(self.defaults, name) if value.lower() == "default" else parsed(name, value)
            self.params = self.params.changed(**{name: chosen})
        note(described(self.params, self.defaults, (name,)))

    def _stats(self, rest: str) -> None:
        completion = self.last
        if completion is None:
            note("there is no answer yet")
            return
        note(f"prompt       {completion.prompt_tokens} tokens, {completion.cached_tokens} of them from the cache")
        note(f"prefill      {completion.prefill_seconds:.3f} s")
        note(f"answer       {rates(completion)}")
        note(f"ended by     {completion.finish_reason}: {completion.finish_detail}")
        note(f"context      {context_use(completion, self.llm.context)}")

    def _save(self, rest: str) -> None:
        path = self._path(rest, "/save")
        self.conversation.save(path, self.llm.name)
        note(f"saved: {path}")

    def _load(self, rest: str) -> None:
        path = last_path() if rest == "last" else self._path(rest, "/load")
        self.conversation = load(path)
        count = len(self.conversation.messages)
        note(f"loaded: {count} message{'' if count == 1 else 's'}")
        if self.conversation.messages:
            last = self.conversation.messages[-1]
            text = last["content"] if len(last["content"]) <= SHOWN_OF_LAST else last["content"][:SHOWN_OF_LAST] + "…"
            note(f"the last, by the {last['role']}: {text}")

    def _path(self, rest: str, command: str) -> Path:
        if not rest:
            raise LocalInferError("a file name is missing", f"for example {command} talk.json")
        if "\0" in rest:
            raise LocalInferError("no file name has a zero byte in it")
        if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "\"'":
            rest = rest[1:-1]
        return Path(os.path.expanduser(rest))

    def _exit(self, rest: str) -> None:
        raise Leave
