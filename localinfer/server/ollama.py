"""POST /api/chat and /api/generate: Ollama's protocol, translated into a chat completion's.

An answer is lines of JSON, one per step, or one object if `stream` is false.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.request import Output, Request
from localinfer.engine.thread import Job
from localinfer.server.conversation import Conversation, reads_effort
from localinfer.server.errors import ApiError, invalid, ollama_error
from localinfer.server.gaps import gap, marks
from localinfer.server.generation import generate
from localinfer.server.schemas.chat import ChatCompletionRequest, Tool
from localinfer.server.schemas.ollama import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    Options,
)
from localinfer.server.schemas.sampling import JsonSchemaFormat, LlamaSamplers, ResponseFormat
from localinfer.text.answer_reader import Call, Piece, Said

LINES = "application/x-ndjson"
_REASONS = {"stop": "stop", "length": "length", "loop": "stop"}


async def chat(http: HttpRequest) -> Response:
    """The handler of /api/chat."""
    return await generate(http, OllamaChat)


async def complete(http: HttpRequest) -> Response:
    """The handler of /api/generate."""
    return await generate(http, OllamaGenerate)


def served_name(name: str | None) -> str | None:
    """Ollama's clients add a tag to names that have none."""
    return name.removesuffix(":latest") if name else None


class _OllamaTask(Conversation):
    """What both endpoints have in common."""

    id_prefix = "ollama"
    ping = b""
    media_type = LINES
    streams_unless_told = True

    @classmethod
    def model_of(cls, fields: Any) -> str | None:
        return served_name(fields.model)

    def translated(self) -> ChatCompletionRequest:
        asked: OllamaChatRequest | OllamaGenerateRequest = self.body.fields
        options = asked.options or Options()
        limit = options.num_predict
        return ChatCompletionRequest(
            messages=[],
            max_tokens=None if limit is None or limit < 0 else max(1, limit),
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            typical_p=options.typical_p,
            seed=None if options.seed is None or options.seed < 0 else options.seed,
            stop=options.stop,
            **{name: getattr(options, name) for name in LlamaSamplers.__struct_fields__},
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            response_format=_format(asked.format),
            tools=_tools(getattr(asked, "tools", None) or ()),
            thinking_budget=0 if asked.think is False else None,
        )

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        self._reader = self.form.reader()

    def whole(self, texts: Sequence[str]) -> OllamaAnswer:
        return self._last(self._reader.whole(texts[0]))

    def encoded(self, answer: object) -> bytes:
        assert isinstance(answer, OllamaAnswer)
        return _encoded(answer)

    def events(self, outputs: Sequence[Output]) -> bytes:
        pieces: list[Piece] = []
        for output in outputs:
            pieces += self._reader.push(output.text) if output.text else []
        return b"".join(_line(self._answer([piece])) for piece in pieces)

    def closing(self) -> bytes:
        return _line(self._last(self._reader.finish()))

    def failure(self, error: ApiError) -> bytes:
        return ollama_error(error) + b"\n"

    def _answer(self, pieces: Sequence[Piece], **more: Any) -> OllamaAnswer:
        content = "".join(p.text for p in pieces if isinstance(p, Said) and p.kind == "content")
        thought = "".join(p.text for p in pieces if isinstance(p, Said) and p.kind == "reasoning")
        calls = [
            {"function": {"name": p.name, "arguments": json.loads(p.arguments)}} for p in pieces if isinstance(p, Call)
        ]
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return OllamaAnswer(
            model=self.body.fields.model or self.model.name,
            created_at=now,
            **self.said(content, thought, calls),
            **more,
        )

    def said(self, content: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields that say it."""
        raise NotImplementedError

    def _last(self, pieces: Sequence[Piece]) -> OllamaAnswer:
        [request] = self.requests
        usage = self.usage
        first = request.first_token or request.last_token
        return self._answer(
            pieces,
            done=True,
            done_reason=_REASONS.get(request.choices[0].finish_reason or "stop", "stop"),
            total_duration=_nanoseconds(request.last_token - request.arrived),
            load_duration=0,
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=_nanoseconds(first - request.first_step),
            eval_count=usage.completion_tokens,
            eval_duration=_nanoseconds(request.last_token - first),
        )

    def _thinking(self, think: bool | str | None) -> dict[str, Any]:
        """What the chat template gets. How hard to think is named as ignored where the template does not read it."""
        if think is None or isinstance(think, bool):
            return {} if think is None else {"enable_thinking": think}
        if reads_effort(self.model.llm):
            return {"reasoning_effort": think}
        self.body = replace(self.body, unknown=(*self.body.unknown, "think"))
        return {"enable_thinking": True}


class OllamaChat(_OllamaTask):
    """A conversation."""

    schema = OllamaChatRequest
    path = "/api/chat"

    def jobs(self) -> list[Job]:
        asked: OllamaChatRequest = self.body.fields
        if not asked.messages:
            raise invalid("messages: there are none", param="messages")
        messages = [_message(number, message) for number, message in enumerate(asked.messages)]
        return self.ask(messages, asked.tools, self._thinking(asked.think))

    def said(self, content: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class OllamaGenerate(_OllamaTask):
    """One prompt."""

    schema = OllamaGenerateRequest
    path = "/api/generate"

    def jobs(self) -> list[Job]:
        asked: OllamaGenerateRequest = self.body.fields
        if not asked.prompt:
            raise invalid("prompt: it is empty", param="prompt")
        llm = self.model.llm
        if asked.suffix:
            if asked.system:
                raise invalid("system: a gap is filled in without a chat template", param="system")
            self.fields.stop_token_ids = [*marks(llm)]
            return self.continue_text(gap(llm, asked.prompt, asked.suffix))
        if asked.raw or llm.chat_template is None:
            if asked.system:
                raise invalid("system: this is continued as it is, without a chat template", param="system")
            return self.continue_text(llm.tokenize(asked.prompt, parse_special=True))
        system = [{"role": "system", "content": asked.system}] if asked.system else []
        return self.ask([*system, {"role": "user", "content": asked.prompt}], None, self._thinking(asked.think))

    def said(self, content: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": content, "thinking": thought or None}


def _line(answer: OllamaAnswer) -> bytes:
    return _encoded(answer) + b"\n"


def _encoded(answer: OllamaAnswer) -> bytes:
    """With `done` in every line: clients look for it."""
    return msgspec.json.encode({**msgspec.to_builtins(answer), "done": answer.done})


def _message(number: int, message: OllamaMessage) -> dict[str, Any]:
    if message.images:
        raise invalid(f"messages[{number}].images: this model reads text only", param=f"messages[{number}].images")
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        made["reasoning_content"] = message.thinking
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id or f"call{number:04}{place}",
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for place, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        made |= {"name": message.tool_name or "", "tool_call_id": message.tool_call_id or ""}
    return made


def _tools(tools: Sequence[Any]) -> list[Tool]:
    try:
        return [msgspec.convert(tool, Tool) for tool in tools]
    except msgspec.ValidationError as error:
        raise invalid(f"tools: {error}", param="tools") from None


def _format(given: Any) -> ResponseFormat | None:
    if not given:
        return None
    if given == "json":
        return ResponseFormat(type="json_object")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=given))


def _nanoseconds(seconds: float) -> int:
    return max(0, int(1e9 * seconds))
