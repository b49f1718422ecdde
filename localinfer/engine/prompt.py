"""From the messages of a conversation to the token ids that the model gets.

An answer's text does not always encode to the tokens that the model drew, and a difference of one token would have
everything behind it computed again in the next turn. So an assistant's message may bring its tokens along
(`Completion.message` does): where they fit, they stand for its content, and a turn computes its new tokens only.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from localinfer.engine.checks import whole, wrong
from localinfer.text.chat_template import ChatTemplate, encode_chat
from localinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localinfer.text.tool_format import ToolFormat

Message = Mapping[str, Any]
Parts = Sequence[tuple[str, bool]]


def template_input(
    form: Callable[[], ToolFormat | None], messages: Sequence[Message], variables: Mapping[str, Any]
) -> tuple[Sequence[Message], Mapping[str, Any]]:
    """Messages and variables for a chat template: tools, and calls of them, as it needs them. `form` is asked only if
    there are some."""
    tools = variables.get("tools")
    if not tools and not any(message.get("tool_calls") for message in messages):
        return messages, variables
    found = form()
    if found is None:
        return messages, variables
    from localinfer.text.tool_prompt import with_tools

    made, shown = with_tools(found, messages, tools)
    return made, {**{key: value for key, value in variables.items() if key != "tools"}, **shown}


def chat_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    form: Callable[[], ToolFormat | None] = lambda: None,
) -> tuple[array[int], bool]:
    """The prompt for the next answer, and whether special tokens in message contents are plain text in it.

    It depends on the arguments alone, never on what was computed before. `form` is how the model calls tools.
    LocalInferError names what is no message.
    """
    _check(messages, variables)
    messages, variables = template_input(form, messages, variables)
    plain = [{key: value for key, value in message.items() if key != "tokens"} for message in messages]
    parts = template.render_parts(plain, **variables)
    answers = _answers(tokenizer, messages, parts)
    ids = array("i")
    begin = 0
    for index, tokens in answers:
        ids.extend(_encode(tokenizer, parts[begin:index], first=begin == 0))
        ids.extend(tokens)
        begin = index + 1
    ids.extend(_encode(tokenizer, parts[begin:], first=begin == 0))
    return ids, parts.contents_marked


def _check(messages: object, variables: object) -> None:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise wrong("messages", messages, 'a list of messages: [{"role": "user", "content": "..."}]')
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise wrong(name, message, 'a message: {"role": "user", "content": "..."}')
        if not isinstance(message.get("role"), str):
            raise wrong(f'{name}["role"]', message.get("role"), 'a text, such as "user"')
        if not isinstance(message.get("content"), str | Sequence | None) or isinstance(message.get("content"), bytes):
            raise wrong(f'{name}["content"]', message["content"], "a text, or a list of parts")
        tokens = message.get("tokens")
        if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable | None):
            raise wrong(f'{name}["tokens"]', tokens, "a sequence of token ids")
        for token in tokens or ():
            whole(f'a token id of {name}["tokens"]', token, -sys.maxsize)  # ids that do not fit are not used
    if not isinstance(variables, Mapping):
        raise wrong("template_variables", variables, "a mapping")


def _answers(tokenizer: Tokenizer, messages: Sequence[Message], parts: Parts) -> list[tuple[int, array[int]]]:
    """The parts that are contents with known tokens: index and tokens."""
    found = []
    index = -1
    for message in messages:
        content = message.get("content")
        core = content.strip() if isinstance(content, str) else None
        if core == "":
            continue
        index = next((i for i in range(index + 1, len(parts)) if parts[i] == (core, False)), -1)
        if index < 0:
            return []  # the template rearranges the contents: what stands where is not certain
        tokens = _tokens(tokenizer, message)
        if tokens and content == core and _begins_anew(tokenizer, parts[index + 1 :]):
            found.append((index, tokens))
    return found


def _tokens(tokenizer: Tokenizer, message: Message) -> array[int] | None:
    """The tokens of a message, without the one that ended it, if they stand for its content."""
    given = message.get("tokens") or ()
    if message["role"] != "assistant" or not all(0 <= token < tokenizer.vocab_size for token in given):
        return None
    tokens = array("i", given)
    if tokens and tokens[-1] in tokenizer.stop_ids:
        tokens.pop()
    return tokens if tokenizer.decode(tokens, skip_special=True) == message["content"] else None


def _begins_anew(tokenizer: Tokenizer, parts: Parts) -> bool:
    """Whether these parts begin with a special token: only there a text can be cut without changing its tokens."""
    ids = tokenizer.encode_parts(parts[:1], add_special=False)
    return bool(ids) and parts[0][1] and tokenizer.is_special(ids[0])


def _encode(tokenizer: Tokenizer, parts: Parts, first: bool) -> array[int]:
    return encode_chat(tokenizer, parts) if first else tokenizer.encode_parts(parts, add_special=False)
