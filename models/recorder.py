"""Builds a Program op by op, checking the name and shape of every weight against the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from localinfer.errors import FormatError
from localinfer.kernels.base import TensorSource
from localinfer.kernels.program import (
    Activate,
    Activation,
    Add,
    Attention,
    Embed,
    Glu,
    KvAppend,
    KvLayer,
    LayerNorm,
    Linear,
    Matrix,
    Op,
    Program,
    Purpose,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    SelectRows,
    Softcap,
    TextAttention,
    Value,
    Vector,
)


@dataclass
class Recorder:
    """Each method appends one op and returns its result. Names of values must be unique; they are for people.

    Operations that change nothing (a scale of 1, a norm without a weight) are the caller's to leave out.
    """

    tensors: TensorSource
    ops: list[Op] = field(default_factory=list)
    kv: list[KvLayer] = field(default_factory=list)
    values: int = 0

    # ---- weights -----------------------------------------------------------------------------------------------

    def matrix(self, name: str, rows: int, cols: int, start: int = 0, of: int = 0) -> Matrix:
        """Rows `[start, start + rows)` of a tensor of `of` rows (0: of exactly `rows`) and `cols` columns."""
        self._check_shape(name, (of or rows, cols))
        return Matrix(name, rows, cols, start)

    def table(self, name: str, cols: int) -> Matrix:
        """A whole matrix of as many rows as the file gives it: the vocabulary, which may be padded."""
        shape = self.tensors.tensor(name).shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] != cols:
            raise FormatError(f"tensor {name}: expected shape (vocabulary, {cols}), found {tuple(shape)}")
        return Matrix(name, shape[0], cols)

    def vector(self, name: str, size: int, start: int = 0, of: int = 0) -> Vector:
        self._check_shape(name, (of or size,))
        return Vector(name, size, start)

    def optional_vector(self, name: str, size: int, start: int = 0, of: int = 0) -> Vector | None:
        return self.vector(name, size, start, of) if self.tensors.has_tensor(name) else None

    def qkv_weights(
        self, block: str, q: int, kv: int, cols: int
    ) -> tuple[tuple[Matrix, Matrix, Matrix], tuple[Vector | None, Vector | None, Vector | None]]:
        """Three matrices of a layer, or three slices of one fused tensor; biases where the file has them."""
        parts = (("q", q, 0), ("k", kv, q), ("v", kv, q + kv))
        if self.tensors.has_tensor(f"{block}.attn_qkv.weight"):
            weight, bias, of = f"{block}.attn_qkv.weight", f"{block}.attn_qkv.bias", q + 2 * kv
            a, b, d = (self.matrix(weight, rows, cols, start, of) for _, rows, start in parts)
            e, f, g = (self.optional_vector(bias, rows, start, of) for _, rows, start in parts)
        else:
            a, b, d = (self.matrix(f"{block}.attn_{part}.weight", rows, cols) for part, rows, _ in parts)
            e, f, g = (self.optional_vector(f"{block}.attn_{part}.bias", rows) for part, rows, _ in parts)
        return (a, b, d), (e, f, g)

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        found = tuple(self.tensors.tensor(name).shape)
        if found != expected:
            raise FormatError(
                f"tensor {name}: expected shape {expected}, found {found}",
                "the file's metadata and tensors contradict each other",
            )

    # ---- ops ---------------------------------------------------------------------------------------------------

    def embed(
        self, name: str, table: Matrix, scale: float, by: Literal["token", "position", "type"] = "token"
    ) -> Value:
        out = self._new(name, "tokens", table.cols)
        self.ops.append(Embed(out, table, scale, by))
        return out

    def rms_norm(self, name: str, x: Value, weight: Vector, eps: float) -> Value:
        out = self._like(name, x)
        self.ops.append(RmsNorm(out, x, weight, eps, weight.size))
        return out

    def layer_norm(self, name: str, x: Value, weight: Vector, bias: Vector | None, eps: float) -> Value:
        out = self._like(name, x)
        self.ops.append(LayerNorm(out, x, weight, bias, eps))
        return out

    def linear(
        self, names: tuple[str, ...], x: Value, matrices: tuple[Matrix, ...], biases: tuple[Vector | None, ...]
    ) -> tuple[Value, ...]:
        outs = tuple(self._new(n, x.dim, m.rows) for n, m in zip(names, matrices, strict=True))
        self.ops.append(Linear(outs, x, matrices, biases))
        return outs

    def rope(self, name: str, x: Value, head_dim: int, rope: RopeSpec) -> Value:
        out = self._like(name, x)
        self.ops.append(Rope(out, x, head_dim, rope))
        return out

    def attention(
        self, name: str, q: Value, k: Value, v: Value, cache: KvLayer, n_heads: int, scale: float, softcap: float
    ) -> Value:
        """Appends k and v to a new cache layer, then attends to it: two ops."""
        layer = len(self.kv)
        self.kv.append(cache)
        self.ops.append(KvAppend(k, v, layer))
        out = self._like(name, q)
        self.ops.append(Attention(out, q, layer, n_heads, scale, cache.window, softcap))
        return out

    def text_attention(self, name: str, q: Value, k: Value, v: Value, n_heads: int, scale: float) -> Value:
        out = self._like(name, q)
        self.ops.append(TextAttention(out, q, k, v, n_heads, scale))
        return out

    def activate(self, name: str, x: Value, activation: Activation) -> Value:
        out = self._like(name, x)
        self.ops.append(Activate(out, x, activation))
        return out

    def glu(self, name: str, gate: Value, up: Value, activation: Activation) -> Value:
        out = self._like(name, gate)
        self.ops.append(Glu(out, gate, up, activation))
        return out

    def add(self, name: str, a: Value, b: Value) -> Value:
        out = self._like(name, a)
        self.ops.append(Add(out, a, b))
        return out

    def scale(self, name: str, x: Value, factor: float) -> Value:
        out = self._like(name, x)
        self.ops.append(Scale(out, x, factor))
        return out

    def softcap(self, name: str, x: Value, cap: float) -> Value:
        out = self._like(name, x)
        self.ops.append(Softcap(out, x, cap))
        return out

    def select_rows(self, name: str, x: Value) -> Value:
        out = self._new(name, "rows", x.width)
        self.ops.append(SelectRows(out, x))
        return out

    def finish(self, name: str, output: Value, hidden: Value, context_length: int, metadata: dict[str, str]) -> Program:
        ops, kv = tuple(self.ops), tuple(self.kv)
        return Program(name, ops, kv, output, output.width, context_length, metadata, hidden)

    def finish_encoder(
        self, name: str, output: Value, vocab_size: int, context: int, metadata: dict[str, str], purpose: Purpose
    ) -> Program:
        return Program(name, tuple(self.ops), (), output, vocab_size, context, metadata, output, purpose)

    def _like(self, name: str, x: Value) -> Value:
        return self._new(name, x.dim, x.width)

    def _new(self, name: str, dim: str, width: int) -> Value:
        self.values += 1
        return Value(self.values - 1, name, "rows" if dim == "rows" else "tokens", width)
