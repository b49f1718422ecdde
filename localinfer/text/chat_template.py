"""Chat templates: from messages to the text that a model was trained on.

A template is jinja2 source that model files carry. jinja2 is imported when the first template is compiled.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from localinfer.errors import FormatError, LocalInferError
from localinfer.kernels.host.strings import StringArray
from localinfer.text.prompt_marks import Arguments, Marker, copied
from localinfer.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. Safe to use from several threads.

    `bos_token` and `eos_token` are the texts of those tokens, which many templates write themselves.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self.bos_token, self.eos_token = bos_token, eos_token

    @cached_property
    def _compiled(self) -> Any:
        from localinfer.text.template_sandbox import compile_template

        return _run("compiled", lambda: compile_template(self.source))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt, as text. `variables` are what the template knows besides (`enable_thinking`, ...).

        Messages and tools are as in OpenAI's API; arguments of tool calls may be objects or JSON text. Raises
        LocalInferError if the template refuses them, fails, or costs too much.
        """
        given = _prepared(messages, tools, variables)
        return self._render(given, add_generation_prompt)

    def render_parts(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> RenderedParts:
        """The same prompt in parts: (text, whether the template wrote it). Raises as `render` does.

        Special tokens should be found only in what the template wrote, so that no message can pretend to be one.
        """
        given = _prepared(messages, tools, variables)
        plain = self._render(given, add_generation_prompt)
        for whole_contents in (True, False):
            marker = Marker(given, whole_contents)
            try:
                parts = marker.parts(self._render(marker.marked, add_generation_prompt))
            except LocalInferError:
                continue  # the template looks into the texts, and takes offence at the marks
            if parts is not None and "".join(text for text, _ in parts) == plain:
                return RenderedParts(parts, True)
        return RenderedParts([(plain, True)], False)

    def _render(self, given: Mapping[str, Any], add_generation_prompt: bool) -> str:
        from localinfer.text.template_sandbox import render

        variables = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            **given,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return str(_run("rendered", lambda: render(self._compiled, copied(variables))))
        except TemplateFailure:
            # Templates made for tools only may run over them without asking whether there are any.
            if variables["tools"] is not None:
                raise
            return str(_run("rendered", lambda: render(self._compiled, copied({**variables, "tools": []}))))


class TemplateRefusal(LocalInferError):
    """The template refuses the messages: their roles, or the order of them."""


class TemplateFailure(LocalInferError):
    """The template broke: it did not refuse the messages, it could not cope with them."""


class RenderedParts(list[tuple[str, bool]]):
    """Parts of a prompt. `contents_marked` is False if the template does not let them be told apart: then all of it
    counts as the template's, and special tokens are found in messages too."""

    def __init__(self, parts: Iterable[tuple[str, bool]], contents_marked: bool) -> None:
        super().__init__(parts)
        self.contents_marked = contents_marked

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self)


def encode_chat(tokenizer: Tokenizer, parts: Iterable[tuple[str, bool]]) -> array[int]:
    """Token ids of a rendered prompt; special tokens are found only in parts marked True.

    BOS stands in front once if the vocabulary asks for it, whether or not the template wrote it too.
    """
    ids = tokenizer.encode_parts(parts, add_special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != array("i", [tokenizer.bos_id]):
        ids.insert(0, tokenizer.bos_id)
    return ids


def template_for(metadata: Mapping[str, Any], variant: str = "") -> ChatTemplate | None:
    """The template of a GGUF file, or None if it has none. Some files hold variants, such as "tool_use"."""
    key = "tokenizer.chat_template" + (f".{variant}" if variant else "")
    source = metadata.get(key)
    if source is None:
        return None
    if not isinstance(source, str):
        raise FormatError(f"{key} is no text", "the file may be damaged: download or convert it again")
    return ChatTemplate(source, _token_text(metadata, "bos_token_id"), _token_text(metadata, "eos_token_id"))


def _token_text(metadata: Mapping[str, Any], key: str) -> str:
    token_id, tokens = metadata.get(f"tokenizer.ggml.{key}"), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(token_id, int) or not isinstance(tokens, StringArray | list) or not 0 <= token_id < len(tokens):
        return ""
    text = tokens[token_id]
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _run(what: str, action: Callable[[], Any]) -> Any:
    """Whatever a stranger's template raises becomes a LocalInferError."""
    from jinja2 import TemplateSyntaxError

    from localinfer.text.template_sandbox import RaisedByTemplate

    try:
        return action()
    except LocalInferError:
        raise
    except RaisedByTemplate as error:
        raise TemplateRefusal(
            f"the model's chat template refuses these messages: {error}",
            "change the roles, their order, or what else it names",
        ) from None
    except TemplateSyntaxError as error:
        raise LocalInferError(
            f"the model's chat template cannot be {what}: line {error.lineno}: {error.message}",
            "give another template, or use a file with a newer conversion of the model",
        ) from None
    except Exception as error:
        raise TemplateFailure(
            f"the model's chat template cannot be {what}: {_words(error)}",
            "the messages may have a form that it does not expect; or give another template",
        ) from None


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError | MemoryError):
        return "it nests too deep" if isinstance(error, RecursionError) else "it needs too much memory"
    return f"{type(error).__name__}: {error}"[:500]


def _prepared(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]
) -> dict[str, Any]:
    """What the template gets to see. `tools` and `documents` always exist, as None if there are none."""
    return {
        "documents": None,
        **variables,
        "messages": [_message(message) for message in messages],
        "tools": list(tools) if tools else None,
    }


def _message(message: Message) -> dict[str, Any]:
    """Without what is null, since templates test whether a key exists; contents of nothing but text as one text."""
    made = {key: value for key, value in message.items() if value is not None}
    content = made.get("content")
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        made["content"] = "\n".join(str(part.get("text", "")) for part in content)
    reasoning = next((made[key] for key in ("reasoning_content", "thinking", "reasoning") if key in made), None)
    if reasoning is not None:  # templates differ in the name
        made = {"thinking": reasoning, "reasoning": reasoning, **made, "reasoning_content": reasoning}
    if isinstance(made.get("tool_calls"), list):
        made["tool_calls"] = [_tool_call(call) for call in made["tool_calls"]]
    return made


def _tool_call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    made = dict(call)
    if isinstance(made.get("function"), Mapping):
        made["function"] = _tool_call(made["function"])
    arguments = made.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return made  # no JSON: the model wrote it so, and templates paste it
    if isinstance(arguments, Mapping):
        made["arguments"] = Arguments(arguments)
    return made
