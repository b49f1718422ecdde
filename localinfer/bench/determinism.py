"""Whether load changes tokens: the recorded workload, alone and plain, then in crowds of every kind.

The baseline answers one request after the other: one thread, one token of a prompt at a time, no prefix cache, no
drafts. Then the same requests come at random in batches of up to 2 … 32, with a cold and a warm cache, with so few KV
blocks that answers have to give theirs back, with drafts, and on several threads. Every token is compared, and every
log probability that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

from localinfer.bench.workload import Case, workload
from localinfer.engine.draft import DraftModel
from localinfer.engine.engine import Engine
from localinfer.engine.load import LoadedModel, load_model
from localinfer.engine.plan import SPARE_ROWS, Wishes
from localinfer.engine.request import Choice, Request, TextDecoder, TokenLogprob
from localinfer.engine.speculation import SpeculationMode
from localinfer.engine.statistics import EngineStatistics
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import KvType
from localinfer.text.sequence_breakers import SequenceBreakers
from localinfer.text.tokenizer import Tokenizer

CONTEXT = 256
LARGEST_BATCH = 32
MUST_OCCUR = ("mixed", "cached", "preempted", "speculated", "rejected")
SEED = 20
NOISE = 0.1  # the share of steps before which a request comes that is given up before long


class Answer(NamedTuple):
    """One choice of a request: what must not depend on the load."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob | None, ...]  # of the prompt and of the answer, where they are asked for
    finish_reason: str | None


class Variant(NamedTuple):
    """A way to answer the workload. `passes` > 1 finds the cache warm; `few_blocks`: too few for the whole batch."""

    name: str
    batch: int
    threads: int
    chunk: int = 0
    cache: bool = True
    passes: int = 1
    few_blocks: bool = False
    speculation: SpeculationMode = "off"
    arrivals: float = 0.5


@dataclass
class Counts:
    """Requests and tokens that were compared, tokens (or log probabilities) that differ, and steps of each kind."""

    requests: int = 0
    tokens: int = 0
    different: int = 0
    steps: int = 0
    mixed: int = 0  # processed prompts and went on with answers
    cached: int = 0  # had a request whose beginning was found in the cache
    preempted: int = 0  # made an answer give its blocks back
    speculated: int = 0  # had drafted tokens
    rejected: int = 0  # ... some of which were rejected
    accepted: int = 0  # ... some of which were accepted

    def count(self, before: EngineStatistics, after: EngineStatistics) -> None:
        """What one step has changed in an engine's statistics."""
        self.steps += after.steps - before.steps
        self.mixed += after.steps_mixed - before.steps_mixed
        self.cached += after.steps_cached - before.steps_cached
        self.preempted += after.preemptions > before.preemptions
        self.speculated += after.steps_speculated - before.steps_speculated
        self.rejected += after.rejected > before.rejected
        self.accepted += after.accepted > before.accepted


@dataclass
class Report:
    """All counts, and those of every variant by its name."""

    total: Counts = field(default_factory=Counts)
    variants: dict[str, Counts] = field(default_factory=dict)

    def add(self, name: str, counts: Counts) -> None:
        self.variants[name] = counts
        self.total = Counts(*map(sum, zip(astuple(self.total), astuple(counts), strict=True)))

    @property
    def missing(self) -> list[str]:
        """Kinds of steps that did not occur: then nothing is known of them."""
        return [kind for kind in MUST_OCCUR if not getattr(self.total, kind)]

    @property
    def passed(self) -> bool:
        return not self.total.different and not self.missing

    def as_data(self) -> dict[str, Any]:
        """What `--determinism --json` prints, beside the model."""
        return asdict(self.total) | {"variants": {name: asdict(counts) for name, counts in self.variants.items()}}


def variants(threads: int, draft: bool) -> list[Variant]:
    """What is tried, on one thread and on `threads`."""
    tried = [
        Variant("batches of 2, chunks of 5", 2, 1, chunk=5, cache=False),
        Variant("batches of 4, cache cold and warm", 4, threads, passes=2),
        Variant("batches of 8, prompt lookup", 8, threads, speculation="ngram"),
        Variant("batches of 16, few blocks", 16, threads, few_blocks=True),
        Variant("batches of 32", LARGEST_BATCH, threads, cache=False),
        Variant(
            "batches of 32, all at once", LARGEST_BATCH, 1, passes=2, few_blocks=True, speculation="ngram", arrivals=1.0
        ),
        Variant("batches of 32, drafts where they pay off", LARGEST_BATCH, threads, speculation="auto"),
    ]
    if draft:
        tried.append(Variant("batches of 8, draft model", 8, threads, few_blocks=True, speculation="draft"))
    return tried


