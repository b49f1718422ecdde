"""What the endpoints that generate text have in common: from the request to the answer, whole or in events."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer import __version__
from localinfer.engine.request import Output, Request
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.thread import Answers, Job
from localinfer.errors import LocalInferError
from localinfer.server.errors import ApiError, as_api_error, invalid
from localinfer.server.fields import Body, read_body
from localinfer.server.handling import has_left, model_in_use, recorded, while_connected
from localinfer.server.record import CLIENT_LEFT, RequestRecord
from localinfer.server.registry import ServedModel
from localinfer.server.schemas.sampling import PromptTokensDetails, SamplingFields, Usage
from localinfer.server.streaming import DONE, PING, EventStream, event
from localinfer.server.structured import grammar_field

Fields = TypeVar("Fields", bound=SamplingFields)


class Task(ABC, Generic[Fields]):
    """One HTTP request to one model, in the words of one endpoint."""

    schema: ClassVar[Any]
    path: ClassVar[str]
    id_prefix: ClassVar[str]
    chunk_object: ClassVar[str] = ""  # what an event calls itself
    ping: ClassVar[bytes] = PING  # sent while there is nothing else
    media_type: ClassVar[str] = EventStream.media_type  # of a streamed answer
    streams_unless_told: ClassVar[bool] = False
    fingerprint = f"localinfer-{__version__}"

    def __init__(self, body: Body[Any], model: ServedModel) -> None:
        self.body: Body[Any] = body
        self.model = model
        self.fields = self.translated()
        self.id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.choices_per_prompt = self.fields.n or 1
        self.skip_special = self.fields.skip_special_tokens is not False
        self.requests: list[Request] = []
        self._first_index: dict[int, int] = {}  # engine request -> index of its first choice
        options = self.fields.stream_options
        self.include_usage = bool(options and options.include_usage)
        head = {
            "id": self.id,
            "object": self.chunk_object,
            "created": self.created,
            "model": model.name,
            "system_fingerprint": self.fingerprint,
        }
        self.head = msgspec.json.encode(head)[:-1] + b',"choices":['  # of every event, up to its choices
        self.tail = b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"  # and what is behind them

    def translated(self) -> Fields:
        """The fields in the words of this server's own endpoints."""
        fields: Fields = self.body.fields
        return fields

    @classmethod
    def model_of(cls, fields: Any) -> str | None:
        """The model that is asked for; None is the default one."""
        found: str | None = fields.model
        return found

    @abstractmethod
    def jobs(self) -> list[Job]:
        """What the engine is asked. Runs in a thread of its own: templates and tokenizers take their time."""

    @abstractmethod
    def whole(self, texts: Sequence[str]) -> object:
        """The answer to a request without `stream`; `texts` of all choices."""

    def encoded(self, answer: object) -> bytes:
        """The answer as JSON."""
        return msgspec.json.encode(answer)

    @abstractmethod
    def events(self, outputs: Sequence[Output]) -> bytes:
        """Events for what a step brought; may be none."""

    def prepare(self, params: SamplingParams) -> None:
        """Compiles a grammar in this thread, and not where all answers would wait for it. ApiError if it is wrong."""
        self.model.llm.engine.prepare_breakers(params)
        if params.grammar is not None:
            try:
                self.model.llm.engine.prepare(params)
            except LocalInferError as error:
                field = grammar_field(self.fields)
                raise invalid(f"{field}: {error.message}", param=field, code="unsupported_grammar") from error

    def start(self, requests: list[Request]) -> None:
        """The engine has accepted the jobs."""
        self.requests = requests
        self._first_index = {request.id: i * self.choices_per_prompt for i, request in enumerate(requests)}

    @property
    def enough(self) -> bool:
        """Whether nothing of what may still come would be answered."""
        return False

    def kept(self, output: Output) -> str:
        """What of the text that a step brought belongs to the answer, if that is not streamed."""
        return output.text

    def index(self, output: Output) -> int:
        """Which choice of the answer an output belongs to."""
        return self._first_index[output.request.id] + output.index

    def event(self, choice: object) -> bytes:
        """One event about one choice."""
        return b"data: " + self.head + msgspec.json.encode(choice) + self.tail

    def usage_event(self) -> bytes:
        """The event before the last, if it was asked for: the counts of tokens, and no choice."""
        return event(self.head + b'],"usage":' + msgspec.json.encode(self.usage) + b"}")

    def opening(self) -> bytes:
        """Events before those of the answers."""
        return b""

    def closing(self) -> bytes:
        """Events behind those of the answers."""
        return self.usage_event() + DONE if self.include_usage else DONE

    def failure(self, error: ApiError) -> bytes:
        """The event that says what went wrong, after which no other comes."""
        return event(error.body)

    @property
    def usage(self) -> Usage:
        prompt = sum(len(request.prompt) for request in self.requests)
        cached = sum(request.cached or 0 for request in self.requests)
        answers = sum(choice.generated_count for request in self.requests for choice in request.choices)
        return Usage(prompt, answers, prompt + answers, PromptTokensDetails(cached))


