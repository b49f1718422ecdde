"""What the endpoints that generate text have in common: from the request to the answer, whole or in events."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer import __version__
from localinfer.engine.engine import Output, Request
from localinfer.engine.thread import Answers, Job
from localinfer.server.errors import as_api_error
from localinfer.server.fields import Body, read_body
from localinfer.server.record import CLIENT_LEFT, RequestRecord
from localinfer.server.registry import ServedModel
from localinfer.server.schemas.sampling import PromptTokensDetails, SamplingFields, Usage
from localinfer.server.streaming import DONE, PING, EventStream, event

Fields = TypeVar("Fields", bound=SamplingFields)


class Task(ABC, Generic[Fields]):
    """One request to one model, in the words of one endpoint."""

    schema: ClassVar[Any]
    path: ClassVar[str]
    id_prefix: ClassVar[str]
    fingerprint = f"localinfer-{__version__}"

    def __init__(self, body: Body[Fields], model: ServedModel) -> None:
        self.body = body
        self.fields = body.fields
        self.model = model
        self.id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.choices_per_prompt = body.fields.n or 1
        options = body.fields.stream_options
        self.include_usage = bool(options and options.include_usage)
        self.requests: list[Request] = []
        self.first_index: dict[int, int] = {}  # engine request -> index of its first choice

    @abstractmethod
    def jobs(self) -> list[Job]:
        """What the engine is asked. Runs in a thread of its own: templates and tokenizers take their time."""

    @abstractmethod
    def whole(self, texts: Sequence[str]) -> msgspec.Struct:
        """The answer to a request without `stream`; `texts` of all choices."""

    @abstractmethod
    def events(self, outputs: Sequence[Output]) -> bytes:
        """Events for what a step brought; may be none."""

    @abstractmethod
    def usage_event(self) -> bytes:
        """The last event but one, if it was asked for."""

    def start(self, requests: list[Request]) -> None:
        """The engine has accepted the jobs."""
        self.requests = requests
        self.first_index = {request.id: i * self.choices_per_prompt for i, request in enumerate(requests)}

    def index(self, output: Output) -> int:
        """Which choice of the answer an output belongs to."""
        return self.first_index[output.request.id] + output.index

    @property
    def usage(self) -> Usage:
        prompt = sum(len(request.prompt) for request in self.requests)
        cached = sum(request.cached or 0 for request in self.requests)
        answers = sum(len(choice.generated) for request in self.requests for choice in request.choices)
        return Usage(prompt, answers, prompt + answers, PromptTokensDetails(cached))


async def generate(http: HttpRequest, kind: type[Task[Any]]) -> Response:
    """Answers one request. A client that leaves ends it, in the queue, in prefill and in decode."""
    state = http.app.state
    client = http.client.host if http.client else ""
    record = RequestRecord(kind.path, client, state.report)
    try:
        async with AsyncExitStack() as stack:
            body = await read_body(http, kind.schema)
            record.ignored_fields = body.unknown
            model = await stack.enter_async_context(state.registry.use(body.fields.model))
            record.model = model.name
            task = kind(body, model)
            record.id = task.id
            jobs = await asyncio.to_thread(task.jobs)
            answers = model.thread.submit(jobs)
            stack.callback(answers.cancel)
            watcher = asyncio.create_task(_cancel_when_left(http, answers))
            stack.callback(watcher.cancel)
            task.start(await answers.accepted())
            for request in task.requests:
                record.add(request, model.llm.tokenizer)
            if not body.fields.stream:
                return await _whole(task, answers, record, body)
            record.streamed = True
            # Whatever fails up to here, and before the first token if that is soon, has a status of its own.
            first = await answers.next(state.settings.ping_seconds)
            events = _events(task, answers, record, first, state.settings.ping_seconds)
            return EventStream(events, stack.pop_all(), body.headers)
    except Exception as error:
        if http_left(http):
            record.done(CLIENT_LEFT)
            return Response(status_code=CLIENT_LEFT)
        found = as_api_error(error)
        record.done(found.status, found.message)
        raise


async def _whole(task: Task[Any], answers: Answers, record: RequestRecord, body: Body[Any]) -> Response:
    texts: list[list[str]] = [[] for _ in range(len(task.requests) * task.choices_per_prompt)]
    while not answers.over:
        outputs = await answers.next()
        record.tokens_came()
        for output in outputs:
            texts[task.index(output)].append(output.text)
    answer = task.whole(["".join(pieces) for pieces in texts])
    record.done()
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=body.headers)


async def _events(
    task: Task[Any], answers: Answers, record: RequestRecord, outputs: list[Output], patience: float
) -> AsyncIterator[bytes]:
    try:
        while True:
            if outputs:
                record.tokens_came()
                if data := task.events(outputs):
                    yield data
            elif not answers.over:
                yield PING
            if answers.over:
                break
            outputs = await answers.next(patience)
    except Exception as error:
        # The status was sent long ago: what went wrong comes as an event.
        found = as_api_error(error)
        record.done(CLIENT_LEFT if answers.cancelled else found.status, found.message)
        yield event(found.body)
        return
    if task.include_usage:
        yield task.usage_event()
    yield DONE
    record.done()


async def _cancel_when_left(http: HttpRequest, answers: Answers) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
    http.scope["localinfer.left"] = True
    answers.cancel()


def http_left(http: HttpRequest) -> bool:
    """Whether the client has gone."""
    return bool(http.scope.get("localinfer.left"))
