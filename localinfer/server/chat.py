"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.request import Choice, FinishReason, Output
from localinfer.engine.thread import Job
from localinfer.server.conversation import Conversation, reads_effort
from localinfer.server.errors import invalid
from localinfer.server.generation import generate
from localinfer.server.logprobs import chat_logprobs
from localinfer.server.messages import template_messages, template_variables
from localinfer.server.schemas.chat import (
    AnswerMessage,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ToolCall,
)
from localinfer.text.answer_marks import new_call_id
from localinfer.text.answer_reader import Call, Piece, Reader, Said

_encode = msgspec.json.Encoder().encode


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, ChatTask)


class ChatTask(Conversation):
    """One conversation to be answered."""

    schema = ChatCompletionRequest
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def jobs(self) -> list[Job]:
        messages = template_messages(self.fields.messages, self.body.raw["messages"])
        variables = {**template_variables(self.fields), **self._reasoning()}
        return self.ask(messages, self.body.raw.get("tools"), variables)

    def _reasoning(self) -> dict[str, Any]:
        effort = self.fields.reasoning_effort
        if effort is None:
            return {}
        if not reads_effort(self.model.llm):
            raise invalid(
                "not supported by this model, whose chat template does not read it: reasoning_effort",
                param="reasoning_effort",
                code="unsupported_parameter",
            )
        return {"reasoning_effort": effort}

    def start(self, requests: list[Any]) -> None:
        super().start(requests)
        self._streams: dict[int, _Stream] = {}
        self._end = b'},"logprobs":null,"finish_reason":null}' + self.tail

    def whole(self, texts: Sequence[str]) -> ChatCompletion:
        [request] = self.requests
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model.name,
            choices=[self._choice(choice, texts[choice.index]) for choice in request.choices],
            usage=self.usage,
            system_fingerprint=self.fingerprint,
        )

    def _choice(self, choice: Choice, text: str) -> ChatChoice:
        pieces = self.form.reader().whole(text)
        content, thought = (
            "".join(piece.text for piece in pieces if isinstance(piece, Said) and piece.kind == kind)
            for kind in ("content", "reasoning")
        )
        calls = [
            ToolCall(id=new_call_id(), function=CalledFunction(piece.name, piece.arguments))
            for piece in pieces
            if isinstance(piece, Call)
        ]
        message = AnswerMessage(
            content=content if content or not calls else None,
            tool_calls=calls or msgspec.UNSET,
            reasoning_content=thought or msgspec.UNSET,
            reasoning=thought or msgspec.UNSET,
            tokens=list(choice.generated) if self.fields.return_token_ids else msgspec.UNSET,
        )
        logprobs = (
            chat_logprobs(choice.logprobs, self.model.llm.tokenizer.token_bytes) if self.fields.logprobs else None
        )
        return ChatChoice(choice.index, message, _reason(choice.finish_reason, bool(calls)), logprobs)

    def events(self, outputs: Sequence[Output]) -> bytes:
        parts: list[bytes] = []
        for output in outputs:
            index = self.index(output)
            if (stream := self._streams.get(index)) is None:
                parts.append(self._event(index, {"role": "assistant", "content": ""}))
                start = b'data: %b{"index":%d,"delta":{"content":' % (self.head, index)
                stream = self._streams[index] = _Stream(start, self.form.reader())
            pieces = stream.reader.push(output.text) if output.text else []
            if output.finish_reason is not None:
                pieces += stream.reader.finish()
            deltas = [self._delta(stream, piece) for piece in pieces]
            if output.logprob is not None and self.fields.logprobs:
                # The probabilities of a token come with its step, whatever of its text is certain by then.
                entry = chat_logprobs([output.logprob], self.model.llm.tokenizer.token_bytes)
                first, *more = deltas or [{"content": ""}]
                parts.append(self._event(index, first, entry))
                parts += [self._event(index, delta) for delta in more]
            else:
                for delta in deltas:
                    if (text := delta.get("content")) is not None:
                        parts += (stream.start, _encode(text), self._end)
                    else:
                        parts.append(self._event(index, delta))
            if output.finish_reason is not None:
                parts.append(self._last_event(index, output, stream.calls > 0))
        return b"".join(parts)

    def _delta(self, stream: _Stream, piece: Piece) -> dict[str, Any]:
        if isinstance(piece, Said):
            if piece.kind == "content":
                return {"content": piece.text}
            return {"reasoning_content": piece.text, "reasoning": piece.text}
        function = {"name": piece.name, "arguments": piece.arguments}
        call = {"index": stream.calls, "id": new_call_id(), "type": "function", "function": function}
        stream.calls += 1
        return {"tool_calls": [call]}

    def _event(self, index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> bytes:
        return self.event({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

    def _last_event(self, index: int, output: Output, called: bool) -> bytes:
        tokens = output.request.choices[output.index].generated
        delta = {"tokens": list(tokens)} if self.fields.return_token_ids else {}
        return self._event(index, delta, None, _reason(output.finish_reason, called))


@dataclass
class _Stream:
    """An answer that is sent piece by piece: its events up to their text, and how many calls were sent."""

    start: bytes
    reader: Reader
    calls: int = 0


def _reason(reason: FinishReason | None, called: bool) -> str:
    """An answer that was cut off inside of a call, or after one, was cut off."""
    return "tool_calls" if called and reason in (None, "stop") else reason or "stop"
