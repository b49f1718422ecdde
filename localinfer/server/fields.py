"""Reading the body of a request: which fields we serve, which do no harm, which we refuse, and which nobody knows.

What is served is what the schema has. The tables here say the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from starlette.requests import ClientDisconnect, Request

from localinfer.server.errors import ApiError, invalid

UNKNOWN_FIELDS_HEADER = "x-localinfer-unknown-fields"

# Fields that clients send and that do not change the answer.
HARMLESS = frozenset(
    (
        "client_metadata",
        "context_management",
        "diagnostics",
        "include",
        "inference_geo",
        "keep_alive",
        "cache_prompt",
        "metadata",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "speed",
        "sse_ping_interval",
        "store",
        "t_max_prompt_ms",
        "truncate",
        "user",
        "user_profile_id",
        "verbose",
        "workspace_id",
    )
)
# Fields that we know and do not serve, or not at every endpoint, with the values beside null that ask for nothing.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "background": (False,),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": ("",),
    "chat_template_kwargs": ({},),
    "container": (),
    "conversation": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "lora": ([],),
    "max_completion_tokens": (),
    "mcp_servers": ([],),
    "messages": (),
    "min_keep": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "n_predict": (),
    "parallel_tool_calls": (True, False),
    "post_sampling_probs": (False,),
    "previous_response_id": ("",),
    "prompt": (),
    "prompt_logprobs": (),
    "rank_fields": ([], ["text"]),
    "reasoning_effort": (),
    "repeat_last_n": (),
    "repeat_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_progress": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_budget": (-1,),
    "thinking_budget_tokens": (-1,),
    "thinking_token_budget": (-1,),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "xtc_probability": (0,),
}

Schema = TypeVar("Schema", bound=msgspec.Struct)


@dataclass(frozen=True)
class Body(Generic[Schema]):
    """A body that was understood. `raw` is the JSON as it came, `unknown` names the fields that nobody knows."""

    fields: Schema
    raw: dict[str, Any]
    unknown: tuple[str, ...]

    @property
    def headers(self) -> dict[str, str]:
        """What the answer has to say about the fields."""
        return {UNKNOWN_FIELDS_HEADER: _header(self.unknown)} if self.unknown else {}


async def read_body(request: Request, schema: type[Schema]) -> Body[Schema]:
    """The body as `schema`. ApiError 400 names the field that is wrong, or that is known and not supported."""
    raw = await read_json(request)
    known = set(schema.__struct_fields__)
    refused = [name for name in raw if name not in known and _is_refused(name, raw[name])]
    if refused:
        names = ", ".join(refused)
        raise invalid(f"not supported by this server: {names}", param=refused[0], code="unsupported_parameter")
    unknown = [name for name in raw if name not in known and name not in HARMLESS and name not in REFUSED]
    try:
        fields = msgspec.convert(raw, schema, str_keys=True)
    except msgspec.ValidationError as error:
        raise _naming_the_field(str(error), schema) from None
    for name in known & set(raw):
        inner = getattr(fields, name)
        if isinstance(inner, msgspec.Struct):
            unknown += [f"{name}.{key}" for key in raw[name] if key not in inner.__struct_fields__]
    return Body(fields, raw, tuple(unknown))


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object; ApiError 400 if it is none, 415 if it is compressed."""
    if (encoding := request.headers.get("content-encoding", "identity")).lower() != "identity":
        raise ApiError(415, f"the body is encoded as {encoding}: send it as it is", code="unsupported_encoding")
    try:
        body = await request.body()
    except ClientDisconnect:
        raise ApiError(400, "the client left before its request was complete") from None
    try:
        try:
            raw = msgspec.json.decode(body)
        except msgspec.DecodeError:
            # Clients that cut a text may cut a character in two ("\\ud83d"), which msgspec takes for no JSON at all.
            raw = _without_surrogates(json.loads(body, parse_constant=_refuse_constant))
    except (ValueError, msgspec.MsgspecError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise invalid("the body is not valid JSON: it nests too deep") from None
    if not isinstance(raw, dict):
        raise invalid("the body must be a JSON object")
    return raw


def _without_surrogates(value: Any) -> Any:
    """Halves of characters become U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number there")


def _is_refused(name: str, value: Any) -> bool:
    return name in REFUSED and value is not None and value not in REFUSED[name]


def _naming_the_field(message: str, schema: Any) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.messages[0].role`", or "... at `key` in `$.logit_bias`"."""
    what, _, where = message.partition(" - at ")
    path = re.search(r"\$\.?([^`]*)`", where)
    param = path.group(1) if path else None
    if param is None and (missing := re.search(r"required field `(\w+)`", what)):
        param = missing.group(1)
    if param is not None and what.startswith("Invalid enum value"):
        what += f", expected one of {', '.join(map(repr, _allowed(schema, param)))}"
    what = what.replace("`", "").replace("Expected", "expected", 1)
    what = what.replace("Object missing", "it is missing the", 1)
    return invalid(f"{param}: {what}" if param else what, param=param)


def _allowed(kind: Any, path: str) -> list[str | int]:
    """The texts or numbers that may stand at a path such as `messages[0].role`, in the order of the schema."""
    options = _options(kind)
    for step in re.findall(r"\w+|\[[^\]]*\]", path):
        inner: list[Any] = []
        for option in options:
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                inner += [field.type for field in msgspec.structs.fields(option) if field.encode_name == step]
            elif step.startswith("["):
                inner += get_args(option)
        options = [option for each in inner for option in _options(each)]
    return [value for option in options if get_origin(option) is Literal for value in get_args(option)]


def _options(kind: Any) -> list[Any]:
    """What a type may be, where it is a union, perhaps with annotations."""
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [option for inner in get_args(kind) for option in _options(inner)]
    return [kind]


def _header(names: Iterable[str]) -> str:
    """Names as a header may hold them, cut where there are too many."""
    return ", ".join(re.sub(r"[^\x21-\x2b\x2d-\x7e]", "?", name)[:64] for name in names)[:1024]
