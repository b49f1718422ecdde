"""A chat in the terminal: messages in, streamed answers out. Its commands are in chat_commands.py."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localinfer.cli.answer_view import AnswerView, no_echo
from localinfer.cli.answering import Answered, answer
from localinfer.cli.chat_commands import Commands, Leave
from localinfer.cli.conversation import Conversation
from localinfer.cli.messages import LineCleared, Message, MessageReader
from localinfer.cli.output import aside, emit, error, note
from localinfer.cli.saved import new_path, piped_path
from localinfer.cli.statistics import context_use, rates
from localinfer.cli.tools import MOST_ROUNDS, Toolbox
from localinfer.engine.llm import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import ContextLengthError, LocalInferError


@dataclass
class Display:
    """How answers are shown. `thoughts` None: at a pipe, not at a terminal."""

    markdown: bool = True
    thoughts: bool | None = None

    def view(self, *, raw: bool) -> AnswerView:
        terminal = sys.stdout.isatty()
        thoughts = not terminal if self.thoughts is None else self.thoughts
        return AnswerView(markdown=self.markdown, thoughts=thoughts, raw=raw and thoughts and not terminal)


@dataclass
class Session:
    """One conversation with one loaded model. `params` start as `defaults`.

    It is kept in the file `kept`, which a name is found for once something has been said; "" for none.
    """

    llm: LLM
    reader: MessageReader
    conversation: Conversation
    params: SamplingParams
    display: Display = field(default_factory=Display)
    tools: Toolbox | None = None
    variables: dict[str, Any] = field(default_factory=dict)  # that the chat template gets
    private: bool = False
    kept: Path | None = None

    def __post_init__(self) -> None:
        self.defaults = self.params
        self.last: Answered | None = None
        self._keeping = not self.private
        self.commands = Commands(self)

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
        self.commands.run(line)

    def answer(self, message: str) -> None:
        """Asks the model and streams its answer; both become part of the conversation. Raises as `LLM.chat` does."""
        self._turn(lambda: self.conversation.begin_turn({"role": "user", "content": message}))

    def answer_again(self, message: str) -> None:
        """The same, in place of the last turn, which stays among its versions."""
        self._turn(lambda: self.conversation.begin_version({"role": "user", "content": message}))

    def keep(self) -> None:
        """Saves the conversation as it is; a chat goes on where that is not possible."""
        if not self._keeping:
            return
        try:
            if not self.conversation.messages:
                if self.kept is not None:
                    self.kept.unlink(missing_ok=True)
                return
            if self.kept is None:
                self.kept = new_path() if self.reader.interactive else piped_path()
            self.conversation.save(self.kept, self.llm.name, overwrite=True)
        except (LocalInferError, OSError) as problem:
            note(f"note: {getattr(problem, 'message', problem)}; /load last will not find this conversation")
            self._keeping = False

    def _turn(self, begin: Callable[[], None]) -> None:
        before = replace(self.conversation, messages=list(self.conversation.messages))
        before.versions = list(self.conversation.versions)
        try:
            begin()
            # What was typed is safe before the model has said anything.
            self.keep()
            self._answer_with_tools()
        except BaseException as problem:
            self.conversation = before
            self.keep()
            if not isinstance(problem, ContextLengthError):
                raise
            raise ContextLengthError(
                problem.message,
                "the message was not added; /reset forgets the conversation, a larger --context gives more room"
                + ("; or lower max_tokens with /params" if self.params.max_tokens else ""),
            ) from problem
        self._say_how_it_ended()

    def _answer_with_tools(self) -> None:
        for number in range(MOST_ROUNDS + 1):
            # After the last round the model is shown no tools any more, so that it has to answer.
            tools = self.tools.definitions if self.tools is not None and number < MOST_ROUNDS else []
            with no_echo():
                answered = answer(
                    self.llm,
                    self.conversation.with_system(),
                    self.params,
                    self.display.view(raw=self.tools is None),
                    tools=tools,
                    variables=self.variables,
                )
            if answered.content or not answered.calls:
                emit("\n")
            message = answered.message
            self.conversation.messages.append(message)
            self.last = answered
            if self.tools is None or not answered.calls or answered.completion.finish_reason == "cancelled":
                break
            for call, given in zip(answered.calls, message["tool_calls"], strict=True):
                result = self.tools.run(call)
                self.conversation.messages.append(
                    {"role": "tool", "name": call.name, "tool_call_id": given["id"], "content": result}
                )
            self.keep()
        self.keep()

    def _say_how_it_ended(self) -> None:
        assert self.last is not None
        completion = self.last.completion
        if completion.finish_reason == "cancelled":
            note("(stopped)")
        elif completion.finish_reason == "loop":
            note("(ended: it repeats itself; /params loop_detection false lets it go on)")
        elif completion.finish_reason == "length":
            full = completion.prompt_tokens + len(completion.tokens) >= self.llm.context
            note(f"(ended: {completion.finish_detail}{'; /reset begins anew' if full else ''})")
        if self.reader.interactive:
            aside(f"{rates(completion)}, context {context_use(completion, self.llm.context)}")
