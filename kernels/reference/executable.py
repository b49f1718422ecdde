"""A program loaded by the reference backend, and one step of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from localinfer.kernels.base import Batch, Cancelled, LoadConfig, Progress, TensorSource
from localinfer.kernels.program import (
    Activate,
    Add,
    Attention,
    Embed,
    Glu,
    KvAppend,
    LayerNorm,
    Linear,
    Matrix,
    Op,
    Program,
    RmsNorm,
    Rope,
    Scale,
    SelectRows,
    Softcap,
    TextAttention,
    Value,
    Vector,
)
from localinfer.kernels.reference import ops
from localinfer.kernels.reference.backend import Emulation, last_uses, weight_names
from localinfer.kernels.reference.cache import Store
from localinfer.kernels.reference.dequantize import dequantize_tensor

if TYPE_CHECKING:
    import numpy.typing as npt


class ReferenceLogits:
    """float32 `[rows, vocab_size]`."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.contiguous()
        self.rows, self.vocab_size = self._values.shape
        self.address = self._values.data_ptr()

    def numpy(self) -> npt.NDArray[Any]:
        return self._values.numpy()


class ReferenceHidden:
    """float32 `[rows, size]`."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.contiguous()
        self.rows, self.size = self._values.shape
        self.address = self._values.data_ptr()

    def numpy(self) -> npt.NDArray[Any]:
        return self._values.numpy()


class ReferenceExecutable:
    """Weights as float32, a cache per attention layer, and one op run after the other."""

    def __init__(
        self,
        program: Program,
        tensors: TensorSource,
        config: LoadConfig,
        emulate: Emulation = "none",
        progress: Progress | None = None,
    ) -> None:
        self._program = program
        self._config = config
        self._emulate = emulate
        self._cancelled = threading.Event()
        self._closed = False
        self._last_uses = last_uses(program)
        tables = [op for op in program.ops if isinstance(op, Embed)]
        self._vocabulary = min(op.table.rows for op in tables if op.by == "token")
        self._positions = min((op.table.rows for op in tables if op.by == "position"), default=config.context)
        self._token_types = min((op.table.rows for op in tables if op.by == "type"), default=1)
        self._whole_texts = any(isinstance(op, TextAttention) for op in program.ops)
        names = weight_names(program)
        self._types = {name: tensors.tensor(name).type.name for name in names}
        self._weights: dict[str, Tensor] = {}
        total, done = sum(tensors.tensor(name).nbytes for name in names), 0
        for name in names:
            tensor = tensors.tensor(name)
            self._weights[name] = torch.from_numpy(dequantize_tensor(tensor))
            done += tensor.nbytes
            if progress is not None:
                progress(done, total)
        slots = config.kv_blocks * config.block_size
        self._kv = [
            (Store(slots, layer, config.kv_type_k), Store(slots, layer, config.kv_type_v)) for layer in program.kv
        ]

    def step(self, batch: Batch) -> ReferenceLogits:
        return ReferenceLogits(self._run_ops(batch, self._program.ops, self._config.max_rows)[self._program.output])

    def hidden(self, batch: Batch) -> ReferenceHidden:
        ops = self._program.up_to_hidden()
        return ReferenceHidden(self._run_ops(batch, ops, self._config.max_tokens)[ops[-1].outputs[0]])

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if self._closed:
            raise RuntimeError("this model is closed")
        for block in (block for pair in pairs for block in pair):
            if not 0 <= block < self._config.kv_blocks:
                raise ValueError(f"the copy was refused: block {block} is outside the pool")
        slots = torch.arange(self._config.block_size)
        for source, target in pairs:
            for store in (store for layer in self._kv for store in layer):
                store.copy(source * len(slots) + slots, target * len(slots) + slots)

    def _run_ops(self, batch: Batch, ops: Sequence[Op], max_rows: int) -> dict[Value, Tensor]:
        """Runs the first ops of the program; returns the values that are still to be read."""
        if self._closed:
            raise RuntimeError("this model is closed")
        self._check(batch, max_rows)
        with torch.inference_mode():
            rows = _Rows(batch, self._config.block_size)
            values: dict[Value, Tensor] = {}
            for op, dying in zip(ops, self._last_uses, strict=False):
                if self._cancelled.is_set():
                    self._cancelled.clear()
                    raise Cancelled
                self._run(op, values, rows)
                for value in dying:
                    del values[value]
        return values

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self._closed = True
        self._weights.clear()
        self._kv.clear()

    def _run(self, op: Op, values: dict[Value, Tensor], rows: _Rows) -> None:
        match op:
            case Embed():
                index = {"token": rows.tokens, "position": rows.positions, "type": rows.types}[op.by]
                values[op.out] = self._weight(op.table)[index] * op.scale
            case RmsNorm():
                values[op.out] = ops.rms_norm(values[op.x], self._weight(op.weight), op.eps)
            case LayerNorm():
                shift = None if op.bias is None else self._weight(op.bias)
                values[op.out] = ops.layer_norm(values[op.x], self._weight(op.weight), shift, op.eps)
            case Linear():
                for out, matrix, bias in zip(op.outs, op.matrices, op.biases, strict=True):
                    values[out] = self._linear(values[op.x], matrix, bias)
            case Rope():
                values[op.out] = ops.rope(values[op.x], rows.positions, op.head_dim, op.rope)
            case KvAppend():
                k, v = self._kv[op.layer]
                k.write(rows.slots, values[op.k])
                v.write(rows.slots, values[op.v])
            case Attention():
                values[op.out] = self._attention(op, values[op.q], rows)
            case TextAttention():
                values[op.out] = self._text_attention(op, values[op.q], values[op.k], values[op.v], rows)
            case Activate():
                values[op.out] = ops.activate(values[op.x], op.activation)
            case Glu():
                values[op.out] = ops.glu(values[op.gate], values[op.up], op.activation)
            case Add():
                values[op.out] = values[op.a] + values[op.b]
            case Scale():
                values[op.out] = values[op.x] * op.factor
            case Softcap():
                values[op.out] = ops.softcap(values[op.x], op.cap)
            case SelectRows():
                values[op.out] = values[op.x][rows.logit_rows]
            case _:
                raise NotImplementedError(f"the reference backend has no op {type(op).__name__}")

    def _weight(self, w: Matrix | Vector) -> Tensor:
        return self._weights[w.name][w.start : w.start + (w.rows if isinstance(w, Matrix) else w.size)]

    def _linear(self, x: Tensor, matrix: Matrix, bias: Vector | None) -> Tensor:
        weight, addend = self._weight(matrix), None if bias is None else self._weight(bias)
        if self._emulate == "cpu":
            return ops.emulated_linear(x, weight, addend, self._types[matrix.name])
        return ops.linear(x, weight, addend)

    def _attention(self, op: Attention, q: Tensor, rows: _Rows) -> Tensor:
        k, v = self._kv[op.layer]
        head_dim = self._program.kv[op.layer].head_dim
        out = torch.empty_like(q)
        for part, history in rows.sequences:
            queries, keys, values, scales = q[part], k.read(history), v.read(history), None
            if self._emulate == "cpu":
                queries = ops.rounded_queries(queries, head_dim) if k.is_int8 else queries.double()
                keys, values, scales = keys.double(), values.double(), v.scales(history)
            positions = rows.positions[part]
            out[part] = ops.attention(
                queries, keys, values, positions, op.n_heads, op.scale, op.window, op.softcap, scales
            ).float()
        return out

    def _text_attention(self, op: TextAttention, q: Tensor, k: Tensor, v: Tensor, rows: _Rows) -> Tensor:
        out = torch.empty_like(q)
        for part, _ in rows.sequences:
            queries, keys, values = (x[part].double() if self._emulate == "cpu" else x[part] for x in (q, k, v))
            out[part] = ops.text_attention(queries, keys, values, op.n_heads, op.scale).float()
        return out

    def _check(self, batch: Batch, max_rows: int) -> None:
        """A batch beyond what was reserved is the caller's mistake."""
        limits = self._config
        for what, found, limit in (
            ("tokens", len(batch.tokens), limits.max_tokens),
            ("logit rows", len(batch.logit_rows), max_rows),
            ("sequences", len(batch.starts) - 1, limits.max_sequences),
            ("last position", max(batch.positions, default=0), min(limits.context, self._positions) - 1),
            ("largest type", max(batch.types, default=0), self._token_types - 1),
            ("smallest type, negated,", -min(batch.types, default=0), 0),
            ("largest block", max(batch.block_table, default=0), limits.kv_blocks - 1),
            ("largest token", max(batch.tokens, default=0), self._vocabulary - 1),
            ("smallest token, negated,", -min(batch.tokens, default=0), 0),
        ):
            if found > limit:
                raise ValueError(f"{what} of the batch: {found}, beyond the limit {limit}")
        if batch.types and len(batch.types) != len(batch.tokens):
            raise ValueError("tokens and types differ in length")
        if self._whole_texts and any(batch.positions[start] for start in batch.starts[:-1]):
            raise ValueError("the step holds a text without its beginning")


class _Rows:
    """Which token, position and cache slots each row of a step has."""

    def __init__(self, batch: Batch, block_size: int) -> None:
        self.tokens = torch.tensor(batch.tokens, dtype=torch.int64)
        self.positions = torch.tensor(batch.positions, dtype=torch.int64)
        self.types = torch.tensor(batch.types or [0] * len(batch.tokens), dtype=torch.int64)
        self.logit_rows = torch.tensor(batch.logit_rows, dtype=torch.int64)
        # Per sequence: its rows of the step, and the slots of its positions 0 … last.
        self.sequences: list[tuple[slice, Tensor]] = []
        self.slots = torch.empty_like(self.positions)  # where each row's own key and value go
        for s, (begin, end) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
            if begin == end:
                continue
            table = torch.tensor(batch.block_table[batch.table_starts[s] : batch.table_starts[s + 1]])
            positions = torch.arange(int(self.positions[end - 1]) + 1)
            history = table[positions // block_size] * block_size + positions % block_size
            self.sequences.append((slice(begin, end), history))
            self.slots[begin:end] = history[self.positions[begin:end]]
