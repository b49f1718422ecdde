"""The printed form of a program, and what can be asked of it."""

from __future__ import annotations

from fake_tensors import FakeTensors
from localinfer.kernels.program import (
    Embed,
    KvAppend,
    KvLayer,
    Linear,
    Matrix,
    Program,
    RmsNorm,
    Rope,
    RopeSpec,
    Value,
    Vector,
)
from localinfer.models import record

QWEN3 = {
    "general.architecture": "qwen3",
    "general.name": "Tiny Qwen3",
    "qwen3.block_count": 1,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 96,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.attention.value_length": 32,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.context_length": 4096,
}
QWEN3_SHAPES = {
    "token_embd.weight": (1000, 64),
    "output_norm.weight": (64,),
    "blk.0.attn_norm.weight": (64,),
    "blk.0.attn_q.weight": (128, 64),
    "blk.0.attn_k.weight": (64, 64),
    "blk.0.attn_v.weight": (64, 64),
    "blk.0.attn_q_norm.weight": (32,),
    "blk.0.attn_k_norm.weight": (32,),
    "blk.0.attn_output.weight": (64, 128),
    "blk.0.ffn_norm.weight": (64,),
    "blk.0.ffn_gate.weight": (96, 64),
    "blk.0.ffn_up.weight": (96, 64),
    "blk.0.ffn_down.weight": (64, 96),
}
PRINTED = """\
program Tiny Qwen3: 20 ops, 1 attention layers, vocabulary 1000
  %embedding[tokens, 64] = embed(table=token_embd.weight)
  %l0.attn_norm[tokens, 64] = rms_norm(%embedding, weight=blk.0.attn_norm.weight, eps=1e-06, group=64)
  %l0.q[tokens, 128], %l0.k[tokens, 64], %l0.v[tokens, 64] = linear(%l0.attn_norm, \
matrices=[blk.0.attn_q.weight, blk.0.attn_k.weight, blk.0.attn_v.weight])
  %l0.q_norm[tokens, 128] = rms_norm(%l0.q, weight=blk.0.attn_q_norm.weight, eps=1e-06, group=32)
  %l0.k_norm[tokens, 64] = rms_norm(%l0.k, weight=blk.0.attn_k_norm.weight, eps=1e-06, group=32)
  %l0.q_rope[tokens, 128] = rope(%l0.q_norm, head_dim=32, dims=32, pairs=halves)
  %l0.k_rope[tokens, 64] = rope(%l0.k_norm, head_dim=32, dims=32, pairs=halves)
  kv_append(%l0.k_rope, %l0.v, layer=0)
  %l0.heads[tokens, 128] = attention(%l0.q_rope, layer=0, n_heads=4, scale=0.176777)
  %l0.heads_rows[rows, 128] = select_rows(%l0.heads)
  %l0.rows[rows, 64] = select_rows(%embedding)
  %l0.attn[rows, 64] = linear(%l0.heads_rows, matrices=[blk.0.attn_output.weight])
  %l0.attn_sum[rows, 64] = add(%l0.rows, %l0.attn)
  %l0.ffn_norm[rows, 64] = rms_norm(%l0.attn_sum, weight=blk.0.ffn_norm.weight, eps=1e-06, group=64)
  %l0.gate[rows, 96], %l0.up[rows, 96] = linear(%l0.ffn_norm, \
matrices=[blk.0.ffn_gate.weight, blk.0.ffn_up.weight])
  %l0.hidden[rows, 96] = glu(%l0.gate, %l0.up, activation=silu)
  %l0.ffn[rows, 64] = linear(%l0.hidden, matrices=[blk.0.ffn_down.weight])
  %l0.ffn_sum[rows, 64] = add(%l0.attn_sum, %l0.ffn)
  %normed[rows, 64] = rms_norm(%l0.ffn_sum, weight=output_norm.weight, eps=1e-06, group=64)
  %logits[rows, 1000] = linear(%normed, matrices=[token_embd.weight])
  return %logits"""


def test_a_program_prints_as_its_architecture() -> None:
    program = record(QWEN3, FakeTensors(QWEN3_SHAPES))
    assert str(program) == PRINTED
    assert program.kv == (KvLayer(n_kv_heads=2, head_dim=32),)
    assert program.vocab_size == 1000
    assert program.context_length == 4096


def test_options_and_slices_are_printed_where_they_matter() -> None:
    x, y = Value(0, "x", "tokens", 8), Value(1, "y", "tokens", 8)
    slice_ = Matrix("fused", rows=8, cols=8, start=16)
    assert str(Linear((y,), x, (slice_,), (Vector("bias", 8),))) == (
        "%y[tokens, 8] = linear(%x, matrices=[fused[16:24]], biases=[bias])"
    )
    assert str(Embed(x, Matrix("table", 10, 8), 2.5)) == "%x[tokens, 8] = embed(table=table, scale=2.5)"
    spec = RopeSpec((1.0, 0.1), 1.25, "adjacent")
    assert str(Rope(y, x, 8, spec)) == "%y[tokens, 8] = rope(%x, head_dim=8, dims=4, pairs=adjacent, magnitude=1.25)"


def test_ops_know_their_inputs_outputs_and_weights() -> None:
    x, y, z = (Value(i, n, "tokens", 8) for i, n in enumerate("xyz"))
    a, b, bias = Matrix("a", 8, 8), Matrix("b", 8, 8), Vector("bias", 8)
    linear = Linear((y, z), x, (a, b), (bias, None))
    assert (linear.inputs, linear.outputs, linear.weights) == ((x,), (y, z), (a, b, bias))
    append = KvAppend(y, z, 0)
    assert (append.inputs, append.outputs, append.weights) == ((y, z), (), ())
    gain = Vector("gain", 8)
    norm = RmsNorm(y, x, gain, 1e-5, 8)
    program = Program("p", (Embed(x, a), norm, linear), (), z, 8, 16)
    assert list(program.matrices()) == [a, b]  # once each, in order of first use
    assert list(program.vectors()) == [gain, bias]
