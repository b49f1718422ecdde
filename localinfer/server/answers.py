"""The answers of a chat: how the model thinks and calls tools, and how that is read from what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localinfer.engine.llm import LLM
from localinfer.errors import LocalInferError
from localinfer.server.errors import invalid
from localinfer.server.schemas.chat import ChatCompletionRequest, NamedTool
from localinfer.text.answer_marks import AnswerMarks
from localinfer.text.grammar import Grammar
from localinfer.text.tool_grammar import call_grammar


class AnswerForm(AnswerMarks):
    """What the answers to one request may consist of. ApiError 400 for tools that the model cannot be asked to call."""

    def __init__(self, fields: ChatCompletionRequest, tools: Sequence[Any] | None, llm: LLM) -> None:
        """`tools` are those of the fields as they came: their further keys reach the chat template."""
        self._llm = llm
        self._fields = fields
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

    def grammar(self) -> Grammar | None:
        """What binds the answer if a call is forced. ApiError 400 if that cannot be done for this model."""
        form = self._llm.tool_format
        if not self.forced or form is None:
            return None
        tools = {self._named: self.tools[self._named]} if self._named is not None else self.tools
        several = self._named is None and self._fields.parallel_tool_calls is not False
        thinking = self._llm.reasoning_format if self.thinking else None
        try:
            return call_grammar(form, tools, self._llm.tokenizer, several=several, thinking=thinking)
        except LocalInferError as error:
            raise invalid(f"tool_choice: {error.message}", param="tool_choice", code="unsupported_parameter") from error
