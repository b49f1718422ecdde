"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.request import Output
from localinfer.engine.thread import Job
from localinfer.server.errors import invalid
from localinfer.server.generation import Task, generate
from localinfer.server.logprobs import chat_logprobs
from localinfer.server.messages import template_messages, template_variables
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.chat import AnswerMessage, ChatChoice, ChatCompletion, ChatCompletionRequest

_encode = msgspec.json.Encoder().encode


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, ChatTask)


class ChatTask(Task[ChatCompletionRequest]):
    """One conversation to be answered."""

    schema = ChatCompletionRequest
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def jobs(self) -> list[Job]:
        fields, llm = self.fields, self.model.llm
        messages = template_messages(fields.messages, self.body.raw["messages"])
        prompt = llm.chat_tokens(messages, {**template_variables(fields), **self._reasoning()})
        wanted = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        if fields.top_logprobs and not fields.logprobs:
            raise invalid("top_logprobs: it needs logprobs to be true", param="top_logprobs")
        params = sampling_params(
            fields,
            llm.chat_defaults,
            room_for_answer(len(prompt), llm.context, wanted, "messages"),
            logprobs=bool(fields.logprobs),
            top_logprobs=fields.top_logprobs or 0,
        )
        self.prepare(params)
        skip_special = self.skip_special
        return [Job(prompt, params, lambda: llm.tokenizer.detokenizer(skip_special=skip_special), fields.priority or 0)]

    def _reasoning(self) -> dict[str, Any]:
        effort, template = self.fields.reasoning_effort, self.model.llm.chat_template
        if effort is None:
            return {}
        if template is None or "reasoning_effort" not in template.source:
            raise invalid(
                "not supported by this model, whose chat template does not read it: reasoning_effort",
                param="reasoning_effort",
                code="unsupported_parameter",
            )
        return {"reasoning_effort": effort}

    def start(self, requests: list[Any]) -> None:
        super().start(requests)
        self._starts: dict[int, bytes] = {}  # choice -> its events up to their text
        self._end = b'},"logprobs":null,"finish_reason":null}' + self.tail

    def whole(self, texts: Sequence[str]) -> ChatCompletion:
        [request] = self.requests
        token_bytes = self.model.llm.tokenizer.token_bytes
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model.name,
            choices=[
                ChatChoice(
                    choice.index,
                    AnswerMessage(
                        content=texts[choice.index],
                        tokens=list(choice.generated) if self.fields.return_token_ids else msgspec.UNSET,
                    ),
                    choice.finish_reason or "stop",
                    chat_logprobs(choice.logprobs, token_bytes) if self.fields.logprobs else None,
                )
                for choice in request.choices
            ],
            usage=self.usage,
            system_fingerprint=self.fingerprint,
        )

    def events(self, outputs: Sequence[Output]) -> bytes:
        parts: list[bytes] = []
        for output in outputs:
            index = self.index(output)
            if (start := self._starts.get(index)) is None:
                parts.append(self._event(index, {"role": "assistant", "content": ""}))
                start = b'data: %b{"index":%d,"delta":{"content":' % (self.head, index)
                self._starts[index] = start
            if output.logprob is not None and self.fields.logprobs:
                entry = chat_logprobs([output.logprob], self.model.llm.tokenizer.token_bytes)
                parts.append(self._event(index, {"content": output.text}, entry))
            elif output.text:
                parts += (start, _encode(output.text), self._end)
            if output.finish_reason is not None:
                parts.append(self._last_event(index, output))
        return b"".join(parts)

    def _event(self, index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> bytes:
        return self.event({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

    def _last_event(self, index: int, output: Output) -> bytes:
        tokens = output.request.choices[output.index].generated
        delta = {"tokens": list(tokens)} if self.fields.return_token_ids else {}
        return self._event(index, delta, None, output.finish_reason)
