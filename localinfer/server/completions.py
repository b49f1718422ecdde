"""POST /v1/completions"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.engine import Output, Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Job
from localinfer.server.errors import invalid
from localinfer.server.generation import Task, generate
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.completions import CompletionChoice, CompletionRequest, TextCompletion
from localinfer.server.streaming import event

DEFAULT_TOKENS = 16  # OpenAI's
DEFAULTS = SamplingParams(temperature=1.0)  # OpenAI's

_encode = msgspec.json.Encoder().encode


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, CompletionTask)


class CompletionTask(Task[CompletionRequest]):
    """Texts to be continued, one engine request each."""

    schema = CompletionRequest
    path = "/v1/completions"
    id_prefix = "cmpl"

    def jobs(self) -> list[Job]:
        fields, llm = self.fields, self.model.llm
        new_decoder = partial(
            llm.tokenizer.detokenizer, skip_special=fields.skip_special_tokens is not False, strip_prefix=False
        )
        wanted = DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
        jobs = []
        for prompt in _prompts(fields.prompt):
            ids = self._ids(prompt)
            room = room_for_answer(len(ids), llm.context, wanted, "prompt")
            jobs.append(Job(ids, sampling_params(fields, DEFAULTS, room), new_decoder, fields.priority or 0))
        return jobs

    def _ids(self, prompt: str | list[int]) -> Sequence[int]:
        if isinstance(prompt, list):
            return array("i", prompt)
        return self.model.llm.tokenize(prompt, add_special=self.fields.add_special_tokens is not False)

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        head = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.fingerprint,
        }
        self._head = _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}' if self.include_usage else b"]}"

    def whole(self, texts: Sequence[str]) -> TextCompletion:
        choices = []
        for position, request in enumerate(self.requests):
            for choice in request.choices:
                index = position * self.choices_per_prompt + choice.index
                choices.append(CompletionChoice(index, texts[index], choice.finish_reason or "stop"))
        return TextCompletion(
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
            start = b'data: %b{"index":%d,"text":' % (self._head, index)
            if output.text:
                parts += (start, _encode(output.text), b',"logprobs":null,"finish_reason":null}', self._tail, b"\n\n")
            if output.finish_reason is not None:
                reason = output.finish_reason.encode()
                parts += (start, b'"","logprobs":null,"finish_reason":"%b"}' % reason, self._tail, b"\n\n")
        return b"".join(parts)

    def usage_event(self) -> bytes:
        return event(self._head + b'],"usage":' + _encode(self.usage) + b"}")


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts one by one: of a text, of token ids, or of a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt: it is empty", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return [prompt]  # type: ignore[list-item]
    if any(isinstance(item, int) for item in prompt):
        raise invalid("prompt: token ids and prompts are mixed in one list", param="prompt")
    return prompt  # type: ignore[return-value]
