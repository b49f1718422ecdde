"""What the endpoints that answer conversations have in common, whatever their fields are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Job
from localinfer.server.answers import AnswerForm
from localinfer.server.errors import invalid
from localinfer.server.generation import Task
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.chat import ChatCompletionRequest


class Conversation(Task[ChatCompletionRequest]):
    """One conversation to be answered. Its fields are those of /v1/chat/completions, perhaps translated."""

    form: AnswerForm  # set by `ask`

    def ask(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> list[Job]:
        """The engine's job for these messages, as the chat template gets them. ApiError for what makes no sense."""
        fields, llm = self.fields, self.model.llm
        if llm.chat_template is None:
            raise invalid(
                f"the model {self.model.name} has no chat template, it is not made for conversations: ask "
                "/v1/completions to continue a text, or start the server with --template",
                code="unsupported_model",
            )
        self.form = AnswerForm(fields, tools, llm)
        prompt = llm.chat_tokens(messages, {**variables, **self.form.variables})
        self.form.look_at(prompt)
        return self._job(prompt, llm.chat_defaults, "messages")

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
        if (calls := self.form.grammar()) is not None:
            if params.grammar is not None:
                words = "tool_choice: an answer cannot be a call and have a format of its own"
                raise invalid(words, param="tool_choice")
            params = params.changed(grammar=calls)
        self.prepare(params)
        return [Job(prompt, params, self.form.decoder(self.skip_special), fields.priority or 0)]
