"""The one decoder: a causal transformer with rotary positions and gated feed-forward layers.

Families differ in numbers and flags only, which `DecoderConfig` holds; a family's module fills one in.
Tensor names and layouts are those of the GGUF files that llama.cpp's converter writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from localinfer.errors import FormatError, UnsupportedError
from localinfer.kernels.program import Activation, KvLayer, Matrix, Program, RopeSpec, Value, Vector
from localinfer.models.base import ModelSource
from localinfer.models.recorder import Recorder
from localinfer.models.rope import Pairs, read_rope


@dataclass(frozen=True)
class DecoderConfig:
    """Numbers and flags of one model.

    rope, windows     one per layer: its rotary embedding (None: no positions), its attention window (0: none)
    qk_norm           an RMS norm of q and k before rope: of each head, or of all heads' columns together
    pre_norm          norms before attention and feed-forward
    post_norm         norms of their results, before these are added to the stream
    gate_in_up        the feed-forward gate is the first half of the rows of `ffn_up`
    *_scale, *_softcap  factors and tanh caps at the named places; 1 and 0 leave a place alone
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context_length: int
    norm_eps: float
    rope: tuple[RopeSpec | None, ...]
    windows: tuple[int, ...]
    attention_scale: float
    activation: Activation = "silu"
    qk_norm: Literal["none", "head", "full"] = "none"
    pre_norm: bool = True
    post_norm: bool = False
    gate_in_up: bool = False
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0


