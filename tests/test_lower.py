"""Lowering to the native op list: slots, who computes what, and barriers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localinfer.errors import UnsupportedError
from localinfer.kernels.cpu.lower import Lowered, LoweredProgram, Place, lower, mark_barriers
from localinfer.kernels.program import Attention, KvLayer, Linear, Matrix, Program
from localinfer.models import record
from tiny_shapes import llama_shapes


def lowered_llama(layers: int = 2) -> tuple[Program, LoweredProgram]:
    metadata, tensors = llama_shapes(layers=layers)
    program = record(metadata, tensors)
    return program, lower(program, frozenset(program.matrices()))


def barriers_of_a_layer(ops: list[Lowered], single: bool) -> int:
    """Between the first attention and the second: one whole layer, wherever it is cut."""
    first, second = (i for i, op in enumerate(ops) if op.kind == "attention")
    return sum(op.barrier_single if single else op.barrier_batch for op in ops[first + 1 : second + 1])


def test_a_llama_layer_needs_few_barriers() -> None:
    """Decode: behind qkv, the cache, attention, its output, gate/up and down, and one where a slot is used again."""
    _, low = lowered_llama()
    assert barriers_of_a_layer(low.ops, single=True) == 7
    assert barriers_of_a_layer(low.ops, single=False) <= 10


def test_linears_that_share_an_input_share_its_quantized_form() -> None:
    _, low = lowered_llama()
    kinds = [op.kind for op in low.ops]
    assert kinds.count("quantize") == 2 * 4 + 1  # qkv, output, gate/up, down per layer, and the head
    assert kinds.count("rope_table") == 1


def test_elementwise_ops_behind_a_linear_run_on_its_columns() -> None:
    _, low = lowered_llama()
    gates = [op for op in low.ops if op.kind == "glu"]
    assert all(op.by_columns and not op.barrier_single for op in gates)
    assert all(low.ops[op.source].kind == "linear" for op in gates)
    additions = [op for op in low.ops if op.kind == "add"]
    assert not any(op.by_columns for op in additions)  # the residual comes from elsewhere


def test_slots_are_used_again() -> None:
    _, two = lowered_llama(2)
    _, many = lowered_llama(6)
    assert len(two.slot_widths) == len(many.slot_widths) <= 9


def test_no_value_is_overwritten_while_it_is_still_read() -> None:
    """Replays the lowered list on names: every read must find the value that the program means."""
    program, low = lowered_llama(3)
    held: dict[int, str] = {}
    meant = iter(op for op in program.ops if op.outputs)
    for op in low.ops:
        if not op.outputs or op.kind == "attention_merge":
            continue
        source = next(meant)
        for place, value in zip(op.inputs, source.inputs, strict=True):
            assert held[place.slot] == value.name
        for place, value in zip(op.outputs, source.outputs, strict=True):
            held[place.slot] = value.name
    assert next(meant, None) is None
    assert held[low.ops[-1].outputs[0].slot] == program.output.name


def test_values_of_tokens_and_of_logits_do_not_share_slots() -> None:
    """A slot has room for its dimension's rows: with the logits' width and the tokens' count it would be huge."""
    _, low = lowered_llama()
    dims: dict[int, set[str]] = {}
    for op in low.ops:
        for place in (*op.inputs, *op.outputs):
            dims.setdefault(place.slot, set()).add(place.dim)
    assert all(len(d) == 1 for d in dims.values())


def op(kind: str, inputs: str = "", outputs: str = "", **fields: object) -> Lowered:
    """An op over slots named by digits: "1p" is private slot 1."""

    def places(text: str) -> tuple[Place, ...]:
        return tuple(Place(int(t[0]), 64, "tokens", t.endswith("p")) for t in text.split())

    return Lowered(kind, places(inputs), places(outputs), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ops", "single", "batch"),
    [
        # a Linear reads every row of what was computed row by row
        ([op("add", "1p 2p", "3p"), op("linear", "3p", "4")], [0, 0], [0, 1]),
        # what a Linear computed is read by everybody
        ([op("linear", "1p", "2"), op("add", "1p 2", "3p")], [0, 1], [0, 1]),
        # row by row behind row by row
        ([op("add", "1p 2p", "3p"), op("scale", "3p", "4p")], [0, 0], [0, 0]),
        # the same columns of the same Linear
        ([op("linear", "1p", "2"), op("scale", "2", "3", by_columns=True, source=0)], [0, 0], [0, 0]),
        # columns of another Linear
        ([op("linear", "1p", "2"), op("linear", "2", "3"), op("scale", "2", "4", by_columns=True, source=1)],
         [0, 1, 0], [0, 1, 0]),
        # a slot is written again while another thread may still read it
        ([op("linear", "1p", "2"), op("add", "3p 3p", "1p")], [0, 0], [0, 1]),
        # attention reads what kv_append stored; the next layer's cache is another one
        ([op("kv_append", "1p 2p", layer=0), op("attention", "3p", "4p", layer=0)], [0, 1], [0, 1]),
        ([op("kv_append", "1p 2p", layer=0), op("attention", "3p", "4p", layer=1)], [0, 0], [0, 0]),
        ([op("attention", "3p", "4p", layer=0), op("attention_merge", "", "4p", layer=0)], [0, 1], [0, 1]),
    ],
)  # fmt: skip
def test_barriers(ops: list[Lowered], single: list[int], batch: list[int]) -> None:
    mark_barriers(ops)
    assert [int(o.barrier_single) for o in ops] == single
    assert [int(o.barrier_batch) for o in ops] == batch


def test_rows_of_different_width_do_not_share_bytes() -> None:
    """Row 5 of a wide value may lie where row 9 of a narrow one lay: another thread's."""
    wide, narrow = Place(1, 128, "tokens", True), Place(1, 64, "tokens", True)
    ops = [
        Lowered("scale", (Place(2, 64, "tokens", True),), (narrow,)),
        Lowered("scale", (Place(3, 128, "tokens", True),), (wide,)),
    ]
    mark_barriers(ops)
    assert ops[1].barrier_batch


def test_what_the_backend_cannot_do_is_said() -> None:
    program, _ = lowered_llama()
    with pytest.raises(ValueError, match="last op"):
        lower(replace(program, ops=program.ops[:-1]), frozenset())
    heads = [replace(o, n_heads=65 * 4) if isinstance(o, Attention) else o for o in program.ops]
    one_head = tuple(replace(layer, n_kv_heads=1) for layer in program.kv)
    assert isinstance(one_head[0], KvLayer)
    with pytest.raises(UnsupportedError, match="share a key head"):
        lower(replace(program, ops=tuple(heads), kv=one_head), frozenset())
    linear = next(o for o in program.ops if isinstance(o, Linear))
    wide = replace(
        linear,
        outs=linear.outs * 2,
        matrices=tuple(Matrix(f"m{i}", 8, 8) for i in range(2 * len(linear.outs))),
        biases=(None,) * 2 * len(linear.outs),
    )
    with pytest.raises(UnsupportedError, match="linear op of 6 matrices"):
        lower(replace(program, ops=tuple(wide if o is linear else o for o in program.ops)), frozenset())
