"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol, translated into a chat completion's."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.request import Choice, Output, Request
from localinfer.engine.thread import Job
from localinfer.server.answers import AnswerForm
from localinfer.server.conversation import Conversation, prompt_of, reads_effort
from localinfer.server.errors import ApiError, anthropic_error, invalid
from localinfer.server.fields import Body, read_body
from localinfer.server.generation import generate
from localinfer.server.handling import recorded
from localinfer.server.registry import ServedModel
from localinfer.server.schemas.anthropic import (
    AnthropicMessage,
    Block,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    TokenCount,
    ToolUseBlock,
)
from localinfer.server.schemas.chat import (
    ChatCompletionRequest,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    Tool,
)
from localinfer.server.schemas.sampling import JsonSchemaFormat, ResponseFormat
from localinfer.server.streaming import event
from localinfer.text.answer_reader import Call, Piece, Reader, Said

# Claude Code puts a block into the system message that differs with every request: nothing behind it could be re-used.
BILLING_HEADER = "x-anthropic-billing-header:"
_UNREADABLE = "redacted_thinking"  # a block that only Anthropic's own servers can read
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "loop": "end_turn"}


async def create(http: HttpRequest) -> Response:
    """The handler of /v1/messages."""
    return await generate(http, MessagesTask)


async def count_tokens(http: HttpRequest) -> Response:
    """The handler of /v1/messages/count_tokens."""
    async with recorded(http, "/v1/messages/count_tokens") as record:
        body = await read_body(http, CountTokensRequest)
        record.ignored_fields = body.unknown
        async with http.app.state.registry.use(body.fields.model) as model:
            record.model = model.name

            def count() -> int:
                fields = _translated(body.fields)
                tools = _tools(body.fields)
                variables = AnswerForm(fields, tools, model.llm).variables
                messages = _messages(body.fields)
                variables = {**_thinking(body.fields), **_effort(body.fields, model), **variables}
                return len(prompt_of(model.llm, messages, variables)[0])

            answer = TokenCount(await asyncio.to_thread(count))
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=body.headers)


class MessagesTask(Conversation):
    """One conversation to be answered."""

    schema = MessagesRequest
    path = "/v1/messages"
    id_prefix = "msg"
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, body: Body[Any], model: ServedModel) -> None:
        asked: MessagesRequest = body.fields
        if _has_billing_header(asked.system):
            body = replace(body, unknown=(*body.unknown, "system.billing-header"))
        if asked.output_config is not None and asked.output_config.effort and not _effort(asked, model):
            body = replace(body, unknown=(*body.unknown, "output_config.effort"))
        if any(
            block.type == _UNREADABLE for turn in asked.messages for block in turn.content if isinstance(block, Block)
        ):
            body = replace(body, unknown=(*body.unknown, f"messages.{_UNREADABLE}"))
        super().__init__(body, model)

    def translated(self) -> ChatCompletionRequest:
        return _translated(self.body.fields)

    def jobs(self) -> list[Job]:
        asked: MessagesRequest = self.body.fields
        return self.ask(_messages(asked), _tools(asked), {**_thinking(asked), **_effort(asked, self.model)})

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        self._stream = _Blocks(self.form.reader())

    def whole(self, texts: Sequence[str]) -> AnthropicMessage:
        blocks = [_block(piece) for piece in self.form.reader().whole(texts[0])]
        called = any(isinstance(block, ToolUseBlock) for block in blocks)
        reason, sequence = self._end(called)
        return AnthropicMessage(
            id=self.id,
            model=self.model.name,
            content=blocks,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage,
        )

    def opening(self) -> bytes:
        message = AnthropicMessage(
            id=self.id, model=self.model.name, content=[], stop_reason=None, stop_sequence=None, usage=self._usage
        )
        return _event("message_start", {"message": message})

    def events(self, outputs: Sequence[Output]) -> bytes:
        parts = []
        for output in outputs:
            pieces = self._stream.reader.push(output.text) if output.text else []
            if output.finish_reason is not None:
                pieces += self._stream.reader.finish()
            parts += [self._stream.write(piece) for piece in pieces]
        return b"".join(parts)

    def closing(self) -> bytes:
        reason, sequence = self._end(self._stream.called)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last = _event("message_delta", {"delta": delta, "usage": self._usage})
        return self._stream.close() + last + _event("message_stop", {})

    def failure(self, error: ApiError) -> bytes:
        return event(anthropic_error(error), "error")

    @property
    def _choice(self) -> Choice:
        return self.requests[0].choices[0]

    @property
    def _usage(self) -> MessageUsage:
        usage = self.usage
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            output_tokens=usage.completion_tokens,
            cache_read_input_tokens=cached,
        )

    def _end(self, called: bool) -> tuple[str, str | None]:
        """Why the answer ended, and at which stop sequence if at one."""
        choice = self._choice
        if choice.stops.matched is not None:
            return "stop_sequence", choice.stops.matched
        if called and choice.finish_reason == "stop":
            return "tool_use", None
        return _STOP_REASONS.get(choice.finish_reason or "stop", "end_turn"), None


