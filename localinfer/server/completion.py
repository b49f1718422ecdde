"""POST /completion: llama.cpp's own protocol, in which /infill speaks, too."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localinfer.engine.llm import LLM
from localinfer.engine.request import Choice, Output, Request, TokenLogprob
from localinfer.engine.sampling import LARGEST
from localinfer.engine.thread import Job
from localinfer.server.completions import MOST_ANSWERS
from localinfer.server.errors import invalid
from localinfer.server.generation import Task, generate
from localinfer.server.line_limits import LineLimits
from localinfer.server.logprobs import LEAST
from localinfer.server.parameters import room_for_answer, sampling_params
from localinfer.server.schemas.completion import (
    LlamaCompletion,
    LlamaCompletionRequest,
    LlamaFields,
    PromptObject,
    Timings,
    TokenAlternative,
    TokenProbability,
)
from localinfer.server.status import RANDOM_SEED, SAMPLERS, generation_params
from localinfer.server.streaming import event
from localinfer.text.detokenizer import Detokenizer

Piece = str | int | PromptObject | list[str | int]
_NO_SLOT = -1
_LONGEST_ID = 10  # digits
# Samplers by llama.cpp's names for them, each with what switches it off here.
_OFF: Mapping[str, Mapping[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "infill": {},
}
_OTHER_NAMES = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature"}


async def create(http: HttpRequest) -> Response:
    """The handler."""
    return await generate(http, LlamaCompletionTask)


class LlamaTask(Task[LlamaFields]):
    """What both endpoints have in common: prompts that are continued, and answers in llama.cpp's form."""

    id_prefix = "completion"

    def translated(self) -> LlamaFields:
        fields: LlamaFields = self.body.fields
        seed = None if fields.seed in (-1, RANDOM_SEED) else fields.seed
        self._without_effect: list[str] = []
        return msgspec.structs.replace(fields, n=fields.n or fields.n_cmpl, seed=seed)

    def ask(self, prompts: Sequence[Sequence[int]], **more: Any) -> list[Job]:
        """A job for each of these prompts. ApiError for what makes no sense."""
        if len(prompts) * self.choices_per_prompt > MOST_ANSWERS:
            raise invalid(f"prompt: more than {MOST_ANSWERS} answers are asked for", param="prompt")
        if self.fields.logit_bias is not None:
            bias = _bias(self.fields.logit_bias, self.model.llm)
            self.fields = msgspec.structs.replace(self.fields, logit_bias=bias)
        off = self._switched_off()
        if self._without_effect:
            self.body = replace(self.body, unknown=(*self.body.unknown, *self._without_effect))
        jobs = []
        for prompt in prompts:
            room = room_for_answer(len(prompt), self.model.llm.context, self.wanted, "prompt")
            if room is not None:
                room = max(1, room)  # what is drawn though nothing is wanted is thrown away
            chances = {"logprobs": True, "top_logprobs": self.fields.n_probs} if self.fields.n_probs else {}
            params = sampling_params(self.fields, self.model.llm.chat_defaults, room, **chances)
            params = params.changed(**off, **more)
            self.prepare(params)
            jobs.append(Job(prompt, params, self._new_decoder, self.fields.priority or 0))
        return jobs

    def start(self, requests: list[Request]) -> None:
        super().start(requests)
        self._answers = [
            _Answer(self, request, place) for request in requests for place in range(self.choices_per_prompt)
        ]

    @property
    def enough(self) -> bool:
        return all(answer.over for answer in self._answers)

    def kept(self, output: Output) -> str:
        return self._answers[self.index(output)].take(output)

    def whole(self, texts: Sequence[str]) -> object:
        answers = [
            self._last(index, content=text, tokens=self._answers[index].tokens if self.fields.return_tokens else [])
            for index, text in enumerate(texts)
        ]
        for answer, found in zip(self._answers, answers, strict=True):
            if self.fields.n_probs:
                found["completion_probabilities"] = self._probabilities(answer.chances)
        chosen = [self._chosen(answer) for answer in answers]
        return chosen[0] if len(chosen) == 1 else chosen

    def events(self, outputs: Sequence[Output]) -> bytes:
        parts = []
        for output in outputs:
            index = self.index(output)
            answer = self._answers[index]
            if answer.over:
                continue
            text = answer.take(output)
            if text or answer.over:
                parts.append(self._piece(index, text))
            if answer.over:
                parts.append(event(msgspec.json.encode(self._chosen(self._last(index, content="", tokens=[])))))
        return b"".join(parts)

    def closing(self) -> bytes:
        return b""  # the last event has said that it is the last

    def _piece(self, index: int, text: str) -> bytes:
        """The event with what came since the last one; none if that is nothing."""
        answer = self._answers[index]
        tokens, chances = answer.news()
        if not (text or tokens or chances):
            return b""
        made = {
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": _NO_SLOT,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(answer.request.prompt),
        }
        if self.fields.timings_per_token:
            made["timings"] = _timings(answer.request, len(answer.tokens), time.perf_counter())
        if chances:
            made["completion_probabilities"] = self._probabilities(chances)
        return event(msgspec.json.encode(made))

    def _last(self, index: int, content: str, tokens: list[int]) -> dict[str, Any]:
        """Everything that is known of a finished answer."""
        answer, llm = self._answers[index], self.model.llm
        request, predicted = answer.request, 0 if self.wanted == 0 else answer.choice.generated_count
        full = len(request.prompt) + predicted >= llm.context
        made = LlamaCompletion(
            index=index,
            content=content,
            tokens=tokens,
            id_slot=_NO_SLOT,
            stop=True,
            model=self.model.name,
            tokens_predicted=predicted,
            tokens_evaluated=len(request.prompt),
            tokens_cached=request.cached or 0,
            generation_settings=generation_params(request.params, request.seed),
            prompt=llm.tokenizer.decode(request.prompt),
            has_new_line=answer.has_new_line,
            truncated=full and (self.wanted is None or predicted < self.wanted),
            stop_type=answer.stop_type,
            stopping_word=answer.choice.stops.matched or "",
            timings=_timings(request, predicted, request.last_token),
        )
        found: dict[str, Any] = msgspec.to_builtins(made)
        return found

    def _chosen(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Those fields that were asked for."""
        if not self.fields.response_fields:
            return answer
        chosen = {}
        for path in self.fields.response_fields:
            found: Any = answer
            for key in path.split("/"):
                found = found.get(key, UNSET) if isinstance(found, dict) else UNSET
            if found is not UNSET:
                chosen[path] = found
        return chosen

    def _probabilities(self, entries: Iterable[TokenLogprob]) -> list[Any]:
        bytes_of = self.model.llm.tokenizer.token_bytes

        def alternative(token: int, logprob: float) -> dict[str, Any]:
            raw = bytes_of(token)
            text = raw.decode("utf-8", "replace")
            return {"id": token, "token": text, "bytes": list(raw), "logprob": max(logprob, LEAST)}

        made = []
        for entry in entries:
            top = [TokenAlternative(**alternative(*each)) for each in entry.top]
            made.append(TokenProbability(**alternative(entry.token, entry.logprob), top_logprobs=top))
        return made

    @property
    def wanted(self) -> int | None:
        """How many tokens were asked for; None: as many as the context has room for."""
        asked = self.fields.max_tokens if self.fields.n_predict is None else self.fields.n_predict
        return None if asked is None or asked < 0 else asked

    def _switched_off(self) -> dict[str, Any]:
        """The parameters of samplers that `samplers` does not name."""
        if self.fields.samplers is None:
            return {}
        named = [_OTHER_NAMES.get(name, name) for name in self.fields.samplers]
        for name in named:
            if name not in _OFF:
                raise invalid(f"samplers: {name!r} is none of {', '.join(_OFF)}", param="samplers")
        if "infill" in named:
            self._without_effect.append("samplers.infill")
        ours = [name for name in SAMPLERS if name in named]
        if [name for name in named if name in SAMPLERS] != ours:
            self._without_effect.append("samplers.order")
        return {parameter: value for name, off in _OFF.items() if name not in named for parameter, value in off.items()}

    def _new_decoder(self) -> Detokenizer:
        return self.model.llm.tokenizer.detokenizer(skip_special=self.skip_special, strip_prefix=False)

    def new_limits(self) -> LineLimits:
        """What ends an answer at a line."""
        return LineLimits(self.fields.n_indent or 0, max(0, self.fields.t_max_predict_ms or 0) / 1000)

    @property
    def answers_nothing(self) -> bool:
        """Whether only the prompt is computed."""
        return self.wanted == 0


class LlamaCompletionTask(LlamaTask):
    """Texts to be continued."""

    schema = LlamaCompletionRequest
    path = "/completion"

    def jobs(self) -> list[Job]:
        asked: LlamaCompletionRequest = self.body.fields
        prompts = [_ids(prompt, self.model.llm) for prompt in _prompts(asked.prompt)]
        if not prompts or not all(prompts):
            raise invalid("prompt: it is empty", param="prompt")
        return self.ask(prompts)


class _Answer:
    """One answer as it comes."""

    def __init__(self, task: LlamaTask, request: Request, place: int) -> None:
        self.request = request
        self.over = False
        self.stop_type = "none"
        self.has_new_line = False
        self.tokens: list[int] = []
        self.chances: list[TokenLogprob] = []
        self._place = place
        self._nothing = task.answers_nothing
        self._limits = task.new_limits()
        self._told_tokens = 0
        self._told_chances = 0

    @property
    def choice(self) -> Choice:
        return self.request.choices[self._place]

    def take(self, output: Output) -> str:
        """The text that a step brought; nothing once the answer is over."""
        if self.over:
            return ""
        if self._nothing:
            self.over, self.stop_type = True, "limit"
            return ""
        text = self._limits.push(output.text) if output.text else ""
        if output.finish_reason is not None:
            text += self._limits.finish()
            self.stop_type = self._reason(output.finish_reason)
        if output.token is not None and self.stop_type != "eos":
            self.tokens.append(output.token)
        if output.logprob is not None:
            self.chances.append(output.logprob)
        if self._limits.over:
            self.stop_type = "limit"
        self.over = self._limits.over or output.finish_reason is not None
        self.has_new_line = self.has_new_line or "\n" in text
        return text

    def news(self) -> tuple[list[int], list[TokenLogprob]]:
        """Tokens, and their probabilities, since the last call."""
        tokens, chances = self.tokens[self._told_tokens :], self.chances[self._told_chances :]
        self._told_tokens, self._told_chances = len(self.tokens), len(self.chances)
        return tokens, chances

    def _reason(self, finish_reason: str) -> str:
        if finish_reason != "stop":
            return "limit"
        return "eos" if self.choice.stops.matched is None else "word"


def _prompts(prompt: Piece | list[Piece]) -> Sequence[Piece]:
    """The prompts one by one: a list with a token id in it is one, a list without is one of prompts."""
    if not isinstance(prompt, list):
        return [prompt]
    ids = any(isinstance(item, int) for item in prompt)
    if ids and not all(isinstance(item, str | int) for item in prompt):
        raise invalid("prompt: a list holds prompts, or the texts and token ids of one prompt", param="prompt")
    return [prompt] if ids else prompt  # type: ignore[list-item]


def _ids(prompt: Piece, llm: LLM) -> array[int]:
    """The tokens of one prompt."""
    if isinstance(prompt, PromptObject):
        prompt = prompt.prompt_string
    pieces = prompt if isinstance(prompt, list) else [prompt]
    ids: array[int] = array("i")
    for place, piece in enumerate(pieces):
        if isinstance(piece, str):
            ids += llm.tokenize(piece, add_special=place == 0, parse_special=True)
        else:
            ids.append(piece)
    return ids


def _bias(given: Any, llm: LLM) -> dict[int, float]:
    """The bias of each token, whether its id or its text was given. ApiError for what is neither."""
    bias: dict[int, float] = {}
    for token, value in given.items() if isinstance(given, dict) else given:
        if value is True:
            raise invalid("logit_bias: a bias is a number, or false", param="logit_bias")
        added = -LARGEST if value is False else float(value)
        if isinstance(token, str) and not (token.isdecimal() and len(token) <= _LONGEST_ID):
            ids: Iterable[int] = llm.tokenize(token, add_special=False, parse_special=True)
        else:
            ids = [int(token)]
        for id in ids:
            if not 0 <= id < llm.tokenizer.vocab_size:
                words = f"logit_bias: there is no token {id}, the last one is {llm.tokenizer.vocab_size - 1}"
                raise invalid(words, param="logit_bias")
            bias[id] = added
    return bias


def _timings(request: Request, predicted: int, now: float) -> Timings:
    """How long the prompt took, and what was drawn until `now`."""
    prompt, first = len(request.prompt) - (request.cached or 0), request.first_token or now
    prompt_ms, predicted_ms = (max(0.0, 1000 * seconds) for seconds in (first - request.first_step, now - first))
    return Timings(
        cache_n=request.cached or 0,
        prompt_n=prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / prompt if prompt else 0.0,
        prompt_per_second=1000 * prompt / prompt_ms if prompt_ms else 0.0,
        predicted_n=predicted,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / predicted if predicted else 0.0,
        predicted_per_second=1000 * predicted / predicted_ms if predicted_ms else 0.0,
    )
