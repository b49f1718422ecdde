"""One answer of the model: what it thinks, says and calls, shown as it comes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localinfer.cli.interrupt import interrupt_calls
from localinfer.engine.llm import LLM, Completion, TextStream
from localinfer.engine.sampling import SamplingParams
from localinfer.text.answer_marks import AnswerMarks, new_call_id
from localinfer.text.answer_reader import SEAL, Call

Message = dict[str, Any]


class View(Protocol):
    """Whoever shows an answer. Where `raw`, it gets the text as the model wrote it, and else its pieces."""

    raw: bool

    def said(self, text: str) -> None: ...

    def thought(self, text: str, tokens: int) -> None:
        """A piece of a thought, or none; `tokens` were thought by now."""

    def over(self) -> None: ...


@dataclass
class Answered:
    """An answer that is over: its figures, and in parts; `thought_tokens` of the tokens were the thought's."""

    completion: Completion
    content: str
    thought: str
    thought_tokens: int
    calls: list[Call] = field(default_factory=list)

    @property
    def message(self) -> Message:
        """As the conversation has it. Its tokens come along where they are those of its content."""
        if not self.thought and not self.calls and self.content == self.completion.text:
            return self.completion.message
        message: Message = {"role": "assistant", "content": self.content}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": new_call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message


def answer(
    llm: LLM,
    messages: Sequence[Message],
    params: SamplingParams,
    view: View,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> Answered:
    """Asks the model. `tools` are described as in OpenAI's API. Ctrl-C ends the answer. Raises as `LLM.chat` does."""
    stream, marks = begin(llm, messages, params, tools=tools, variables=variables)
    with stream, interrupt_calls(stream.cancel):
        return follow(stream, marks, view)


def begin(
    llm: LLM,
    messages: Sequence[Message],
    params: SamplingParams,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> tuple[TextStream, AnswerMarks]:
    """The answer as it will come, and how it is read."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    form = llm.tool_format if tools else None
    marks = AnswerMarks(llm.tokenizer, llm.reasoning_format, form, schemas)
    prompt = llm.chat_tokens(messages, {**(variables or {}), **({"tools": list(tools)} if tools else {})})
    marks.look_at(prompt)
    params = params.changed(thought=llm.thought(prompt))
    if form is not None:
        from localinfer.text.tool_grammar import call_bounds

        params = params.changed(calls=call_bounds(form, schemas, llm.tokenizer, several=True, forced=False))
    return llm.stream(prompt, params, decoder=marks.decoder()), marks


def follow(stream: TextStream, marks: AnswerMarks, view: View) -> Answered:
    """Shows an answer to its end."""
    reader = marks.reader()
    content: list[str] = []
    thought: list[str] = []
    calls: list[Call] = []
    thought_tokens = fresh = 0  # `fresh` ones have brought no piece yet
    for chunk in stream:
        if view.raw:
            view.said(chunk.text.replace(SEAL, ""))
        pieces = reader.push(chunk.text) + (reader.finish() if chunk.finish_reason is not None else [])
        fresh += len(chunk.tokens)
        for piece in pieces:
            if isinstance(piece, Call):
                calls.append(piece)
            elif piece.kind == "reasoning":
                thought.append(piece.text)
                thought_tokens += fresh
                if not view.raw:
                    view.thought(piece.text, thought_tokens)
            else:
                content.append(piece.text)
                if not view.raw:
                    view.said(piece.text)
            fresh = 0
    view.over()
    return Answered(stream.completion, "".join(content), "".join(thought), thought_tokens, calls)
