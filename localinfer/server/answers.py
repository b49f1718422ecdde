"""The answers of a chat: how the model thinks and calls tools, and how that is read from what it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from localinfer.engine.llm import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.server.errors import invalid
from localinfer.server.schemas.chat import ChatCompletionRequest, NamedTool
from localinfer.text.answer_marks import AnswerMarks
from localinfer.text.constraint import CallBounds
from localinfer.text.tool_grammar import call_bounds


class AnswerForm(AnswerMarks):
    """What the answers to one request may consist of. ApiError 400 for tools that the model cannot be asked to call."""

    def __init__(self, fields: ChatCompletionRequest, tools: Sequence[Any] | None, llm: LLM) -> None:
        """`tools` are those of the fields as they came: their further keys reach the chat template."""
        self._llm = llm
        self._fields = fields
        self.unbound: list[str] = []  # what a client should know is not enforced
        choice = fields.tool_choice
        self._shown = list(tools or ()) if fields.tools and choice != "none" else None
        schemas = {tool.function.name: tool.function.parameters for tool in fields.tools or ()}
        super().__init__(llm.tokenizer, llm.reasoning_format, llm.tool_format if self._shown else None, schemas)
        if not fields.tools and choice not in (None, "none", "auto"):
            raise invalid("tool_choice: there are no tools", param="tool_choice")
        if isinstance(choice, NamedTool) and choice.function.name not in self.tools:
            raise invalid(f"tool_choice: there is no tool {choice.function.name}", param="tool_choice")
        if len(self.tools) < len(fields.tools or ()):
            raise invalid("tools: two of them have the same name", param="tools")
        if self._shown and llm.chat_template is not None and llm.tool_format is None:
            raise invalid(
                "tools: the chat template of this model shows it no tools, or not how it has to call them",
                param="tools",
                code="unsupported_parameter",
            )

    @property
    def variables(self) -> dict[str, Any]:
        """What the chat template gets."""
        return {"tools": self._shown} if self._shown else {}

    @property
    def forced(self) -> bool:
        """Whether the answer has to be a call."""
        return bool(self._shown) and (self._fields.tool_choice == "required" or self._named is not None)

    @property
    def _named(self) -> str | None:
        choice = self._fields.tool_choice
        return choice.function.name if isinstance(choice, NamedTool) else None

    def calls(self) -> CallBounds | None:
        """What binds the calls in an answer. ApiError 400 for a schema that cannot be enforced where it must be.

        It must be where a call is forced, or the tool is `strict`. Else a call may have any arguments, and `unbound`
        names the tools.
        """
        form, tools = self._llm.tool_format, self.tools
        if not self._shown or form is None:
            return None
        if self._named is not None:
            tools = {self._named: tools[self._named]}
        several = self._named is None and self._fields.parallel_tool_calls is not False
        bind = partial(call_bounds, form, tokenizer=self._llm.tokenizer, several=several, forced=self.forced)
        try:
            return self._tried(bind(tools))
        except LocalInferError as error:
            relaxed = self._relaxed(bind, tools, error)
        try:
            return self._tried(bind(relaxed))
        except LocalInferError as error:
            if self.forced:
                words = f"tool_choice: {error.message}"
                raise invalid(words, param="tool_choice", code="unsupported_parameter") from error
            self.unbound = [f"tools.{name}.parameters" for name in tools]
            return None

    def _relaxed(self, bind: Callable[..., CallBounds], tools: Mapping[str, Any], error: LocalInferError) -> Any:
        """The tools, without the schemas of those that can do without."""
        found = {}
        for number, tool in enumerate(self._fields.tools or ()):
            name, schema = tool.function.name, tool.function.parameters
            if name not in tools:
                continue
            try:
                self._tried(bind({name: schema}))
            except LocalInferError as reason:
                if self.forced or tool.function.strict:
                    param = f"tools[{number}].function.parameters"
                    raise invalid(f"{param}: {reason.message}", param=param, code="unsupported_grammar") from error
                self.unbound.append(f"tools.{name}.parameters")
                schema = {"type": "object"}
            found[name] = schema
        return found

    def _tried(self, calls: CallBounds) -> CallBounds:
        self._llm.engine.prepare(SamplingParams(calls=calls))
        return calls
