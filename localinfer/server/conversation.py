"""What the endpoints that answer conversations have in common, whatever their fields are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from localinfer.engine.admission import HOW_TO_ASK, MADE_FOR
from localinfer.engine.llm import LLM
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Job
from localinfer.server.answers import AnswerForm
from localinfer.server.errors import invalid
from localinfer.server.generation import Task
from localinfer.server.messages import alternating, has_late_system, shows_late_system
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.chat import ChatCompletionRequest
from localinfer.text.chat_template import TemplateRefusal


def reads_effort(llm: LLM) -> bool:
    """Whether the model's chat template can be told how hard to think."""
    return llm.chat_template is not None and "reasoning_effort" in llm.chat_template.source


class Conversation(Task[ChatCompletionRequest]):
    """One conversation to be answered. Its fields are those of /v1/chat/completions, perhaps translated."""

    form: AnswerForm  # set by `ask`

    def ask(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> list[Job]:
        """The engine's job for these messages, as the chat template gets them. ApiError for what makes no sense."""
        fields, llm = self.fields, self.model.llm
        if llm.purpose != "text":
            raise invalid(
                f"the model {self.model.name} does not chat: {MADE_FOR[llm.purpose]}; {HOW_TO_ASK[llm.purpose]}",
                code="unsupported_model",
            )
        if llm.chat_template is None:
            raise invalid(
                f"the model {self.model.name} has no chat template, it is not made for conversations: ask "
                "/v1/completions to continue a text, or start the server with --template",
                code="unsupported_model",
            )
        self.form = AnswerForm(fields, tools, llm)
        budget = thinking_budget(fields)
        variables = {**_of_budget(budget, llm.chat_template.source), **variables, **self.form.variables}
        prompt, changed = prompt_of(llm, messages, variables)
        if changed:
            self.body = replace(self.body, unknown=(*self.body.unknown, "messages.role"))
        self.form.look_at(prompt)
        calls = self.form.calls()
        if self.form.unbound:
            self.body = replace(self.body, unknown=(*self.body.unknown, *self.form.unbound))
        defaults = llm.chat_defaults.changed(calls=calls, thinking_budget=budget)
        return self._job(prompt, defaults, "messages")

    def continue_text(self, prompt: Sequence[int]) -> list[Job]:
        """The engine's job for a text that is continued as it is."""
        self.form = AnswerForm(self.fields, None, self.model.llm)
        return self._job(prompt, SamplingParams(temperature=1.0), "prompt")

    def _job(self, prompt: Sequence[int], defaults: SamplingParams, what: str) -> list[Job]:
        fields, llm = self.fields, self.model.llm
        wanted = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        if fields.top_logprobs and not fields.logprobs:
            raise invalid("top_logprobs: it needs logprobs to be true", param="top_logprobs")
        params = sampling_params(
            fields,
            defaults,
            room_for_answer(len(prompt), llm.context, wanted, what),
            logprobs=bool(fields.logprobs),
            top_logprobs=fields.top_logprobs or 0,
        )
        if params.calls is not None and params.calls.forced and params.grammar is not None:
            raise invalid("tool_choice: an answer cannot be a call and have a format of its own", param="tool_choice")
        if what == "messages":
            params = params.changed(thought=llm.thought(prompt))
        self.prepare(params)
        return [Job(prompt, params, self.form.decoder(self.skip_special), fields.priority or 0)]


def prompt_of(llm: LLM, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any]) -> tuple[Sequence[int], bool]:
    """The prompt of a conversation, and whether its roles had to change for that.

    Coding agents send several messages of the user in a row, and words of the system between them. Templates that
    refuse that, or pass over it, get the same words in an order of roles that they take.
    """
    assert llm.chat_template is not None
    taking_turns = alternating(messages)
    if taking_turns == list(messages):
        return llm.chat_tokens(messages, variables), False
    if has_late_system(messages) and not shows_late_system(llm.chat_template):
        return llm.chat_tokens(taking_turns, variables), True
    try:
        return llm.chat_tokens(messages, variables), False
    except TemplateRefusal:
        return llm.chat_tokens(taking_turns, variables), True


def thinking_budget(fields: ChatCompletionRequest) -> int | None:
    """How many tokens the model may think, in whatever field; None: as many as it likes. ApiError 400 for several."""
    names = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens")
    given = {name: value for name in names if (value := getattr(fields, name)) is not None}
    if len(set(given.values())) > 1:
        raise invalid(f"these say different things: {', '.join(given)}", param=list(given)[1])
    budget = next(iter(given.values()), -1)
    return None if budget < 0 else budget


def _of_budget(budget: int | None, template: str) -> dict[str, Any]:
    """What a chat template may want to know of it."""
    if budget is None:
        return {}
    known = {"thinking_budget": budget} if "thinking_budget" in template else {}
    return {"enable_thinking": False, **known} if budget == 0 else known
