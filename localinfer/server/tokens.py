"""POST /tokenize, /detokenize and /apply-template: the tokenizer and the chat template, without the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.llm import LLM
from localinfer.engine.prompt import template_input
from localinfer.errors import UnsupportedError
from localinfer.server.errors import invalid
from localinfer.server.fields import Body, read_body
from localinfer.server.handling import model_in_use, recorded
from localinfer.server.messages import template_messages, template_variables
from localinfer.server.schemas.tokens import (
    ApplyTemplateRequest,
    ApplyTemplateResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenPiece,
)

Fields = TypeVar("Fields", TokenizeRequest, DetokenizeRequest, ApplyTemplateRequest)


async def tokenize(http: HttpRequest) -> Response:
    """The handler of /tokenize."""
    return await _answer(http, TokenizeRequest, _tokenize)


async def detokenize(http: HttpRequest) -> Response:
    """The handler of /detokenize."""
    return await _answer(http, DetokenizeRequest, _detokenize)


async def apply_template(http: HttpRequest) -> Response:
    """The handler of /apply-template."""
    return await _answer(http, ApplyTemplateRequest, _apply_template)


async def _answer(
    http: HttpRequest, schema: type[Fields], work: Callable[[Body[Fields], LLM], msgspec.Struct]
) -> Response:
    """The work is done in a thread: a long text takes its time, and other requests go on."""
    async with recorded(http, http.url.path) as record:
        body = await read_body(http, schema)
        record.ignored_fields = body.unknown
        async with model_in_use(http, body.fields.model) as model:
            record.model = model.name
            answer = await asyncio.to_thread(work, body, model.llm)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=body.headers)


def _tokenize(body: Body[TokenizeRequest], llm: LLM) -> TokenizeResponse:
    fields = body.fields
    given = [name for name in ("prompt", "content", "messages") if getattr(fields, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise invalid(f"give one of prompt, content and messages, not {found}", param=given[0] if given else "prompt")
    if fields.messages is not None:
        ids = llm.chat_tokens(template_messages(fields.messages, body.raw["messages"]), template_variables(fields))
    else:
        flags = [flag for flag in (fields.add_special_tokens, fields.add_special) if flag is not None]
        if len(set(flags)) > 1:
            raise invalid("add_special_tokens and add_special contradict each other", param="add_special")
        ids = llm.tokenize(
            fields.prompt if fields.prompt is not None else fields.content or "",
            add_special=flags[0] if flags else fields.prompt is not None,
            parse_special=fields.parse_special is not False,
        )
    tokens: list[int | TokenPiece] = list(ids)
    if fields.with_pieces:
        tokens = [TokenPiece(token, _piece(llm.tokenizer.token_bytes(token))) for token in ids]
    spellings = [_spelling(llm, token) for token in ids] if fields.return_token_strs else None
    return TokenizeResponse(tokens=tokens, count=len(ids), max_model_len=llm.context, token_strs=spellings)


def _detokenize(body: Body[DetokenizeRequest], llm: LLM) -> DetokenizeResponse:
    text = llm.detokenize(body.fields.tokens)
    return DetokenizeResponse(text, text)


def _apply_template(body: Body[ApplyTemplateRequest], llm: LLM) -> ApplyTemplateResponse:
    if llm.chat_template is None:
        raise UnsupportedError(f"{llm.name} has no chat template: it is not made for conversations")
    messages = template_messages(body.fields.messages, body.raw["messages"])
    plain = [{key: value for key, value in message.items() if key != "tokens"} for message in messages]
    shown, variables = template_input(lambda: llm.tool_format, plain, template_variables(body.fields))
    return ApplyTemplateResponse(llm.chat_template.render(shown, **variables))


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _spelling(llm: LLM, token: int) -> str:
    """How the vocabulary writes the token."""
    tokens: Any = llm.metadata["tokenizer.ggml.tokens"]
    text = tokens[token]
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
