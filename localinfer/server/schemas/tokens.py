"""POST /tokenize, /detokenize and /apply-template: vLLM's and llama.cpp's fields, where they do not contradict."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from localinfer.server.schemas.chat import ChatMessage
from localinfer.server.schemas.sampling import Count, JsonObject

Messages = Annotated[list[ChatMessage], Meta(min_length=1)]


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """One of `prompt` (vLLM), `content` (llama.cpp) and `messages`.

    BOS and EOS are added, where the vocabulary asks for them, with `add_special_tokens` or `add_special`; by default to
    a prompt and not to a content. In front of messages BOS stands once in any case, as in a chat. `parse_special`
    (default: true) finds special tokens in the text. `return_token_strs` adds how the vocabulary spells the tokens,
    `with_pieces` makes each token an object with its text.
    """

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: JsonObject | None = None


class TokenPiece(msgspec.Struct):
    """A token with its text, or with its bytes where they are no text."""

    id: int
    piece: str | list[int]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """`tokens` are ids, or with `with_pieces` objects; `max_model_len` is the context of the model."""

    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids; special tokens appear in the text by their names."""

    model: str | None = None
    tokens: list[Count]


class DetokenizeResponse(msgspec.Struct):
    """The text, twice: as vLLM names it and as llama.cpp does. Bytes that are no UTF-8 become U+FFFD."""

    prompt: str
    content: str


class ApplyTemplateRequest(msgspec.Struct, kw_only=True):
    """`chat_template_kwargs` reach the template; `add_generation_prompt` (default: true) begins the answer."""

    model: str | None = None
    messages: Messages
    add_generation_prompt: bool | None = None
    chat_template_kwargs: JsonObject | None = None


class ApplyTemplateResponse(msgspec.Struct):
    """The prompt that a chat with these messages gives to the model, as text."""

    prompt: str
