"""POST /infill: fills the gap between two texts in, in llama.cpp's protocol; and what others need who do the same."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.llm import LLM
from localinfer.engine.thread import Job
from localinfer.errors import UnsupportedError
from localinfer.server.completion import LlamaTask
from localinfer.server.errors import invalid
from localinfer.server.generation import generate
from localinfer.server.schemas.completion import InfillRequest
from localinfer.text.fill_in import File, fill_in_prompt

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


def gap(llm: LLM, prefix: str, suffix: str, *, files: Sequence[File] = (), room: int | None = None) -> array[int]:
    """The prompt for a gap. ApiError 400 if the model fills none in."""
    try:
        return fill_in_prompt(llm.tokenizer, prefix, suffix, files=files, room=room)
    except UnsupportedError as error:
        raise invalid(f"{error.message} ({error.hint})", code="unsupported_model") from error


def marks(llm: LLM) -> tuple[int, ...]:
    """The tokens around gaps, with which an answer that fills one in ends."""
    return llm.tokenizer.fill_in.marks if llm.tokenizer.fill_in is not None else ()
