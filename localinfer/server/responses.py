"""POST /v1/responses: OpenAI's newer protocol, translated into a chat completion's. Nothing is kept in between."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.request import Output, Request
from localinfer.engine.thread import Job
from localinfer.server.conversation import Conversation, reads_effort
from localinfer.server.errors import ApiError
from localinfer.server.fields import Body
from localinfer.server.generation import generate
from localinfer.server.registry import ServedModel
from localinfer.server.response_input import Tools, template_items
from localinfer.server.schemas.chat import ChatCompletionRequest
from localinfer.server.schemas.responses import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseObject,
    ResponsesRequest,
    ResponseUsage,
)
from localinfer.server.schemas.sampling import JsonSchemaFormat, ResponseFormat
from localinfer.server.streaming import event
from localinfer.text.answer_reader import Call, Piece, Said


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, ResponsesTask)


class ResponsesTask(Conversation):
    """One conversation to be answered."""

    schema = ResponsesRequest
    path = "/v1/responses"
    id_prefix = "resp"

    def __init__(self, body: Body[Any], model: ServedModel) -> None:
        self._asked: ResponsesRequest = body.fields
        self._tools = Tools(self._asked.tools or (), self._asked.tool_choice)
        without_effect = [f"tools.{kind}" for kind in self._tools.left_out]
        effort = self._asked.reasoning.effort if self._asked.reasoning else None
        self._effort = effort if reads_effort(model.llm) else None
        if effort != self._effort:  # clients always send one
            without_effect.append("reasoning.effort")
        if without_effect:
            body = replace(body, unknown=(*body.unknown, *without_effect))
        super().__init__(body, model)

    def translated(self) -> ChatCompletionRequest:
        asked = self._asked
        form = asked.text.format if asked.text is not None else None
        wanted = None
        if form is not None:
            inner = JsonSchemaFormat(schema=form.schema) if form.type == "json_schema" else None
            wanted = ResponseFormat(type=form.type, json_schema=inner)
        return ChatCompletionRequest(
            messages=[],
            max_tokens=asked.max_output_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            stream=asked.stream,
            tools=self._tools.schemas,
            tool_choice=self._tools.choice,
            parallel_tool_calls=asked.parallel_tool_calls,
            response_format=wanted,
            chat_template_kwargs=asked.chat_template_kwargs,
        )

    def jobs(self) -> list[Job]:
        variables = dict(self._asked.chat_template_kwargs or {})
        if self._effort is not None:
            variables["reasoning_effort"] = self._effort
        messages = template_items(self._asked.instructions, self._asked.input, self._tools)
        return self.ask(messages, self._tools.shown, variables)

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        self._reader = self.form.reader()
        self._items = _Items(self._tools)

    def whole(self, texts: Sequence[str]) -> ResponseObject:
        for piece in self._reader.whole(texts[0]):
            self._items.write(piece)
        self._items.close()
        return self._response()

    def opening(self) -> bytes:
        response = self._response(under_way=True)
        started = [self._items.event(f"response.{kind}", {"response": response}) for kind in ("created", "in_progress")]
        return b"".join(started)

    def events(self, outputs: Sequence[Output]) -> bytes:
        parts = []
        for output in outputs:
            pieces = self._reader.push(output.text) if output.text else []
            if output.finish_reason is not None:
                pieces += self._reader.finish()
            parts += [self._items.write(piece) for piece in pieces]
        return b"".join(parts)

    def closing(self) -> bytes:
        closed = self._items.close()
        response = self._response()
        return closed + self._items.event(f"response.{response.status}", {"response": response})

    def failure(self, error: ApiError) -> bytes:
        return self._items.event("error", {"code": error.code, "message": error.message, "param": error.param})

    def _response(self, under_way: bool = False) -> ResponseObject:
        asked, reason = self._asked, self.requests[0].choices[0].finish_reason
        cut = reason == "length" and not under_way
        return ResponseObject(
            id=self.id,
            created_at=self.created,
            status="in_progress" if under_way else "incomplete" if cut else "completed",
            model=self.model.name,
            output=self._items.finished,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            instructions=asked.instructions,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            tool_choice=asked.tool_choice or "auto",
            tools=asked.tools or [],
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_output_tokens=asked.max_output_tokens,
            usage=None if under_way else self._usage,
        )

    @property
    def _usage(self) -> ResponseUsage:
        usage = self.usage
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(),
            usage.total_tokens,
        )


class _Items:
    """The items of an answer, and the events that tell of them. `finished` are those that are complete."""

    def __init__(self, tools: Tools) -> None:
        self.finished: list[dict[str, Any]] = []
        self._tools = tools
        self._number = 0
        self._kind = ""  # of the item that is open
        self._id = ""
        self._text = ""

    def event(self, kind: str, data: dict[str, Any]) -> bytes:
        encoded = msgspec.json.encode({"type": kind, "sequence_number": self._number, **data})
        self._number += 1
        return event(encoded, kind)

    def write(self, piece: Piece) -> bytes:
        """Events for a piece of the answer."""
        if isinstance(piece, Call):
            return self.close() + self._call(piece)
        return self._said(piece)

    def close(self) -> bytes:
        """Events that end the item that is open."""
        if not self._kind:
            return b""
        kind, text = self._kind, self._text
        place = {"item_id": self._id, "output_index": len(self.finished), "content_index": 0}
        part = _part(kind, text)
        item = _message(self._id, [part], "completed") if kind == "content" else _thought(self._id, [part])
        done = {"text": text, **({"logprobs": []} if kind == "content" else {})}
        name = "output_text" if kind == "content" else "reasoning_text"
        parts = [
            self.event(f"response.{name}.done", {**place, **done}),
            self.event("response.content_part.done", {**place, "part": part}),
            self.event("response.output_item.done", {"output_index": len(self.finished), "item": item}),
        ]
        self.finished.append(item)
        self._kind = ""
        return b"".join(parts)

    def _said(self, piece: Said) -> bytes:
        parts = []
        if self._kind != piece.kind:
            parts.append(self.close())
            self._kind, self._text = piece.kind, ""
            self._id = f"{'msg' if piece.kind == 'content' else 'rs'}_{secrets.token_hex(12)}"
            item = _message(self._id, [], "in_progress") if piece.kind == "content" else _thought(self._id, [])
            parts.append(self.event("response.output_item.added", {"output_index": len(self.finished), "item": item}))
            begun = {"item_id": self._id, "output_index": len(self.finished), "content_index": 0}
            parts.append(self.event("response.content_part.added", {**begun, "part": _part(piece.kind, "")}))
        self._text += piece.text
        place = {"item_id": self._id, "output_index": len(self.finished), "content_index": 0}
        name = "output_text" if piece.kind == "content" else "reasoning_text"
        more: dict[str, Any] = {"logprobs": []} if piece.kind == "content" else {}
        parts.append(self.event(f"response.{name}.delta", {**place, "delta": piece.text, **more}))
        return b"".join(parts)

    def _call(self, call: Call) -> bytes:
        item = self._tools.called(call)
        given, name = (
            ("input", "custom_tool_call_input") if "input" in item else ("arguments", "function_call_arguments")
        )
        begun = {**item, given: "", "status": "in_progress"}
        place = {"item_id": item["id"], "output_index": len(self.finished)}
        parts = [
            self.event("response.output_item.added", {"output_index": len(self.finished), "item": begun}),
            self.event(f"response.{name}.delta", {**place, "delta": item[given]}),
            self.event(f"response.{name}.done", {**place, given: item[given]}),
            self.event("response.output_item.done", {"output_index": len(self.finished), "item": item}),
        ]
        self.finished.append(item)
        return b"".join(parts)


def _message(id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def _thought(id: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": id, "type": "reasoning", "summary": [], "content": content}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "content":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}
