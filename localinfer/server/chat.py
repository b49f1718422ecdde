"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.engine import Output, Request
from localinfer.engine.thread import Job
from localinfer.server.errors import invalid
from localinfer.server.generation import Task, generate
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.chat import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatMessage,
)
from localinfer.server.streaming import event

_encode = msgspec.json.Encoder().encode


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, ChatTask)


class ChatTask(Task[ChatCompletionRequest]):
    """One conversation to be answered."""

    schema = ChatCompletionRequest
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"

    def jobs(self) -> list[Job]:
        fields, llm = self.fields, self.model.llm
        messages = [
            _for_template(index, message, raw)
            for index, (message, raw) in enumerate(zip(fields.messages, self.body.raw["messages"], strict=True))
        ]
        variables: dict[str, Any] = dict(fields.chat_template_kwargs or {})
        prompt = llm.chat_tokens(messages, variables)
        wanted = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        room = room_for_answer(len(prompt), llm.context, wanted, "messages")
        params = sampling_params(fields, llm.chat_defaults, room)
        skip = fields.skip_special_tokens is not False
        return [Job(prompt, params, lambda: llm.tokenizer.detokenizer(skip_special=skip), fields.priority or 0)]

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        head = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.fingerprint,
        }
        self._head = _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}' if self.include_usage else b"]}"
        self._starts: dict[int, bytes] = {}  # choice -> all of its events up to their text

    def whole(self, texts: Sequence[str]) -> ChatCompletion:
        choices = []
        for index, text in enumerate(texts):
            choice = self.requests[0].choices[index]
            choices.append(ChatChoice(index, AnswerMessage(content=text), choice.finish_reason or "stop"))
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model.name,
            choices=choices,
            usage=self.usage,
            system_fingerprint=self.fingerprint,
        )

    def events(self, outputs: Sequence[Output]) -> bytes:
        parts: list[bytes] = []
        for output in outputs:
            index = self.index(output)
            start = self._starts.get(index)
            if start is None:
                opened = b'data: %b{"index":%d,"delta":{"role":"assistant","content":' % (self._head, index)
                parts += (opened, b'""},"logprobs":null,"finish_reason":null}', self._tail, b"\n\n")
                start = b'data: %b{"index":%d,"delta":{"content":' % (self._head, index)
                self._starts[index] = start
            if output.text:
                parts += (start, _encode(output.text), b'},"logprobs":null,"finish_reason":null}', self._tail, b"\n\n")
            if output.finish_reason is not None:
                parts.append(self._finish(index, output.finish_reason))
        return b"".join(parts)

    def usage_event(self) -> bytes:
        return event(self._head + b'],"usage":' + _encode(self.usage) + b"}")

    def _finish(self, index: int, reason: str) -> bytes:
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
        return event(self._head + _encode(choice) + self._tail)


def _for_template(index: int, message: ChatMessage, raw: dict[str, Any]) -> dict[str, Any]:
    """A message as the chat template gets it. ApiError for contents that are no text."""
    found = {**raw, "role": "system" if message.role == "developer" else message.role}
    if isinstance(message.content, list):
        found["content"] = "\n".join(_text(f"messages[{index}].content", message.content))
    return found


def _text(name: str, parts: Sequence[Any]) -> list[str]:
    for index, part in enumerate(parts):
        if part.type != "text":
            raise invalid(f"{name}[{index}]: this model reads text only, not {part.type}", param=f"{name}[{index}]")
        if part.text is None:
            raise invalid(f"{name}[{index}]: a part of type text needs a text", param=f"{name}[{index}].text")
    return [part.text for part in parts]
