"""A chat in the terminal: messages in, streamed answers out, and the commands that begin with a slash."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from localinfer.cli.conversation import Conversation, last_path, load
from localinfer.cli.interrupt import interrupt_calls
from localinfer.cli.messages import Message, MessageReader
from localinfer.cli.output import aside, emit, error, note
from localinfer.cli.statistics import context_use, rates
from localinfer.engine.llm import LLM, Completion
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import ContextLengthError, LocalInferError

HELP = '''\
/help                 this list
/reset                forget the conversation, keep the system message
/system TEXT          set the system message (none: remove it) and forget the conversation
/params [NAME VALUE]  show the sampling parameters, or set one ("default" as the value resets it)
/stats                tokens, cache and speed of the last answer
/save FILE            write the conversation to a file
/load FILE            go on with a saved conversation; "/load last" is where the last chat ended
/exit                 leave; so do Ctrl-D, and Ctrl-C twice
A line that ends with \\ goes on in the next. """ begins and ends a message of several lines.
Ctrl-C stops an answer.'''

# Types of sampling parameters: what a person would call them, and how to read them.
_KINDS: dict[type, tuple[str, Callable[[str], object]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("a text", str),
}


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
            except KeyboardInterrupt:
                if interrupted:
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
        word, _, rest = line.partition(" ")
        if word not in self._commands:
            raise LocalInferError(
                f"there is no command {word}", '/help lists them; to send such a message, put it between """ and """'
            )
        self._commands[word](rest.strip())

    def answer(self, message: str) -> None:
        """Asks the model and streams its answer; both become part of the conversation. Raises as `LLM.chat` does."""
        asked = {"role": "user", "content": message}
        try:
            stream = self.llm.chat([*self.conversation.with_system(), asked], self.params, stream=True)
        except ContextLengthError as problem:
            raise ContextLengthError(
                problem.message,
                "the message was not added; /reset forgets the conversation, a larger --context gives more room",
            ) from problem
        with stream, interrupt_calls(stream.cancel):
            for chunk in stream:
                emit(chunk.text)
        self.last = completion = stream.completion
        emit("\n")
        self.conversation.messages += [asked, completion.message]
        self._keep()
        if completion.finish_reason == "cancelled":
            note("(stopped)")
        elif completion.finish_reason == "length":
            note(f"(the answer ends here: {completion.finish_detail})")
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
        self.conversation.system = rest
        self.conversation.messages.clear()
        note("the system message is set, the conversation is forgotten" if rest else "there is no system message now")

    def _params(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if name:
            self.params = self.params.changed(**{name: self._parsed(name, value.strip())})
        shown = [f.name for f in fields(self.params)] if not name else [name]
        for each in shown:
            note(f"{each:20} {getattr(self.params, each)}")

    def _parsed(self, name: str, value: str) -> object:
        hint = get_type_hints(SamplingParams).get(name)
        if value == "default" or hint is None:  # `changed` words the error of an unknown name
            return getattr(self.defaults, name, None)
        kinds = get_args(hint) or (hint,)
        if type(None) in kinds and value.lower() == "none":
            return None
        kind = next(kind for kind in kinds if kind in _KINDS)
        words, parse = _KINDS[kind]
        try:
            return (parse(value),) if get_origin(hint) is tuple else parse(value)
        except (ValueError, KeyError):
            raise LocalInferError(f"{name} takes {words}, not {value!r}", "/params shows all of them") from None

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
        path = self._path(rest)
        self.conversation.save(path, self.llm.name)
        note(f"saved: {path}")

    def _load(self, rest: str) -> None:
        path = last_path() if rest == "last" else self._path(rest)
        self.conversation = load(path)
        note(f"loaded: {len(self.conversation.messages)} messages")
        if self.conversation.messages:
            note(f"the last was: {self.conversation.messages[-1]['content']}")

    def _path(self, rest: str) -> Path:
        if not rest:
            raise LocalInferError("a file name is missing", "for example /save talk.json")
        return Path(rest).expanduser()

    def _exit(self, rest: str) -> None:
        raise Leave
