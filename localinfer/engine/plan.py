"""The memory plan: what a model will take, made before anything is loaded and compared with what is free.

The default context is the model's own, but at most DEFAULT_CONTEXT, and less if memory is short: the largest multiple
of CONTEXT_STEP that fits. A context that was asked for is never changed: it fits, or it is refused with the cheapest
changes that would fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, get_args

from localinfer.engine.checks import LARGEST_SIZE, whole, wrong
from localinfer.engine.memory import free_memory, resident
from localinfer.errors import LocalInferError, MemoryPlanError
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Backend, KvType, LoadConfig
from localinfer.kernels.host.sampler import sampler_bytes
from localinfer.kernels.program import Program
from localinfer.models import record, refuse_unused

DEFAULT_CONTEXT = 8192
CONTEXT_STEP = 256
BLOCK_SIZE = 16
# Tokens of a prompt in one step: a multiple of the kernels' tiles. Twice as many make long prompts a few percent faster
# on some models, and take twice the memory for activations.
CHUNK = 144
# Rows of logits in a step beside one for every sequence: for drafted tokens, and log probabilities of prompts.
SPARE_ROWS = 8
TEXTS = 16  # that an encoder computes in one step, if they are short enough
# The part of free memory that a pool of keys and values takes, if nobody says how large it should be.
POOL_SHARE = 0.25
THREADS_PER_PROCESSOR = 4  # threads beyond that only wait for each other


class Wishes(NamedTuple):
    """What was asked for.

    context     tokens of one sequence; None leaves it to the plan
    chunk       prompt tokens in one step
    kv_tokens   tokens that the KV pool holds for all sequences together: None is a whole context for each, 0 is as many
                contexts as take at most POOL_SHARE of what is free, but at least one
    promised    bytes that other models in this process have reserved and do not hold yet
    """

    context: int | None = None
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    threads: int = 0
    max_sequences: int = 1
    chunk: int = CHUNK
    block_size: int = BLOCK_SIZE
    kv_tokens: int | None = None
    promised: int = 0


class DraftPlan(NamedTuple):
    """What a draft model is loaded with."""

    program: Program
    config: LoadConfig


class Plan(NamedTuple):
    """What loading takes, in bytes by purpose, beside `free` bytes that may still be taken.

    "process" is what the process held when the plan was made, tokenizer included; all parts together are the expected
    peak of its resident memory. Those of a draft model are called "draft ...".
    """

    program: Program
    backend: str
    config: LoadConfig
    parts: dict[str, int]
    free: int
    reason: str  # why the context is what it is
    draft: DraftPlan | None = None

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def needed(self) -> int:
        """What is not held yet."""
        return self.total - self.parts["process"]

    @property
    def fits(self) -> bool:
        return self.needed <= self.free

    def __str__(self) -> str:
        rows = [f"{name:18} {size / 2**20:10.1f} MiB" for name, size in self.parts.items()]
        rows.append(f"{'total':18} {self.total / 2**20:10.1f} MiB, {self.free / 2**20:.1f} MiB are free")
        rows.append(f"{'context':18} {self.config.context} tokens ({self.reason})")
        return "\n".join(rows)


def make_plan(file: ModelFile, backend: Backend, wishes: Wishes, draft: ModelFile | None = None) -> Plan:
    """The plan for a model file, and the one of a draft model if there is to be one.

    LocalInferError if a wish makes no sense, MemoryPlanError if what was asked for does not fit what is free,
    UnsupportedError if the file has tensors that the family does not know.
    """
    wishes = _checked(wishes)
    free = max(0, free_memory() - wishes.promised)

    def plan_for(wishes: Wishes, context: int, reason: str = "as asked for") -> Plan:
        if wishes.kv_tokens != 0:
            return plan_pool(wishes, context, reason)
        smallest = plan_pool(wishes._replace(kv_tokens=context), context, reason)
        one = max(1, smallest.parts.get("kv", 0) + smallest.parts.get("draft kv", 0))
        left = free - smallest.needed + one
        contexts = min(wishes.max_sequences, int(min(left, free * POOL_SHARE)) // one)
        return plan_pool(wishes._replace(kv_tokens=contexts * context), context, reason) if contexts > 1 else smallest

    def plan_pool(wishes: Wishes, context: int, reason: str) -> Plan:
        program = record(file.metadata, file, context)
        refuse_unused(program, file.tensors)
        config = load_config(wishes, context, whole_texts=program.purpose != "text")
        reserved = backend.plan(program, file, config).parts | {"sampler": sampler_bytes(program.vocab_size, context)}
        file.drop_pages()  # loading does the same when it has read them
        drafting = None
        if draft:
            drafting, more = plan_draft(draft, context, config)
            reserved |= {f"draft {name}": size for name, size in more.items()}
        # Asked for last: by now the backend's library is loaded.
        return Plan(program, backend.name, config, {"process": resident(), **reserved}, free, reason, drafting)

    def plan_draft(draft: ModelFile, context: int, config: LoadConfig) -> tuple[DraftPlan, dict[str, int]]:
        program = record(draft.metadata, draft, context)
        refuse_unused(program, draft.tensors)
        config = replace(config, max_rows=config.max_sequences)
        parts = backend.plan(program, draft, config).parts
        draft.drop_pages()
        return DraftPlan(program, config), parts | {"sampler": sampler_bytes(program.vocab_size, context)}

    if wishes.context is not None:
        plan = plan_for(wishes, wishes.context)
        if not plan.fits:
            raise _refusal(plan, wishes, plan_for)
        return plan
    own = file.metadata.get_int(f"{file.metadata.get_str('general.architecture')}.context_length", minimum=2)
    default = min(own, DEFAULT_CONTEXT)
    reason = "all that the model was made for" if own <= DEFAULT_CONTEXT else f"by default; the model goes to {own}"
    plan = plan_for(wishes, default, reason)
    if plan.fits:
        return plan
    context = _largest_context(lambda context: plan_for(wishes, context), default)
    if context == 0:
        raise _refusal(plan, wishes, plan_for)
    return plan_for(wishes, context, "what fits the memory that is free")


def kv_types(kv_type: str | tuple[KvType, KvType]) -> tuple[KvType, KvType]:
    """Types of keys and of values, from a pair of them, from two as in "f16,int8", or from one for both."""
    types: object = kv_type
    if isinstance(kv_type, str):
        types = tuple(kv_type.split(",")) if "," in kv_type else (kv_type, kv_type)
    if not isinstance(types, tuple) or len(types) != 2:
        raise wrong("kv_type", kv_type, "a type, or a pair of types: of keys and of values")
    return types  # make_plan looks at the names


def _checked(wishes: Wishes) -> Wishes:
    """The wishes as plain integers; LocalInferError names one that is of the wrong type or out of range."""
    context, tokens = wishes.context, wishes.kv_tokens
    for name in ("kv_type_k", "kv_type_v"):
        if getattr(wishes, name) not in get_args(KvType):
            raise wrong("kv_type", getattr(wishes, name), f"one of {', '.join(get_args(KvType))}")
    most_threads = THREADS_PER_PROCESSOR * (os.cpu_count() or 1)
    return wishes._replace(
        context=context if context is None else whole("context", context, 2, LARGEST_SIZE),
        threads=whole("threads", wishes.threads, 0, most_threads),
        max_sequences=whole("max_sequences", wishes.max_sequences, 1, LARGEST_SIZE),
        chunk=whole("chunk", wishes.chunk, 1, LARGEST_SIZE),
        kv_tokens=tokens if tokens is None else whole("kv_tokens", tokens, 0, LARGEST_SIZE),
    )


def load_config(wishes: Wishes, context: int, whole_texts: bool = False) -> LoadConfig:
    """The sizes to reserve. The pool holds one context at least: the longest answer must be possible.

    With `whole_texts` (encoders) a step has room for the longest text, and for several short ones: they keep nothing,
    so that the blocks of the pool cost no memory.
    """
    if whole_texts:
        wishes = wishes._replace(max_sequences=max(wishes.max_sequences, TEXTS), kv_tokens=None)
    context_blocks = -(-context // wishes.block_size)
    kv_blocks = wishes.max_sequences * context_blocks
    if wishes.kv_tokens is not None:
        kv_blocks = max(context_blocks, -(-wishes.kv_tokens // wishes.block_size))
    if kv_blocks > LARGEST_SIZE:
        raise LocalInferError(
            f"{wishes.max_sequences} sequences with a context of {context} tokens each are more than can be counted",
            "lower max_sequences or the context",
        )
    max_tokens = max(context if whole_texts else min(wishes.chunk, context), wishes.max_sequences)
    return LoadConfig(
        max_tokens=max_tokens,
        max_rows=max_tokens if whole_texts else min(max_tokens, wishes.max_sequences + SPARE_ROWS),
        max_sequences=wishes.max_sequences,
        context=context,
        kv_blocks=kv_blocks,
        block_size=wishes.block_size,
        kv_type_k=wishes.kv_type_k,
        kv_type_v=wishes.kv_type_v,
        threads=wishes.threads,
    )


def _largest_context(plan_for: Callable[[int], Plan], below: int) -> int:
    """The largest multiple of CONTEXT_STEP below `below` that fits; 0 if none does."""
    low, high = 0, -(-below // CONTEXT_STEP)  # low fits (or is 0), high does not
    while high - low > 1:
        middle = (low + high) // 2
        if plan_for(middle * CONTEXT_STEP).fits:
            low = middle
        else:
            high = middle
    return low * CONTEXT_STEP


def _refusal(plan: Plan, wishes: Wishes, plan_for: Callable[[Wishes, int], Plan]) -> MemoryPlanError:
    """Says what is missing, and which smallest changes would fit."""
    context, changes = plan.config.context, []
    if (wishes.kv_type_k, wishes.kv_type_v) != ("int8", "int8"):
        smaller = wishes._replace(kv_type_k="int8", kv_type_v="int8")
        if plan_for(smaller, context).fits:
            changes.append("keys and values as int8 (--kv-type int8)")
    if fitting := _largest_context(lambda context: plan_for(wishes, context), context):
        changes.append(f"a context of {fitting} tokens")
    hint = f"what would fit: {', or '.join(changes)}" if changes else "use a smaller model, or close other programs"
    parts = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in plan.parts.items() if name != "process")
    return MemoryPlanError(
        f"the model needs {plan.needed / 2**20:.0f} MiB with a context of {context} tokens ({parts}), "
        f"but {plan.free / 2**20:.0f} MiB are free",
        hint,
    )