class _Blocks:
    """Writes pieces of an answer as events of content blocks, one block after the other."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.called = False
        self._index = -1
        self._open = ""  # the kind of block that is open

    def write(self, piece: Piece) -> bytes:
        if isinstance(piece, Said):
            if piece.kind == "content":
                return self._begin("text", {"text": ""}) + self._delta({"type": "text_delta", "text": piece.text})
            begin = self._begin("thinking", {"thinking": "", "signature": ""})
            return begin + self._delta({"type": "thinking_delta", "thinking": piece.text})
        self.called = True
        begin = self.close() + self._begin("tool_use", {"id": _tool_id(), "name": piece.name, "input": {}})
        return begin + self._delta({"type": "input_json_delta", "partial_json": piece.arguments}) + self.close()

    def close(self) -> bytes:
        """The event that ends a block that is open."""
        if not self._open:
            return b""
        self._open = ""
        return _event("content_block_stop", {"index": self._index})

    def _begin(self, kind: str, content: dict[str, Any]) -> bytes:
        if self._open == kind:
            return b""
        closed = self.close()
        self._open = kind
        self._index += 1
        return closed + _event(
            "content_block_start", {"index": self._index, "content_block": {"type": kind, **content}}
        )

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})


def _block(piece: Piece) -> TextBlock | ThinkingBlock | ToolUseBlock:
    if isinstance(piece, Call):
        return ToolUseBlock(_tool_id(), piece.name, json.loads(piece.arguments))
    return ThinkingBlock(piece.text) if piece.kind == "reasoning" else TextBlock(piece.text)


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return event(msgspec.json.encode({"type": kind, **data}), kind)


def _tool_id() -> str:
    return f"toolu_{secrets.token_hex(12)}"


def _translated(asked: CountTokensRequest) -> ChatCompletionRequest:
    """The same in the words of a chat completion, without the messages themselves."""
    choice = asked.tool_choice
    wanted: Any = None
    if choice is not None:
        wanted = {"auto": "auto", "any": "required", "none": "none"}.get(choice.type)
        if choice.type == "tool":
            wanted = NamedTool(function=NamedFunction(name=choice.name or ""))
    form = asked.output_format or (asked.output_config.format if asked.output_config is not None else None)
    sampling: dict[str, Any] = {}
    if isinstance(asked, MessagesRequest):
        names = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        sampling = {name: getattr(asked, name) for name in names} | {"stop": asked.stop_sequences}
    return ChatCompletionRequest(
        messages=[],
        tools=[
            Tool(
                function=FunctionDefinition(
                    name=t.name, description=t.description, parameters=t.input_schema, strict=t.strict
                )
            )
            for t in asked.tools or ()
        ],
        tool_choice=wanted,
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        thinking_budget=asked.thinking.budget_tokens if asked.thinking is not None else None,
        response_format=None
        if form is None
        else ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form.schema)),
        **sampling,
    )


def _tools(asked: CountTokensRequest) -> list[dict[str, Any]]:
    """The tools as chat templates know them."""
    return [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description or "", "parameters": t.input_schema or {}},
        }
        for t in asked.tools or ()
    ]


def _thinking(asked: CountTokensRequest) -> dict[str, Any]:
    """Anthropic's models think only if they are told to."""
    return {"enable_thinking": asked.thinking is not None and asked.thinking.type != "disabled"}


def _effort(asked: CountTokensRequest, model: ServedModel) -> dict[str, Any]:
    """How hard the model should think, if its chat template reads that. Clients always say it."""
    config = asked.output_config
    if config is None or config.effort is None or not reads_effort(model.llm):
        return {}
    return {"reasoning_effort": config.effort}


def _messages(asked: CountTokensRequest) -> list[dict[str, Any]]:
    """The messages as chat templates know them. ApiError for blocks that cannot be read."""
    found: list[dict[str, Any]] = []
    if asked.system:
        blocks = [Block(type="text", text=asked.system)] if isinstance(asked.system, str) else asked.system
        kept = [block for block in blocks if not (block.text or "").startswith(BILLING_HEADER)]
        if text := "\n\n".join(_text(block, f"system[{i}]") for i, block in enumerate(kept)):
            found.append({"role": "system", "content": text})
    for number, message in enumerate(asked.messages):
        found += _turn(message, f"messages[{number}]")
    return found


def _has_billing_header(system: str | list[Block] | None) -> bool:
    return isinstance(system, list) and any((block.text or "").startswith(BILLING_HEADER) for block in system)


def _turn(message: InputMessage, name: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, block in enumerate(message.content):
        where = f"{name}.content[{number}]"
        if block.type == "tool_use" and message.role == "assistant":
            function = {"name": block.name or "", "arguments": block.input or {}}
            calls.append({"id": block.id or "", "type": "function", "function": function})
        elif block.type == "tool_result" and message.role == "user":
            content = _result(block, where)
            results.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content})
        elif block.type == "thinking" and message.role == "assistant":
            thoughts.append(block.thinking or "")
        elif block.type != _UNREADABLE:
            texts.append(_text(block, where))
    turn: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return [*results, turn] if texts or thoughts or calls or not results else results


def _result(block: Block, where: str) -> str:
    if isinstance(block.content, str) or block.content is None:
        text = block.content or ""
    else:
        parts = [msgspec.convert(part, Block) for part in block.content]
        text = "\n".join(_text(part, f"{where}.content[{i}]") for i, part in enumerate(parts))
    return f"Error: {text}" if block.is_error else text


def _text(block: Block, where: str) -> str:
    if block.type != "text" or block.text is None:
        raise invalid(f"{where}: this model reads text only, not {block.type}", param=where)
    return block.text