def compare(
    file: ModelFile,
    tokenizer: Tokenizer,
    *,
    draft: ModelFile | None = None,
    threads: int = 0,
    backend: str = "auto",
    kv_types: tuple[KvType, KvType] = ("f16", "f16"),
    progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Answers the workload in every way. `threads` (at least two) are "several"; `progress` hears what comes next."""
    own = file.metadata.get_int(f"{file.metadata.get_str('general.architecture')}.context_length", minimum=2)
    wishes = Wishes(min(CONTEXT, own), *kv_types, 1, LARGEST_BATCH)
    models: dict[int, LoadedModel] = {}

    def engine(variant: Variant) -> Engine:
        if variant.threads not in models:
            wanted = wishes._replace(threads=variant.threads)
            models[variant.threads] = load_model(file, wanted, draft=draft, backend=backend)
        return _engine(models[variant.threads], tokenizer, variant)

    try:
        progress("baseline")
        plain = engine(Variant("baseline", 1, 1, chunk=1, cache=False))
        cases = workload(tokenizer, plain.config.context)
        cases = [_with_stop(case, _alone(plain, tokenizer, case)) if case.stops else case for case in cases]
        expected = [_alone(plain, tokenizer, case) for case in cases]
        report = Report()
        for variant in variants(max(2, threads), draft is not None):
            progress(variant.name)
            crowded, counts = engine(variant), Counts()
            for number in range(variant.passes):
                found = _crowd(crowded, tokenizer, cases, Random(SEED + number), variant.arrivals, counts)
                for one, other in zip(expected, found, strict=True):
                    _compare(one, other, counts)
            report.add(variant.name, counts)
    finally:
        for model in models.values():
            model.executable.close()
            if model.draft:
                model.draft.close()
    return report


def _engine(model: LoadedModel, tokenizer: Tokenizer, variant: Variant) -> Engine:
    """An engine on an executable that others used before: what their blocks hold is not in its cache."""
    config = model.plan.config
    blocks = config.kv_blocks
    if variant.few_blocks:
        blocks = config.context // config.block_size + 1  # one context: little more than the longest answer
    config = replace(
        config,
        max_sequences=variant.batch,
        max_rows=min(config.max_rows, variant.batch + SPARE_ROWS),
        kv_blocks=blocks,
    )
    draft = None
    if variant.speculation == "draft" and model.draft and model.plan.draft:
        size = model.plan.draft.program.vocab_size
        draft = DraftModel(model.draft, replace(config, max_rows=variant.batch), size, prefix_cache=variant.cache)
    return Engine(
        model.executable,
        config,
        model.plan.program.vocab_size,
        end_ids=sorted(tokenizer.stop_ids),
        prefix_cache=variant.cache,
        chunk=variant.chunk,
        paced=not variant.few_blocks,  # large pieces of prompts fill the blocks
        speculation=variant.speculation,
        draft=draft,
        find_breakers=SequenceBreakers(tokenizer, model.plan.program.vocab_size).find,
    )


def _with_stop(case: Case, answers: list[Answer]) -> Case:
    """The same request with a piece from the middle of its answer as its stop string."""
    text = answers[0].text
    piece = text[len(text) // 2 :][:3]
    return case._replace(params=case.params.changed(stop=(piece,))) if piece else case


def _alone(engine: Engine, tokenizer: Tokenizer, case: Case) -> list[Answer]:
    return _crowd(engine, tokenizer, [case], None, 1.0, Counts())[0]


def _crowd(
    engine: Engine, tokenizer: Tokenizer, cases: Sequence[Case], chance: Random | None, arrivals: float, counts: Counts
) -> list[list[Answer]]:
    """Answers the cases, in an order and at times that `chance` says; without it in their order, and nothing else.

    `arrivals` is the chance that a request comes before a step.
    """
    coming = list(range(len(cases)))
    if chance:
        chance.shuffle(coming)
    requests: dict[int, Request] = {}
    texts: dict[tuple[int, int], str] = {}
    given_up: list[Request] = []
    while coming or engine.has_work:
        if coming and (chance is None or not engine.has_work or chance.random() < arrivals):
            number = coming.pop()
            requests[number] = _add(engine, tokenizer, cases[number])
        elif chance and chance.random() < NOISE:
            given_up.append(_add(engine, tokenizer, chance.choice(cases)))
        if chance and given_up and chance.random() < NOISE:
            engine.abort(given_up.pop().id)
        before = engine.statistics
        for output in engine.step():
            if output.request.error:
                raise output.request.error
            key = output.request.id, output.index
            texts[key] = texts.get(key, "") + output.text
        counts.count(before, engine.statistics)
    if engine.kv.free != engine.kv.count:
        raise RuntimeError(f"{engine.kv.count - engine.kv.free} KV blocks are used by nobody")
    return [
        [_answer_of(request, choice, texts[request.id, choice.index]) for choice in request.choices]
        for _, request in sorted(requests.items())
    ]


def _answer_of(request: Request, choice: Choice, text: str) -> Answer:
    told = [*(request.prompt_logprobs or ()), *choice.logprobs]
    return Answer(tuple(choice.generated), text, tuple(told), choice.finish_reason)


def _add(engine: Engine, tokenizer: Tokenizer, case: Case) -> Request:
    def decoder() -> TextDecoder:
        return tokenizer.detokenizer(skip_special=True, strip_prefix=False)

    return engine.add_request(case.prompt, case.params, decoder)


def _compare(expected: list[Answer], found: list[Answer], counts: Counts) -> None:
    counts.requests += 1
    counts.different += abs(len(expected) - len(found))
    for one, other in zip(expected, found, strict=False):
        counts.tokens += len(one.tokens)
        different = sum(a != b for a, b in zip_longest(one.tokens, other.tokens))
        different = different or sum(a != b for a, b in zip_longest(one.logprobs, other.logprobs))
        counts.different += different or one != other
