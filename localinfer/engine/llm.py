"""The Python API: load a model once, then generate, stream and chat.

from localinfer import LLM

with LLM("smollm2:135m") as llm:
    for chunk in llm.chat([{"role": "user", "content": "Hello!"}], stream=True):
        print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakValueDictionary

from localinfer.checkpoints import open_model
from localinfer.engine.admission import HOW_TO_ASK, MADE_FOR
from localinfer.engine.checks import token_ids, wrong
from localinfer.engine.engine import Engine
from localinfer.engine.load import chat_defaults, load, say
from localinfer.engine.plan import CHUNK, Plan, Wishes, kv_types
from localinfer.engine.pooling import DEFAULT_POOLING, Pooling, own_pooling, unit_length
from localinfer.engine.prompt import Message, chat_prompt
from localinfer.engine.request import (
    Choice,
    FinishReason,
    LogitsProcessor,
    Output,
    Request,
    TextDecoder,
    TokenLogprob,
)
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.speculation import SpeculationMode
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.formats.closing import Closing
from localinfer.hub.store import resolve
from localinfer.kernels.base import KvType, Progress
from localinfer.kernels.program import Purpose
from localinfer.text.chat_template import ChatTemplate, template_for
from localinfer.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from localinfer.text.constraint import Thought
    from localinfer.text.tool_format import ReasoningFormat, ToolFormat

PROMPT_END = 16  # tokens of a prompt that may end with the mark of a thought
UNMARKED = (
    "the chat template changes the texts of messages, so that special tokens in them cannot be told from its own: "
    "a message that spells one is read as having it"
)


@dataclass(frozen=True)
class Completion:
    """An answer and how it came about.

    `tokens` are the tokens drawn, the one that ended the answer included; `text` is without it. `finish_reason` is
    "stop" (the model ended, or a stop text or token came), "length" (max_tokens, or the context is full), "loop" (it
    repeated itself, and was watched for that) or "cancelled"; `finish_detail` says which, in words. `cached_tokens` of
    the prompt were not computed again. `seed` gives the same answer again. `logprobs` has one entry per token, and
    `prompt_logprobs` one per token of the prompt (None for the first), if asked for. `others` are the further answers,
    if more than one was asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    finish_detail: str
    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float
    prefill_seconds: float  # from the first step to the first token
    decode_seconds: float  # from the first token to the last
    seed: int
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    others: tuple[Completion, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation. Its tokens spare the next turn from computing it again."""
        return {"role": "assistant", "content": self.text, "tokens": list(self.tokens)}

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, by the time they took; 0 if there are none."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were computed, by the time until the first token; 0 if there was none."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of an answer: the text that is certain by now, and the tokens drawn since its last piece."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None  # of the last piece
    index: int = 0  # which of several answers


class TextStream(Closing, Iterator[TextChunk]):
    """The pieces of an answer as they come; the model runs while the next one is asked for.

    The pieces of several answers to one request come as they are made, and each tells which it is of. `cancel` may be
    called from any thread or a signal handler: the answer then ends within one step, with "cancelled". Leaving a `with`
    block, or dropping the stream, ends it too.
    """

    def __init__(self, llm: LLM, request: Request) -> None:
        self._llm = llm
        self._request = request
        self._outputs: deque[Output] = deque()
        self._texts: dict[int, str] = {}  # of each answer
        self._silent: dict[int, list[int]] = {}  # tokens of each answer that have brought no text yet
        self._over = False

    def __next__(self) -> TextChunk:
        while not self._over:
            while not self._outputs:
                if self._request.finish_reason is not None:  # waiting for more would be waiting for ever
                    self._over = True
                    raise self._request.error or LocalInferError("the rest of the answer was lost", "ask again")
                self._llm._step()
            chunk = self._next_piece()
            self._over = self._request.finish_reason is not None and not self._outputs
            if self._request.error is not None:
                self._over = True
                raise self._request.error
            if chunk.text or chunk.finish_reason:
                del self._silent[chunk.index]
                return chunk
        raise StopIteration

    def _next_piece(self) -> TextChunk:
        """What has come of the answer that the next output belongs to."""
        text, reason, index = "", None, self._outputs[0].index
        tokens = self._silent.setdefault(index, [])
        while self._outputs and reason is None and self._outputs[0].index == index:
            output = self._outputs.popleft()
            text += output.text
            tokens += [] if output.token is None else [output.token]
            reason = output.finish_reason
        self._texts[index] = self._texts.get(index, "") + text
        return TextChunk(text, tuple(tokens), reason, index)

    @property
    def completion(self) -> Completion:
        """The whole answer, once the stream is exhausted."""
        if self._request.finish_reason is None or not self._over:
            raise LocalInferError("the answer is not complete yet", "read the stream to its end first")
        first, *others = (self._completion(choice) for choice in self._request.choices)
        return replace(first, others=tuple(others))

    def _completion(self, choice: Choice) -> Completion:
        request = self._request
        started = request.first_step or time.perf_counter()
        told = request.prompt_logprobs
        return Completion(
            text=self._texts.get(choice.index, ""),
            tokens=tuple(choice.generated),
            finish_reason=choice.finish_reason or "error",
            finish_detail=choice.finish_detail,
            prompt_tokens=len(request.prompt),
            cached_tokens=request.cached or 0,
            queue_seconds=started - request.arrived,
            prefill_seconds=max(0.0, request.first_token - started),
            decode_seconds=request.last_token - request.first_token,
            seed=request.seed,
            logprobs=tuple(choice.logprobs) if request.params.logprobs else None,
            prompt_logprobs=None if told is None else tuple(told),
        )

    def cancel(self) -> None:
        self._llm._engine.abort(self._request.id)

    def close(self) -> None:
        """Ends the answer if it is not over."""
        if self._request.finish_reason is None and not self._llm.closed:
            self.cancel()

    def __del__(self) -> None:
        self.close()


class LLM(Closing):
    """A loaded model. One thread uses it at a time; `TextStream.cancel` may come from another.

    Sampling parameters are given as a SamplingParams, by name, or both (names win): `generate` and `stream` are
    greedy by default, `chat` starts from `chat_defaults`.

    path            the model file; `name` is what it was asked for by
    context         tokens that prompt and answer may take together
    backend         the name of the backend that runs it
    plan            what memory it takes
    metadata        the file's key-value pairs
    chat_defaults   the sampling parameters of `chat`
    notes           what a person should know about how it was loaded, and how its template treats messages
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context: int | None = None,
        threads: int = 0,
        backend: str = "auto",
        kv_type: str | tuple[KvType, KvType] = "f16",
        max_sequences: int = 1,
        chunk: int = CHUNK,
        kv_tokens: int | None = None,
        promised: int = 0,
        prefix_cache: bool = True,
        speculation: SpeculationMode = "auto",
        draft: str | os.PathLike[str] | None = None,
        chat_template: str | None = None,
        quant: str = "",
        progress: Progress | None = None,
    ) -> None:
        """Loads a model file, a safetensors folder, or an installed model by name.

        `context` None takes what model and memory allow (engine/plan.py); `threads` 0 takes one per physical core;
        `kv_type` is the type of the cached keys and values, or one for each: "f16,int8", or a pair; at most
        `max_sequences` answers are computed at the same time; prompts are processed in pieces of `chunk` tokens;
        `kv_tokens` and `promised` are as in Wishes (engine/plan.py); `chat_template` is jinja2 source to use instead
        of the file's; `quant` is the type (q8_0, q4_k, ...) that the matrices of a safetensors model are quantized to
        while it is loaded. `progress` is called with bytes done and bytes in all.

        `draft` is a small model of the same vocabulary that guesses the next tokens of this one. `speculation` "auto"
        has tokens guessed, by it and by looking earlier text up, where that measures faster; "ngram" (looking up) and
        "draft" always do, "off" never does. The answers are the same.

        Raises FormatError, UnsupportedError or MemoryPlanError, before much is read, and LocalInferError for an
        argument that makes no sense.
        """
        self.closed = True
        if not isinstance(model, str | os.PathLike):
            raise wrong("model", model, "the name of an installed model, or the path of a file or folder")
        self.path = resolve(model)
        self.name = os.fspath(model)
        if not isinstance(backend, str):
            raise wrong("backend", backend, 'the name of a backend, or "auto"')
        types = kv_types(kv_type)
        wishes = Wishes(context, *types, threads, max_sequences, chunk, kv_tokens=kv_tokens, promised=promised)
        if not isinstance(quant, str):
            raise wrong("quant", quant, 'the name of a type, or ""')
        if not isinstance(draft, str | os.PathLike | None):
            raise wrong("draft", draft, "the name of an installed model, or the path of a .gguf file")
        with ExitStack() as undo, ExitStack() as reading:  # a file that is not loaded does not stay open
            self._file = undo.enter_context(open_model(self.path, quant))
            self.metadata = self._file.metadata
            self.tokenizer = load_tokenizer(self.metadata)
            self.chat_defaults = chat_defaults(self.metadata)
            self.chat_template = _template(self.metadata, chat_template)
            loaded = load(
                self._file,
                self.tokenizer,
                wishes,
                backend=backend,
                prefix_cache=prefix_cache,
                speculation=speculation,
                draft=None if draft is None else reading.enter_context(open_model(resolve(draft))),
                progress=progress,
            )
            undo.pop_all()
        self._engine = loaded.engine
        self._constraints = loaded.constraints
        self._preparing: threading.Thread | None = None
        self.plan: Plan = loaded.plan
        self.notes = loaded.notes
        self.context = loaded.plan.config.context
        self.backend = loaded.plan.backend
        self._streams: WeakValueDictionary[int, TextStream] = WeakValueDictionary()  # dropped ones end
        self._stepping = threading.Lock()
        self.closed = False

    @cached_property
    def reasoning_format(self) -> ReasoningFormat | None:
        """How the model marks what it thinks before it answers; None if it does not."""
        from localinfer.text.format_probe import reasoning_format

        return reasoning_format(self.chat_template) if self.chat_template else None

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls of tools; None if its chat template shows it none."""
        from localinfer.text.format_probe import tool_format

        return tool_format(self.chat_template) if self.chat_template else None

    def thought(self, prompt: Sequence[int]) -> Thought | None:
        """Where a prompt leaves what the model thinks before it answers; None if it has no marks for that."""
        from localinfer.text.constraint import thought_behind

        marks = self.reasoning_format
        return None if marks is None else thought_behind(marks, self.tokenizer.decode(list(prompt)[-PROMPT_END:]))

    @property
    def engine(self) -> Engine:
        """The loop behind it, for those who run it themselves; then nobody calls the methods here that answer."""
        return self._engine

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        logits_processors: Iterable[LogitsProcessor] = (),
        **sampling: Any,
    ) -> Completion:
        """Continues a text (or token ids) and returns when the answer is complete.

        Special tokens are not looked for in the text; BOS is put in front where the model wants it. `stream` says what
        `logits_processors` are.
        """
        return _finished(self.stream(prompt, params, logits_processors=logits_processors, **sampling))

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        decoder: Callable[[], TextDecoder] | None = None,
        logits_processors: Iterable[LogitsProcessor] = (),
        **sampling: Any,
    ) -> TextStream:
        """Like `generate`, piece by piece. A prompt that does not fit the context is a ContextLengthError at once.

        `decoder` makes what turns the tokens of an answer into text; without it, special tokens have none.

        `logits_processors` are functions of the tokens so far (prompt and answer, an `array("i")` of their own) and the
        logits of the next one (a memoryview of floats; numpy.frombuffer makes an array of it, without a copy). They
        change the logits in place, one after the other, before everything that SamplingParams says; log probabilities
        stay those of the model. Each is called once for each token of each answer (or of each beam), in order and in
        the thread that runs the model, and slows all answers down by the time that it takes. The answer is the same
        whatever runs beside it if what they do follows from their arguments. Tokens guessed ahead (`speculation`) do
        not reach them: guesses are wrong more often, which costs time only. An exception in one ends the request, as a
        LocalInferError.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        chosen = _chosen(params, SamplingParams(), sampling)
        plain = partial(self.tokenizer.detokenizer, skip_special=True, strip_prefix=False)
        return self._start(ids, chosen, decoder or plain, logits_processors)

    @property
    def purpose(self) -> Purpose:
        """What the model is for: "text", or as an encoder "embedding" or "ranking"."""
        return self.plan.program.purpose

    @property
    def pooling(self) -> Pooling:
        """How the model was trained to make one vector of a text. UnsupportedError if it was made to rank texts."""
        return own_pooling(self.metadata)

    def embed(
        self, prompt: str | Sequence[int], *, pooling: Pooling | None = None, normalize: bool = True
    ) -> array[float]:
        """One vector (float32) for a text or token ids: the pooled hidden states of its tokens.

        `pooling` is the model's own, or as engine/pooling.py says. With `normalize` the length of the vector is 1.
        ContextLengthError if the text is longer than the context, UnsupportedError for a model that ranks.
        """
        self._check_open()
        ids = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        chosen = DEFAULT_POOLING if self.purpose == "ranking" else self.pooling
        (vector,) = self._embedded([self._engine.add_embedding(ids, pooling=chosen if pooling is None else pooling)])
        return unit_length(vector) if normalize else vector

    def rank(self, query: str, documents: Sequence[str]) -> list[float]:
        """A score for each document: the larger, the more it has to do with the query. For models made to rank.

        Scores are the numbers that the model's head gives; their logistic function is what the server calls relevance.
        ContextLengthError if the query and a document are longer than the context together; UnsupportedError for
        other models, whose embeddings can be compared instead.
        """
        self._check_open()
        if isinstance(documents, str) or not all(isinstance(text, str) for text in (query, *documents)):
            raise wrong("query and documents", (query, documents), "a text, and a list of texts")
        requests: list[Request] = []
        try:
            for document in documents:
                ids, second = self.tokenizer.encode_pair(query, document)
                requests.append(self._engine.add_embedding(ids, second=second))
        except BaseException:
            for request in requests:
                self._engine.abort(request.id)
            raise
        return [score[0] for score in self._embedded(requests)]

    def _embedded(self, requests: Sequence[Request]) -> list[array[float]]:
        """What comes of requests for embeddings."""
        try:
            while any(request.finish_reason is None for request in requests):
                self._step()
        finally:
            for request in requests:
                self._engine.abort(request.id)  # Ctrl-C: nobody waits for it any more
        for request in requests:
            if request.embedding is None:
                raise request.error or LocalInferError("the embedding was cancelled")
        return [request.embedding for request in requests if request.embedding is not None]

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        template_variables: Mapping[str, Any] | None = None,
        logits_processors: Iterable[LogitsProcessor] = (),
        **sampling: Any,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        template_variables: Mapping[str, Any] | None = None,
        logits_processors: Iterable[LogitsProcessor] = (),
        **sampling: Any,
    ) -> TextStream: ...

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        logits_processors: Iterable[LogitsProcessor] = (),
        **sampling: Any,
    ) -> Completion | TextStream:
        """Answers messages (`{"role": ..., "content": ...}`), written in the form that the model was trained on.

        What earlier turns computed is not computed again: append `Completion.message` to the messages and the next
        turn processes its new tokens only (engine/prompt.py). Special tokens in message contents are plain text; a
        note is added to `notes` and written to standard error where the template does not allow that.
        `template_variables` reach the chat template (`enable_thinking`, ...); `stream` says what `logits_processors`
        are. UnsupportedError if the model has no
        chat template.
        """
        ids = self.chat_tokens(messages, template_variables)
        chosen = _chosen(params, self.chat_defaults, sampling)
        if chosen.grammar is not None and chosen.thought is None:
            chosen = chosen.changed(thought=self.thought(ids))  # the grammar binds what follows it
        answer = self._start(ids, chosen, lambda: self.tokenizer.detokenizer(skip_special=True), logits_processors)
        return answer if stream else _finished(answer)

    def chat_tokens(
        self, messages: Sequence[Message], template_variables: Mapping[str, Any] | None = None
    ) -> array[int]:
        """The prompt that `chat` gives to the model for these messages."""
        if self.purpose != "text":
            raise UnsupportedError(f"this model does not chat: {MADE_FOR[self.purpose]}", HOW_TO_ASK[self.purpose])
        if self.chat_template is None:
            raise UnsupportedError(
                f"{self.name} has no chat template: it is not made for conversations",
                "use generate() or stream() to continue a text, or give a chat_template",
            )
        ids, contents_marked = chat_prompt(
            self.tokenizer, self.chat_template, messages, template_variables or {}, lambda: self.tool_format
        )
        if not contents_marked and UNMARKED not in self.notes:
            self.notes += (UNMARKED,)
            say(UNMARKED)
        return ids

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> array[int]:
        """Token ids of a text; see Tokenizer.encode."""
        if not isinstance(text, str):
            raise wrong("text", text, "a text")
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(token_ids("tokens", tokens, self.tokenizer.vocab_size), skip_special=skip_special)

    def cancel(self) -> None:
        """Ends every answer that is under way. May be called from any thread, and from a signal handler."""
        for reference in self._streams.valuerefs():  # a copy: another thread may be starting an answer
            if (stream := reference()) is not None:
                stream.cancel()

    def detach(self) -> None:
        """Makes the model independent of its file, which may then be shortened, overwritten or deleted.

        Costs a copy of the file's metadata. MemoryPlanError if memory is short.
        """
        self._file.detach()

    def prepare_grammars(self) -> None:
        """Makes the vocabulary ready for grammars and calls of tools, in a thread beside what else is asked.

        Without it, the first answer that is bound waits for that: a third of a second for 50,000 tokens, three for
        260,000.
        """
        self._check_open()
        if self._preparing is None:
            self._preparing = threading.Thread(target=self._constraints.prepare, name="grammars", daemon=True)
            self._preparing.start()

    def close(self) -> None:
        """Gives the memory back; nothing can be asked afterwards."""
        if not self.closed:
            self.closed = True
            if self._preparing is not None:
                self._preparing.join()  # it reads the file
            self._engine.close()
            self._file.close()

    def _start(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        new_decoder: Callable[[], TextDecoder],
        logits_processors: Iterable[LogitsProcessor],
    ) -> TextStream:
        self._check_open()
        if params.thinking_budget is not None and params.thought is None:
            params = params.changed(thought=self.thought(ids))
        request = self._engine.add_request(ids, params, new_decoder, logits_processors=logits_processors)
        stream = TextStream(self, request)
        self._streams[request.id] = stream
        return stream

    def _step(self) -> None:
        """One step of the engine, its outputs handed to the streams that wait for them."""
        self._check_open()
        if not self._stepping.acquire(blocking=False):
            raise LocalInferError(
                "two threads use one model at the same time",
                "let one thread at a time ask it (a threading.Lock around each answer does that); "
                "cancel() alone may come from any thread",
            )
        try:
            for output in self._engine.step():
                stream = self._streams.get(output.request.id)
                if stream is not None:
                    stream._outputs.append(output)
        finally:
            self._stepping.release()

    def _check_open(self) -> None:
        if self.closed:
            raise LocalInferError("the model is closed", "load it again: LLM(...)")


def _finished(stream: TextStream) -> Completion:
    with stream:
        for _ in stream:
            pass
    return stream.completion


def _chosen(params: SamplingParams | None, default: SamplingParams, changes: Mapping[str, Any]) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise wrong("params", params, "a SamplingParams")
    return (params or default).changed(**changes)


def _template(metadata: Mapping[str, Any], source: str | None) -> ChatTemplate | None:
    own = template_for(metadata)
    if source is None:
        return own
    if not isinstance(source, str):
        raise wrong("chat_template", source, "the jinja2 source of a template")
    tokens = (own.bos_token, own.eos_token) if own else ("", "")
    return ChatTemplate(source, *tokens)
