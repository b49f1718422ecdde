"""POST /infill: fills the gap between two texts in, in llama.cpp's protocol."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.thread import Job
from localinfer.server.completion import LlamaTask
from localinfer.server.gaps import gap, marks
from localinfer.server.generation import generate
from localinfer.server.schemas.completion import InfillRequest
from localinfer.text.fill_in import File

ANSWER_SHARE = 4  # a context is cut so that this part of it is left for an answer whose length nobody said


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, InfillTask)


class InfillTask(LlamaTask):
    """A gap to be filled in."""

    schema = InfillRequest
    path = "/infill"

    def jobs(self) -> list[Job]:
        asked: InfillRequest = self.body.fields
        context = self.model.llm.context
        # Half of the context is the text around the gap in any case.
        answer = min(context // ANSWER_SHARE if self.wanted is None else self.wanted, context // 2)
        files = [File(file.filename, file.text) for file in asked.input_extra or ()]
        prefix = asked.input_prefix + (asked.prompt or "")
        ids = gap(self.model.llm, prefix, asked.input_suffix, files=files, room=context - max(1, answer))
        return self.ask([ids], stop_token_ids=(*(asked.stop_token_ids or ()), *marks(self.model.llm)))
