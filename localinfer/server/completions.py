"""POST /v1/completions"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.request import Output, Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Job
from localinfer.server.errors import invalid
from localinfer.server.gaps import gap, marks
from localinfer.server.generation import Task, generate
from localinfer.server.logprobs import CompletionLogprobsWriter
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    TextCompletion,
)
from localinfer.text.detokenizer import Detokenizer

DEFAULTS = SamplingParams(temperature=1.0)  # OpenAI's, as is the next
DEFAULT_TOKENS = 16
MOST_ANSWERS = 1024  # to all prompts of a request

_encode = msgspec.json.Encoder().encode


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, CompletionTask)


class CompletionTask(Task[CompletionRequest]):
    """Texts to be continued, each by an engine request of its own."""

    schema = CompletionRequest
    path = "/v1/completions"
    id_prefix = "cmpl"
    chunk_object = "text_completion"

    def jobs(self) -> list[Job]:
        fields, llm = self.fields, self.model.llm
        prompts = _prompts(fields.prompt)
        if len(prompts) * max(fields.best_of or 1, self.choices_per_prompt) > MOST_ANSWERS:
            raise invalid(f"prompt: more than {MOST_ANSWERS} answers are asked for", param="prompt")
        more: dict[str, Any] = {} if fields.best_of is None else {"best_of": fields.best_of}
        if fields.logprobs is not None:
            more |= {"logprobs": True, "top_logprobs": fields.logprobs}
            if fields.echo:
                more["prompt_logprobs"] = fields.logprobs
        if fields.suffix:
            if fields.echo:
                raise invalid("suffix: it cannot be asked for together with echo", param="suffix")
            more["stop_token_ids"] = (*(fields.stop_token_ids or ()), *marks(llm))
            fields = msgspec.structs.replace(fields, stop_token_ids=None)
        wanted = DEFAULT_TOKENS if fields.max_tokens is None else max(1, fields.max_tokens)
        jobs = []
        for prompt in prompts:
            ids = self._ids(prompt)
            room = room_for_answer(len(ids), llm.context, wanted, "prompt")
            params = sampling_params(fields, DEFAULTS, room, **more)
            self.prepare(params)
            jobs.append(Job(ids, params, self._new_decoder, fields.priority or 0))
        return jobs

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._opened: set[int] = set()
        self._end = b',"logprobs":null,"finish_reason":null}' + self.tail

    def whole(self, texts: Sequence[str]) -> TextCompletion:
        choices = []
        for position, request in enumerate(self.requests):
            for choice in request.choices:
                index = position * self.choices_per_prompt + choice.index
                text = self._echoed(request) + ("" if self._echo_alone else texts[index])
                reason = "length" if self._echo_alone else choice.finish_reason or "stop"
                logprobs = None
                if self.fields.logprobs is not None:
                    drawn = [] if self._echo_alone else choice.logprobs
                    logprobs = self._writer(index).write([*self._prompt_entries(request), *drawn])
                choices.append(CompletionChoice(index, text, reason, logprobs))
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
            if self.fields.echo and index not in self._opened:
                self._opened.add(index)
                parts.append(self._event(index, self._echoed(output.request), self._prompt_entries(output.request)))
            if self._echo_alone:
                pass
            elif output.logprob is not None and self.fields.logprobs is not None:
                parts.append(self._event(index, output.text, [output.logprob]))
            elif output.text:
                parts += (b'data: %b{"index":%d,"text":' % (self.head, index), _encode(output.text), self._end)
            if output.finish_reason is not None:
                reason = "length" if self._echo_alone else output.finish_reason
                parts.append(self._event(index, "", [], reason))
        return b"".join(parts)

    @property
    def usage(self) -> Any:
        usage = super().usage
        if self._echo_alone:  # what was drawn is not part of the answer
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    @property
    def _echo_alone(self) -> bool:
        return self.fields.max_tokens == 0

    def _event(self, index: int, text: str, entries: Sequence[Any], reason: str | None = None) -> bytes:
        logprobs: CompletionLogprobs | None = None
        if entries and self.fields.logprobs is not None:
            logprobs = self._writer(index).write(entries)
        return self.event({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})

    def _writer(self, index: int) -> CompletionLogprobsWriter:
        if (writer := self._writers.get(index)) is None:
            decoder = self._echo_decoder() if self.fields.echo else self._new_decoder()
            writer = CompletionLogprobsWriter(decoder, self.model.llm.tokenizer.token_bytes)
            self._writers[index] = writer
        return writer

    def _prompt_entries(self, request: Request) -> list[Any]:
        """The prompt's log probabilities, or its token ids where there are none."""
        if not self.fields.echo:
            return []
        found = request.prompt_logprobs or [None] * len(request.prompt)
        return [token if entry is None else entry for token, entry in zip(request.prompt, found, strict=True)]

    def _echoed(self, request: Request) -> str:
        if not self.fields.echo:
            return ""
        decoder = self._echo_decoder()
        return "".join(map(decoder.push, request.prompt)) + decoder.finish()

    def _new_decoder(self) -> Detokenizer:
        return self.model.llm.tokenizer.detokenizer(skip_special=self.skip_special, strip_prefix=False)

    def _echo_decoder(self) -> Detokenizer:
        return self.model.llm.tokenizer.detokenizer(skip_special=self.skip_special)

    def _ids(self, prompt: str | list[int]) -> Sequence[int]:
        if self.fields.suffix:
            if not isinstance(prompt, str):
                raise invalid("suffix: what stands before it has to be a text, too", param="suffix")
            return gap(self.model.llm, prompt, self.fields.suffix)
        if isinstance(prompt, list):
            try:
                return array("i", prompt)
            except OverflowError:
                raise invalid("prompt: a token id is out of range", param="prompt") from None
        return self.model.llm.tokenize(prompt, add_special=self.fields.add_special_tokens is not False)


def _prompts(prompt: str | list[str | int | list[int]]) -> Sequence[str | list[int]]:
    """The prompts one by one: of a text, of token ids, or of a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt: it is empty", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    prompts = [item for item in prompt if not isinstance(item, int)]
    if ids and prompts:
        raise invalid("prompt: a list holds prompts, or token ids, not both", param="prompt")
    return [ids] if ids else prompts
