"""The Program: a model as a flat list of typed ops over symbolic values.

A family records itself once, at load (`models/`). A backend runs the list once per step, whatever mixture of
prefill chunks and decodes the `Batch` holds. Two dimensions are symbols, bound per step:

    "tokens"  the rows of the step: one per token that is processed
    "rows"    the rows whose logits are wanted (`Batch.logit_rows`)

All activations are float32 `[tokens or rows, width]`. The op set is small; each op states its formula, and
`kernels/reference` is the definition that every other backend is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, TypeVar, dataclass_transform

from localinfer.errors import UnsupportedError

Activation = Literal["silu", "gelu", "gelu_tanh"]
# What a model is for: text that goes on, a vector of a text, or a score of a query with a document.
Purpose = Literal["text", "embedding", "ranking"]
_Class = TypeVar("_Class")


@dataclass(frozen=True)
class Value:
    """The result of one op: float32 `[dim, width]`, `dim` being "tokens" or "rows"."""

    id: int
    name: str
    dim: Literal["tokens", "rows"]
    width: int

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Matrix:
    """Rows `[start, start + rows)` of a weight tensor of `cols` columns; y = x Wᵀ maps `cols` to `rows`.

    A slice of a fused tensor (phi3's qkv) is a Matrix with `start > 0`: rows are contiguous in every type.
    """

    name: str
    rows: int
    cols: int
    start: int = 0

    def __str__(self) -> str:
        part = f"[{self.start}:{self.start + self.rows}]" if self.start else ""
        return f"{self.name}{part}"


@dataclass(frozen=True)
class Vector:
    """Elements `[start, start + size)` of a one-dimensional weight tensor: a norm's gain or a bias."""

    name: str
    size: int
    start: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding with every scaling already applied (Su et al. 2021, arXiv:2104.09864).

    At position p, pair i of a head's first `2 * len(inverse_frequencies)` columns turns by
    `p * inverse_frequencies[i]`, and cos and sin are multiplied by `magnitude` (yarn, longrope).
    `pairs` says which columns form pair i: "adjacent" (2i, 2i + 1) or "halves" (i, i + n/2).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float
    pairs: Literal["adjacent", "halves"]


@dataclass(frozen=True)
class KvLayer:
    """What one attention layer keeps per token. `window` = 0 means every earlier token stays visible."""

    n_kv_heads: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """Base of all ops. Fields of type Value other than `out`/`outs` are inputs."""

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        if hasattr(self, "outs"):
            return tuple(self.outs)
        return (self.out,) if hasattr(self, "out") else ()

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(
            v for f in fields(self) if f.name not in ("out", "outs") and isinstance(v := getattr(self, f.name), Value)
        )

    @cached_property
    def weights(self) -> tuple[Matrix | Vector, ...]:
        found: list[Matrix | Vector] = []
        for f in fields(self):
            item = getattr(self, f.name)
            for w in item if isinstance(item, tuple) else (item,):
                if isinstance(w, Matrix | Vector):
                    found.append(w)
        return tuple(found)

    def __str__(self) -> str:
        args = [self._argument(f.name) for f in fields(self) if getattr(self, f.name) != f.default]
        return self._line([a for a in args if a])

    __repr__ = __str__

    def _argument(self, name: str) -> str:
        """One field, as `show --program` prints it; "" for one that says nothing."""
        item = getattr(self, name)
        if name in ("out", "outs") or (isinstance(item, tuple) and all(i is None for i in item)):
            return ""
        if isinstance(item, Value):
            return str(item)
        if isinstance(item, tuple):
            return f"{name}=[{', '.join(str(i) for i in item)}]"
        return f"{name}={item:g}" if isinstance(item, float) else f"{name}={item}"

    def _line(self, args: list[str]) -> str:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__)[1:]
        left = ", ".join(f"{o}[{o.dim}, {o.width}]" for o in self.outputs)
        return f"{left + ' = ' if left else ''}{name}({', '.join(args)})"


@dataclass_transform(frozen_default=True, eq_default=False)
def _op(cls: type[_Class]) -> type[_Class]:
    """Ops are compared by identity and printed by __str__: methods that nobody calls would only cost start-up time."""
    return dataclass(frozen=True, eq=False, repr=False)(cls)


@_op
class Embed(Op):
    """out[t, :] = table[index[t], :] * scale

    The index is the token's id, its position (learned positions), or its type (Batch.types), as `by` says.
    """

    out: Value
    table: Matrix
    scale: float = 1.0
    by: Literal["token", "position", "type"] = "token"


@_op
class RmsNorm(Op):
    """Each run of `group` columns divided by its root mean square (Zhang & Sennrich 2019, arXiv:1910.07467).

    out = x / sqrt(mean(x²) + eps) * weight, the mean taken over the run. `group` is the width, or the size of a
    head for per-head q/k norms; `weight` has `group` elements and serves every run.
    """

    out: Value
    x: Value
    weight: Vector
    eps: float
    group: int


@_op
class LayerNorm(Op):
    """out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba et al. 2016, arXiv:1607.06450)

    Mean and variance are those of the row; `bias` None adds nothing.
    """

    out: Value
    x: Value
    weight: Vector
    bias: Vector | None
    eps: float


