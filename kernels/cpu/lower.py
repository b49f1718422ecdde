"""From a Program to the flat op list that the native code runs: slots, quantized activations, barriers.

Three decisions are made here, all of them visible in the result and testable without native code:

*Slots.* Every Value gets a buffer; buffers are used again once nothing reads the value any more.

*Who computes what.* In a step of several tokens, row-wise ops split the rows among threads. In a step of a single
token there is one row: every thread computes it for itself in a private copy, which costs less than the barrier
that sharing it would need. Linear splits each matrix by rows of weights (columns of the result); elementwise
ops directly behind a Linear run on the columns that the thread has just computed, whatever the step.

*Barriers.* An op needs a barrier before it if it touches a slot that has been written (or, for writes, read) since
the last barrier by another partition of the work: see `_Hazards`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from localinfer.errors import UnsupportedError
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
    RopeSpec,
    Scale,
    SelectRows,
    Softcap,
    TextAttention,
    Value,
    Vector,
)

_T = TypeVar("_T")

USE_REFERENCE = "use --backend reference, which is slow (needs torch: pip install 'localinfer[gpu]')"

MAX_OUTPUTS = 4  # kMaxMatrices in native/model.h
MAX_HEADS_PER_KV_HEAD = 64  # kMaxTileRows in native/model.h

Kind = Literal[
    "embed",
    "rope_table",
    "rms_norm",
    "quantize",
    "linear",
    "rope",
    "kv_append",
    "attention",
    "attention_merge",
    "glu",
    "add",
    "scale",
    "softcap",
    "select_rows",
    "layer_norm",
    "activate",
    "text_attention",
]

# How the threads share an op's work: "row" splits rows, "columns i" is the split of the Linear at index i, "whole" is
# everything by everybody (reads only), "task" is dynamic.
Partition = str


class Place(NamedTuple):
    """Where a value lies: see `ValueRef` in native/model.h."""

    slot: int
    width: int
    dim: Literal["tokens", "rows"]
    private: bool


@dataclass(slots=True)
class Lowered:
    """One native op, filled in step by step.

    `matrices`, `biases`, `vector`, `bias` (of a norm) and `rope` index the tables of `LoweredProgram`; `index` is what
    an embedding table is indexed by; `source` is the index of the Linear
    whose column split an op `by_columns` follows.
    """

    kind: Kind
    inputs: tuple[Place, ...] = ()
    outputs: tuple[Place, ...] = ()
    matrices: tuple[int, ...] = ()
    biases: tuple[int, ...] = ()
    by_columns: bool = False
    activations: int = -1
    vector: int = -1
    bias: int = -1
    rope: int = -1
    layer: int = -1
    source: int = -1
    group: int = 0
    heads: int = 0
    head_dim: int = 0
    window: int = 0
    activation: str = "silu"
    index: str = "token"
    factor: float = 0.0
    softcap: float = 0.0
    barrier_single: bool = False
    barrier_batch: bool = False


@dataclass
class LoweredProgram:
    """The native op list and the tables its indices point into.

    `hidden` is the op that computes the program's hidden states, -1 if it names none, and `first_of_rows` the first op
    whose result has a row per wanted row of logits.
    """

    ops: list[Lowered] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    ropes: list[RopeSpec] = field(default_factory=list)
    slot_widths: list[int] = field(default_factory=list)
    quantized_cols: list[int] = field(default_factory=list)
    first_of_rows: int = -1
    hidden: int = -1


def lower(program: Program, integer_matrices: frozenset[Matrix]) -> LoweredProgram:
    """Lowers a program; `integer_matrices` are those that multiply int8 activations rather than floats."""
    if program.ops[-1].outputs != (program.output,):
        raise ValueError("the last op of a program must compute its output")
    lowering = _Lowering(program, integer_matrices)
    for lowering.index, op in enumerate(program.ops):
        lowering.lower_op(op)
        if program.hidden in op.outputs:
            lowering.result.hidden = len(lowering.result.ops) - 1
    result = lowering.result
    of_rows = (i for i, op in enumerate(result.ops) if any(place.dim == "rows" for place in op.outputs))
    result.first_of_rows = next(of_rows, -1)
    mark_barriers(result.ops)
    return result


class _Lowering:
    def __init__(self, program: Program, integer_matrices: frozenset[Matrix]) -> None:
        self.program = program
        self.integer_matrices = integer_matrices
        self.result = LoweredProgram()
        self.index = 0  # of the op that is being lowered
        self.matrix_index: dict[Matrix, int] = {}
        self.vector_index: dict[Vector, int] = {}
        self.places: dict[Value, Place] = {}
        self.last_use = {v: i for i, op in enumerate(program.ops) for v in (*op.inputs, *op.outputs)}
        self.last_use[program.output] = len(program.ops)  # the logits outlive the step
        self.free_slots: dict[str, list[int]] = {"tokens": [], "rows": []}
        self.quantized: dict[Value, int] = {}
        self.free_quantized: list[int] = []
        # Value -> index (in the lowered list) of the Linear whose column split it follows.
        self.columns: dict[Value, int] = {}

    # -- tables and slots ------------------------------------------------------------------------------------------

    def matrix(self, matrix: Matrix) -> int:
        return _index(self.result.matrices, self.matrix_index, matrix)

    def vector(self, vector: Vector | None) -> int:
        return -1 if vector is None else _index(self.result.vectors, self.vector_index, vector)

    def rope(self, spec: RopeSpec) -> int:
        if spec not in self.result.ropes:
            self.result.ropes.append(spec)
            self.emit(Lowered("rope_table", rope=len(self.result.ropes) - 1))
        return self.result.ropes.index(spec)

    def place(self, value: Value, private: bool) -> Place:
        """Finds a slot: the free one that grows least, else a new one."""
        widths, free = self.result.slot_widths, self.free_slots[value.dim]
        if free:
            slot = min(free, key=lambda s: (max(value.width - widths[s], 0), widths[s]))
            free.remove(slot)
            widths[slot] = max(widths[slot], value.width)
        else:
            slot = len(widths)
            widths.append(value.width)
        self.places[value] = Place(slot, value.width, value.dim, private)
        return self.places[value]

    def place_over(self, op: Op, private: bool) -> Place:
        """The output of an op that may write over an input: in the slot of one that dies here, if there is any."""
        out = op.outputs[0]
        for value in op.inputs:
            if self.last_use[value] == self.index and value.width == out.width and value.dim == out.dim:
                self.places[out] = Place(self.places[value].slot, out.width, out.dim, private)
                return self.places[out]
        return self.place(out, private)

    def release(self, op: Op) -> None:
        """Frees the slots of values that no later op reads, unless the output has taken them over."""
        kept = {self.places[v].slot for v in op.outputs if self.last_use[v] != self.index}
        for value in dict.fromkeys((*op.inputs, *op.outputs)):
            if self.last_use[value] == self.index:
                if self.places[value].slot not in kept:
                    self.free_slots[value.dim].append(self.places[value].slot)
                if value in self.quantized:
                    self.free_quantized.append(self.quantized.pop(value))

    def quantize(self, value: Value) -> int:
        """The quantized form of a value, made on first use and shared by every Linear that reads it."""
        if value not in self.quantized:
            cols = self.result.quantized_cols
            slot = next((s for s in self.free_quantized if cols[s] == value.width), None)
            if slot is None:
                slot = len(cols)
                cols.append(value.width)
            else:
                self.free_quantized.remove(slot)
            self.quantized[value] = slot
            self.emit(Lowered("quantize", (self.places[value],), activations=slot))
        return self.quantized[value]

    def emit(self, lowered: Lowered) -> int:
        self.result.ops.append(lowered)
        return len(self.result.ops) - 1

    # -- ops -------------------------------------------------------------------------------------------------------

    def lower_op(self, op: Op) -> None:
        match op:
            case Embed():
                self.emit(
                    Lowered(
                        "embed",
                        outputs=(self.place(op.out, private=True),),
                        matrices=(self.matrix(op.table),),
                        factor=op.scale,
                        index=op.by,
                    )
                )
            case RmsNorm():
                self.row_wise(op, Lowered("rms_norm", vector=self.vector(op.weight), group=op.group, factor=op.eps))
            case LayerNorm():
                bias = self.vector(op.bias)
                self.row_wise(op, Lowered("layer_norm", vector=self.vector(op.weight), bias=bias, factor=op.eps))
            case Linear():
                self.linear(op)
            case Rope():
                table = self.rope(op.rope)
                heads = op.x.width // op.head_dim
                self.row_wise(op, Lowered("rope", rope=table, heads=heads, head_dim=op.head_dim))
            case KvAppend():
                self.emit(Lowered("kv_append", (self.places[op.k], self.places[op.v]), layer=op.layer))
            case Attention():
                self.attention(op)
            case TextAttention():
                self.text_attention(op)
            case Activate():
                self.elementwise(op, Lowered("activate", activation=op.activation))
            case Glu():
                self.elementwise(op, Lowered("glu", activation=op.activation))
            case Add():
                self.elementwise(op, Lowered("add"))
            case Scale():
                self.elementwise(op, Lowered("scale", factor=op.factor))
            case Softcap():
                self.elementwise(op, Lowered("softcap", factor=op.cap))
            case SelectRows():
                self.row_wise(op, Lowered("select_rows"))
            case _:
                raise UnsupportedError(f"the cpu backend has no op {type(op).__name__}", USE_REFERENCE)
        self.release(op)

    def row_wise(self, op: Op, lowered: Lowered) -> None:
        lowered.inputs = tuple(self.places[v] for v in op.inputs)
        over = isinstance(op, RmsNorm | LayerNorm | Activate | Rope | Glu | Add | Scale | Softcap)
        lowered.outputs = (self.place_over(op, True) if over else self.place(op.outputs[0], True),)
        self.emit(lowered)

    def elementwise(self, op: Op, lowered: Lowered) -> None:
        """By columns if every input comes from the same Linear with the same number of rows, else row by row."""
        inputs, out = op.inputs, op.outputs[0]
        source = self.columns.get(inputs[0])
        if source is None or any(self.columns.get(v) != source or v.width != out.width for v in inputs):
            self.row_wise(op, lowered)
            return
        lowered.by_columns, lowered.source = True, source
        # Any matrix of that many rows will do: equal rows are split equally.
        matrices = self.result.ops[source].matrices
        lowered.matrices = (next(m for m in matrices if self.result.matrices[m].rows == out.width),)
        lowered.inputs = tuple(self.places[v] for v in inputs)
        lowered.outputs = (self.place_over(op, private=False),)
        self.columns[out] = source
        self.emit(lowered)

    def linear(self, op: Linear) -> None:
        if len(op.matrices) > MAX_OUTPUTS:
            raise UnsupportedError(
                f"a linear op of {len(op.matrices)} matrices", f"the cpu backend takes {MAX_OUTPUTS}; {USE_REFERENCE}"
            )
        integer = any(m in self.integer_matrices for m in op.matrices)
        activations = self.quantize(op.x) if integer else -1
        lowered = Lowered(
            "linear",
            (self.places[op.x],),
            tuple(self.place(v, private=False) for v in op.outs),
            tuple(self.matrix(m) for m in op.matrices),
            tuple(self.vector(b) for b in op.biases),
            activations=activations,
        )
        source = self.emit(lowered)
        for out in op.outs:
            self.columns[out] = source

    def attention(self, op: Attention) -> None:
        kv = self.program.kv[op.layer]
        if op.n_heads // kv.n_kv_heads > MAX_HEADS_PER_KV_HEAD:
            raise UnsupportedError(
                f"{op.n_heads // kv.n_kv_heads} query heads share a key head",
                f"the cpu backend takes {MAX_HEADS_PER_KV_HEAD}; {USE_REFERENCE}",
            )
        out = self.place(op.out, private=True)
        parts: tuple[tuple[Kind, tuple[Place, ...]], ...] = (
            ("attention", (self.places[op.q],)),
            ("attention_merge", ()),
        )
        for kind, inputs in parts:
            self.emit(
                Lowered(
                    kind,
                    inputs,
                    (out,),
                    layer=op.layer,
                    heads=op.n_heads,
                    head_dim=kv.head_dim,
                    window=op.window,
                    factor=op.scale,
                    softcap=op.softcap,
                )
            )

    def text_attention(self, op: TextAttention) -> None:
        head_dim = op.q.width // op.n_heads
        if head_dim % 8:
            raise UnsupportedError(
                f"attention heads of {head_dim} columns in an encoder",
                f"the cpu backend takes multiples of 8; {USE_REFERENCE}",
            )
        inputs = tuple(self.places[v] for v in (op.q, op.k, op.v))
        out = self.place(op.out, private=False)
        self.emit(Lowered("text_attention", inputs, (out,), heads=op.n_heads, head_dim=head_dim, factor=op.scale))


def _index(table: list[_T], index: dict[_T, int], item: _T) -> int:
    """The position of an item in a table, to which it is added if it is new; `index` knows the positions."""
    if item not in index:
        index[item] = len(table)
        table.append(item)
    return index[item]


# -- barriers ----------------------------------------------------------------------------------------------------------


class _Hazards:
    """What has been read and written since the last barrier, by which partition of the work."""

    def __init__(self) -> None:
        self.reads: dict[str, set[Partition]] = {}
        self.writes: dict[str, set[Partition]] = {}

    def conflict(self, reads: list[tuple[str, Partition]], writes: list[tuple[str, Partition]]) -> bool:
        """Whether the accesses meet earlier ones that another thread may have made.

        Two accesses of the same partition are the same thread's, except for "task", where nobody knows who.
        """

        def foreign(earlier: set[Partition], mine: Partition) -> bool:
            return any(p != mine or p == "task" for p in earlier)

        return any(foreign(self.writes.get(key, set()), p) for key, p in reads) or any(
            foreign(self.writes.get(key, set()) | self.reads.get(key, set()), p) for key, p in writes
        )

    def note(self, reads: list[tuple[str, Partition]], writes: list[tuple[str, Partition]]) -> None:
        for log, accesses in ((self.reads, reads), (self.writes, writes)):
            for key, partition in accesses:
                log.setdefault(key, set()).add(partition)


def mark_barriers(ops: list[Lowered]) -> None:
    """Decides for each op whether a barrier goes before it, in steps of one token and of several."""
    for single in (True, False):
        hazards = _Hazards()
        for index, op in enumerate(ops):
            reads, writes = _accesses(op, index, single)
            barrier = hazards.conflict(reads, writes)
            if barrier:
                hazards = _Hazards()
            hazards.note(reads, writes)
            if single:
                op.barrier_single = barrier
            else:
                op.barrier_batch = barrier


def _accesses(op: Lowered, index: int, single: bool) -> tuple[list[tuple[str, Partition]], list[tuple[str, Partition]]]:
    """The shared memory that an op reads and writes, and how its work is split. Private copies do not count."""

    def shared(places: tuple[Place, ...], partition: Partition) -> list[tuple[str, Partition]]:
        # The same rows of two values of different width, or of tokens and of logits, lie in different bytes.
        return [
            (f"slot {p.slot}", partition if partition in ("whole", "task") else f"{partition} of {p.dim} by {p.width}")
            for p in places
            if not (single and p.private)
        ]

    # In a single-token step every thread reads the whole row.
    by_row = "whole" if single else "row"
    quantized = [] if single or op.activations < 0 else [f"quantized {op.activations}"]
    ropes = [] if single or op.rope < 0 else [f"rope {op.rope}"]
    kv = f"kv {op.layer}"
    match op.kind:
        case "quantize":
            return shared(op.inputs, by_row), [(q, by_row) for q in quantized]
        case "rope_table":
            return [], [(r, by_row) for r in ropes]
        case "rope":
            return shared(op.inputs, by_row) + [(r, by_row) for r in ropes], shared(op.outputs, by_row)
        case "linear":
            return shared(op.inputs, "whole") + [(q, "whole") for q in quantized], shared(
                op.outputs, f"columns {index}"
            )
        case "kv_append":
            return shared(op.inputs, by_row), [(kv, "task" if single else by_row)]
        case "attention":
            # In a single-token step only the merge writes the output.
            writes = [("partials", "task"), *([] if single else shared(op.outputs, "task"))]
            return [*shared(op.inputs, "whole"), (kv, "task")], writes
        case "attention_merge":
            return [("partials", by_row)], shared(op.outputs, by_row)
        case "text_attention":
            return shared(op.inputs, "whole"), shared(op.outputs, "task")
        case "select_rows":
            return shared(op.inputs, "whole"), shared(op.outputs, by_row)
        case _ if op.by_columns:
            split = f"columns {op.source}"
            return shared(op.inputs, split), shared(op.outputs, split)
        case _:
            return shared(op.inputs, by_row), shared(op.outputs, by_row)