async def generate(http: HttpRequest, kind: type[Task[Any]]) -> Response:
    """Answers one request. A client that leaves ends it: in the queue, in prefill, in decode, streamed or not."""
    state = http.app.state
    async with AsyncExitStack() as stack:
        record = await stack.enter_async_context(recorded(http, kind.path))
        body = await read_body(http, kind.schema)
        record.ignored_fields = body.unknown
        model = await stack.enter_async_context(model_in_use(http, kind.model_of(body.fields)))
        record.model = model.name
        task = kind(body, model)
        record.id = task.id
        jobs = await asyncio.to_thread(task.jobs)
        answers = model.thread.submit(jobs)
        record.token_times = answers.token_times
        await stack.enter_async_context(while_connected(http, answers))
        task.start(await answers.accepted())
        for request in task.requests:
            record.add(request, model.llm.tokenizer)
        streams = kind.streams_unless_told if body.fields.stream is None else body.fields.stream
        if not streams:
            return await _whole(task, answers, record)
        record.streamed = True
        # What fails until the first token has a status of its own, unless that takes long.
        first = await answers.next(state.settings.ping_seconds)
        events = _events(http, task, answers, record, first)
        return EventStream(events, stack.pop_all(), task.body.headers, kind.media_type)
    raise AssertionError("nothing in the block suppresses exceptions")


async def _whole(task: Task[Any], answers: Answers, record: RequestRecord) -> Response:
    texts: list[list[str]] = [[] for _ in range(len(task.requests) * task.choices_per_prompt)]
    while not (answers.over or task.enough):
        outputs = await answers.next()
        for output in outputs:
            texts[task.index(output)].append(task.kept(output))
    answer = task.encoded(task.whole(["".join(pieces) for pieces in texts]))
    return Response(answer, media_type="application/json", headers=task.body.headers)


async def _events(
    http: HttpRequest, task: Task[Any], answers: Answers, record: RequestRecord, outputs: list[Output]
) -> AsyncGenerator[bytes, None]:
    patience = http.app.state.settings.ping_seconds
    try:
        if opening := task.opening():
            yield opening
        while True:
            if outputs:
                if data := task.events(outputs):
                    yield data
            elif task.ping:
                yield task.ping
            if answers.over or task.enough:
                break
            outputs = await answers.next(patience)
    except Exception as error:
        # The status was sent long ago: what went wrong comes as an event, after which there is no [DONE].
        found = as_api_error(error)
        record.done(CLIENT_LEFT if has_left(http) else found.status, found.message)
        if found.status == 500:
            http.app.state.log.failure(f"{task.path} failed", error)
        yield task.failure(found)
    else:
        yield task.closing()