@_op
class Linear(Op):
    """outs[i] = x · matrices[i]ᵀ + biases[i]: one or several matrices that share an input."""

    outs: tuple[Value, ...]
    x: Value
    matrices: tuple[Matrix, ...]
    biases: tuple[Vector | None, ...]


@_op
class Rope(Op):
    """Rotates each head of `head_dim` columns by its token's position; see RopeSpec."""

    out: Value
    x: Value
    head_dim: int
    rope: RopeSpec

    def __str__(self) -> str:
        r = self.rope
        args = [f"{self.x}", f"head_dim={self.head_dim}", f"dims={2 * len(r.inverse_frequencies)}", f"pairs={r.pairs}"]
        return self._line(args if r.magnitude == 1 else [*args, f"magnitude={r.magnitude:g}"])


@_op
class KvAppend(Op):
    """Stores k and v `[tokens, n_kv_heads * head_dim]` of this step in the cache of `layer`, in the cache's type."""

    k: Value
    v: Value
    layer: int


@_op
class Attention(Op):
    """Causal softmax attention over the cache of `layer` (which already holds this step's keys and values).

    scores = scale * q·k, then softcap * tanh(scores / softcap) if softcap > 0; query at position p sees key
    positions in (p - window, p] if window > 0, else [0, p]. Query head h reads key/value head
    h // (n_heads / n_kv_heads). q and out are `[tokens, n_heads * head_dim]`. K and V are read back in the
    cache's type, this step's included, so that a token's result does not depend on how the prompt was cut.
    """

    out: Value
    q: Value
    layer: int
    n_heads: int
    scale: float
    window: int = 0
    softcap: float = 0.0


@_op
class TextAttention(Op):
    """Softmax attention of every token to every token of its own text, which is wholly in the step; without a cache.

    out = softmax(scale * q·k) v per head, over all rows of the sequence. q, k, v and out are
    `[tokens, n_heads * head_dim]`. A row's result does not depend on where in the step its text lies.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    n_heads: int
    scale: float


@_op
class Glu(Op):
    """out = activation(gate) * up (Shazeer 2020, arXiv:2002.05202)"""

    out: Value
    gate: Value
    up: Value
    activation: Activation


@_op
class Activate(Op):
    """out = activation(x): feed-forward layers without a gate"""

    out: Value
    x: Value
    activation: Activation


@_op
class Add(Op):
    """out = a + b"""

    out: Value
    a: Value
    b: Value


@_op
class Scale(Op):
    """out = x * factor"""

    out: Value
    x: Value
    factor: float


@_op
class Softcap(Op):
    """out = cap * tanh(x / cap)"""

    out: Value
    x: Value
    cap: float


@_op
class SelectRows(Op):
    """out[r, :] = x[logit_rows[r], :]: from "tokens" to "rows"; what follows costs only the wanted rows."""

    out: Value
    x: Value


@dataclass(frozen=True)
class Program:
    """A recorded model. `ops` are in execution order; every Value is written once, before it is read.

    `output` is the logits, `[rows, vocab_size]`; `hidden`, if the model names it, the value `[rows, hidden_size]` that
    the head turns into logits: the states after the final norm. `context_length` is the longest position range that the
    model's metadata allows; the served context is chosen at load and may be smaller.

    A program that is not for "text" is an encoder: each text is computed in one step, from its first token to its last,
    and nothing is kept in a cache. Its output is its `hidden`: per wanted row, the states that are pooled to a vector
    ("embedding"), or a score, of which the first row's is that of the text ("ranking"). `vocab_size` is then that
    of the tokens it reads.
    """

    name: str
    ops: tuple[Op, ...]
    kv: tuple[KvLayer, ...]
    output: Value
    vocab_size: int
    context_length: int
    metadata: dict[str, str] = field(default_factory=dict)
    hidden: Value | None = None
    purpose: Purpose = "text"

    def matrices(self) -> Iterator[Matrix]:
        """Every Matrix that some op uses, once each, in order of first use."""
        return (w for w in self._weights() if isinstance(w, Matrix))

    def vectors(self) -> Iterator[Vector]:
        """Every Vector that some op uses, once each, in order of first use."""
        return (w for w in self._weights() if isinstance(w, Vector))

    def _weights(self) -> Iterator[Matrix | Vector]:
        return iter(dict.fromkeys(w for op in self.ops for w in op.weights))

    def up_to_hidden(self) -> tuple[Op, ...]:
        """The ops that compute `hidden`, without the head behind them; UnsupportedError if there is none."""
        if self.hidden is None:
            raise UnsupportedError(f"{self.name} names no hidden states", "use a model that records them")
        end = next(i for i, op in enumerate(self.ops) if self.hidden in op.outputs)
        return self.ops[: end + 1]

    def __str__(self) -> str:
        head = (
            f"program {self.name}: {len(self.ops)} ops, {len(self.kv)} attention layers, vocabulary {self.vocab_size}"
        )
        return "\n".join([head, *(f"  {op}" for op in self.ops), f"  return {self.output}"])
