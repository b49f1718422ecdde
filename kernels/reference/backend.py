"""The reference backend's row in the table of backends. Importing this module does not import torch."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.kernels.base import Availability, KvType, LoadConfig, MemoryPlan, Progress, TensorSource
from localinfer.kernels.program import Attention, KvLayer, Op, Program, TextAttention, Value

if TYPE_CHECKING:
    from localinfer.kernels.reference.executable import ReferenceExecutable

Emulation = Literal["none", "cpu"]


class ReferenceBackend:
    """Runs a Program op by op in float32 torch: slow, obvious, and what other backends are compared with.

    `emulate="cpu"` rounds activations before matrix products, and before products with int8 keys and values, as the CPU
    backend does, so that the two can be compared closely.
    """

    name = "reference"

    def __init__(self, emulate: Emulation = "none") -> None:
        self._emulate = emulate

    def availability(self) -> Availability:
        if find_spec("torch") is None:
            return Availability(False, "torch is not installed (pip install 'localinfer[gpu]')")
        return Availability(True, "runs everywhere, slowly: it defines what the other backends must compute")

    def plan(self, program: Program, tensors: TensorSource, config: LoadConfig) -> MemoryPlan:
        """Weights as float32, the cache, and the most that the activations of a full step take at once."""
        slots = config.kv_blocks * config.block_size
        weights = (4 * math.prod(tensors.tensor(name).shape) for name in weight_names(program))
        kv = (slots * slot_bytes(layer, config.kv_type_k, config.kv_type_v) for layer in program.kv)
        return MemoryPlan(
            {"weights": sum(weights), "kv": sum(kv), "activations": _peak_activation_bytes(program, config)}
        )

    def load(
        self, program: Program, tensors: TensorSource, config: LoadConfig, progress: Progress | None = None
    ) -> ReferenceExecutable:
        availability = self.availability()
        if not availability.usable:
            raise LocalInferError(f"the reference backend is not usable: {availability.reason}")
        for layer in program.kv:
            slot_bytes(layer, config.kv_type_k, config.kv_type_v)  # refuses types that it does not know
        from localinfer.kernels.reference.executable import ReferenceExecutable

        return ReferenceExecutable(program, tensors, config, self._emulate, progress)


def weight_names(program: Program) -> list[str]:
    """The tensors that a program reads, once each: slices of one tensor share it."""
    return list(dict.fromkeys(w.name for op in program.ops for w in op.weights))


def last_uses(program: Program) -> list[list[Value]]:
    """For each op, the values that nothing reads after it."""
    last = {value: index for index, op in enumerate(program.ops) for value in (*op.outputs, *op.inputs)}
    dying: list[list[Value]] = [[] for _ in program.ops]
    for value, index in last.items():
        if value != program.output:
            dying[index].append(value)
    return dying


def slot_bytes(layer: KvLayer, type_k: KvType, type_v: KvType) -> int:
    """Bytes that one token takes in one layer. int8 has a float32 scale per head. UnsupportedError for other types."""
    n = layer.head_dim
    per_head = {"f16": 2 * n, "bf16": 2 * n, "int8": n + 4, "f32": 4 * n}
    for name in (type_k, type_v):
        if name not in per_head:
            raise UnsupportedError(f"KV type {name!r} on the reference backend", f"it has {', '.join(per_head)}")
    return layer.n_kv_heads * (per_head[type_k] + per_head[type_v])


def _peak_activation_bytes(program: Program, config: LoadConfig) -> int:
    """The largest sum over live values, and over what an attention op needs for one sequence on top of them."""
    rows = {"tokens": config.max_tokens, "rows": config.max_rows}
    live = peak = 0
    for op, dying in zip(program.ops, last_uses(program), strict=True):
        live += sum(4 * rows[v.dim] * v.width for v in op.outputs)
        peak = max(peak, live + _scratch_bytes(op, program, config))
        live -= sum(4 * rows[v.dim] * v.width for v in dying)
    return peak


def _scratch_bytes(op: Op, program: Program, config: LoadConfig) -> int:
    if isinstance(op, TextAttention):
        longest = min(config.context, config.max_tokens)
        return 4 * (2 * op.n_heads * longest * longest + 3 * longest * op.q.width)
    if not isinstance(op, Attention):
        return 0
    head_dim = program.kv[op.layer].head_dim
    scores = 2 * op.n_heads * config.max_tokens * config.context  # before and after softmax
    keys_and_values = 2 * op.n_heads * config.context * head_dim  # repeated for each query head
    return 4 * (scores + keys_and_values)