def read_config(source: ModelSource, pairs: Pairs) -> DecoderConfig:
    """The numbers that all families read alike; a family replaces what is its own."""
    if source.integer("expert_count", 0, minimum=0) > 0:
        raise UnsupportedError(
            f"this {source.architecture} model is a mixture of experts, which is not supported yet",
            "choose a dense model",
        )
    layers = source.integer("block_count")
    if not source.tensors.has_tensor(last := f"blk.{layers - 1}.attn_output.weight"):  # before anything is sized by it
        raise FormatError(f"metadata key {source.key('block_count')} is {layers}, but there is no tensor {last}")
    width = source.integer("embedding_length")
    heads = source.integer("attention.head_count")
    kv_heads = source.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(
            f"metadata key {source.key('attention.head_count_kv')}: expected a divisor of the {heads} query heads, "
            f"found {kv_heads}"
        )
    if not source.has("attention.key_length") and width % heads:
        raise FormatError(f"{heads} heads do not divide the embedding length {width}, and no key length is given")
    head_dim = source.integer("attention.key_length", width // heads)
    value_dim = source.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(f"keys of {head_dim} columns with values of {value_dim} are not supported")
    rope = read_rope(source, head_dim, pairs)
    return DecoderConfig(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=source.integer("feed_forward_length"),
        context_length=source.integer("context_length"),
        norm_eps=source.positive("attention.layer_norm_rms_epsilon"),
        rope=(rope,) * layers,
        windows=read_windows(source, layers, period=0),
        attention_scale=source.positive("attention.scale", 1 / math.sqrt(head_dim)),
    )


def read_windows(source: ModelSource, layers: int, period: int, default: int = 0) -> tuple[int, ...]:
    """Each layer's attention window. The file's own pattern holds if it has one.

    Otherwise every layer but each `period`-th has the window (period 0: all have it). `default` is the window of a
    file that does not state one.
    """
    window = source.integer("attention.sliding_window", default, minimum=0)
    pattern = source.flags_per_layer("attention.sliding_window_pattern", layers)
    if pattern is None:
        period = source.integer("attention.sliding_window_pattern", period, minimum=0)
        pattern = [period == 0 or i % period < period - 1 for i in range(layers)]
    return tuple(window if windowed else 0 for windowed in pattern)


def record_decoder(source: ModelSource, config: DecoderConfig) -> Program:
    """Records the model. FormatError if a weight is missing or its shape contradicts the config."""
    r = Recorder(source.tensors)
    table = r.table("token_embd.weight", config.width)
    source.check_tokens(table.rows)
    x = r.embed("embedding", table, config.embedding_scale)
    for i in range(config.layers):
        x = _attention(r, config, i, x)
        x = _feed_forward(r, config, i, x)
    hidden = r.rms_norm("normed", x, r.vector("output_norm.weight", config.width), config.norm_eps)
    head = table
    if source.tensors.has_tensor("output.weight"):
        head = r.matrix("output.weight", table.rows, config.width)
    (x,) = r.linear(("logits",), hidden, (head,), (r.optional_vector("output.bias", head.rows),))
    if config.logit_scale != 1.0:
        x = r.scale("scaled_logits", x, config.logit_scale)
    if config.logit_softcap:
        x = r.softcap("capped_logits", x, config.logit_softcap)
    metadata = {"architecture": source.architecture}
    name = source.metadata.get("general.name")
    title = name if isinstance(name, str) and name else source.architecture
    return r.finish(title, x, hidden, config.context_length, metadata)


def _attention(r: Recorder, c: DecoderConfig, i: int, x: Value) -> Value:
    """x plus its attention. After the last layer's, only the rows whose logits are wanted go on."""
    block, name = f"blk.{i}", f"l{i}"
    normed = x
    if c.pre_norm:
        normed = r.rms_norm(f"{name}.attn_norm", x, r.vector(f"{block}.attn_norm.weight", c.width), c.norm_eps)
    matrices, biases = r.qkv_weights(block, c.heads * c.head_dim, c.kv_heads * c.head_dim, c.width)
    q, k, v = r.linear((f"{name}.q", f"{name}.k", f"{name}.v"), normed, matrices, biases)
    if c.qk_norm != "none":
        q_size, k_size = (c.head_dim, c.head_dim) if c.qk_norm == "head" else (q.width, k.width)
        q = r.rms_norm(f"{name}.q_norm", q, r.vector(f"{block}.attn_q_norm.weight", q_size), c.norm_eps)
        k = r.rms_norm(f"{name}.k_norm", k, r.vector(f"{block}.attn_k_norm.weight", k_size), c.norm_eps)
    if rope := c.rope[i]:
        q = r.rope(f"{name}.q_rope", q, c.head_dim, rope)
        k = r.rope(f"{name}.k_rope", k, c.head_dim, rope)
    cache = KvLayer(c.kv_heads, c.head_dim, c.windows[i])
    heads = r.attention(f"{name}.heads", q, k, v, cache, c.heads, c.attention_scale, c.attention_softcap)
    if i == c.layers - 1:
        heads, x = r.select_rows(f"{name}.heads_rows", heads), r.select_rows(f"{name}.rows", x)
    output = r.matrix(f"{block}.attn_output.weight", c.width, c.heads * c.head_dim)
    bias = r.optional_vector(f"{block}.attn_output.bias", c.width)
    (branch,) = r.linear((f"{name}.attn",), heads, (output,), (bias,))
    return _add_branch(r, c, x, branch, f"{name}.attn", f"{block}.post_attention_norm.weight")


def _feed_forward(r: Recorder, c: DecoderConfig, i: int, x: Value) -> Value:
    """x plus its feed-forward result."""
    block, name = f"blk.{i}", f"l{i}"
    normed = x
    if c.pre_norm:
        normed = r.rms_norm(f"{name}.ffn_norm", x, r.vector(f"{block}.ffn_norm.weight", c.width), c.norm_eps)
    matrices, biases = _gate_up_weights(r, c, block)
    gate, up = r.linear((f"{name}.gate", f"{name}.up"), normed, matrices, biases)
    hidden = r.glu(f"{name}.hidden", gate, up, c.activation)
    down = r.matrix(f"{block}.ffn_down.weight", c.width, c.feed_forward)
    bias = r.optional_vector(f"{block}.ffn_down.bias", c.width)
    (branch,) = r.linear((f"{name}.ffn",), hidden, (down,), (bias,))
    return _add_branch(r, c, x, branch, f"{name}.ffn", f"{block}.post_ffw_norm.weight")


def _add_branch(r: Recorder, c: DecoderConfig, x: Value, branch: Value, name: str, norm: str) -> Value:
    if c.post_norm:
        branch = r.rms_norm(f"{name}_post_norm", branch, r.vector(norm, c.width), c.norm_eps)
    if c.residual_scale != 1.0:
        branch = r.scale(f"{name}_scaled", branch, c.residual_scale)
    return r.add(f"{name}_sum", x, branch)


def _gate_up_weights(
    r: Recorder, c: DecoderConfig, block: str
) -> tuple[tuple[Matrix, Matrix], tuple[Vector | None, Vector | None]]:
    n, up, bias = c.feed_forward, f"{block}.ffn_up.weight", f"{block}.ffn_up.bias"
    if c.gate_in_up:
        return (
            (r.matrix(up, n, c.width, 0, 2 * n), r.matrix(up, n, c.width, n, 2 * n)),
            (r.optional_vector(bias, n, 0, 2 * n), r.optional_vector(bias, n, n, 2 * n)),
        )
    return (
        (r.matrix(f"{block}.ffn_gate.weight", n, c.width), r.matrix(up, n, c.width)),
        (r.optional_vector(f"{block}.ffn_gate.bias", n), r.optional_vector(bias, n)),
    )
