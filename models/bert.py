"""The bert family: encoders, in which every token sees the whole text. They make vectors of texts, or rank texts.

Devlin et al. 2019, arXiv:1810.04805. Norms follow what is added up; positions are learned ("bert"), or rotary, with a
gated feed-forward part and no biases ("nomic-bert"). Names of tensors are those of llama.cpp's converter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.kernels.program import Activation, Program, RopeSpec, Value
from localinfer.models.base import ModelSource
from localinfer.models.recorder import Recorder
from localinfer.models.rope import read_rope

# What config.json calls `hidden_act`; files of llama.cpp's converter do not say it, and mean "gelu".
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class EncoderConfig:
    """Numbers of one model. `rope` None: positions are learned. `gated` feed-forward layers have no biases."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    context_length: int
    norm_eps: float
    rope: RopeSpec | None
    activation: Activation
    gated: bool

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def record(source: ModelSource) -> Program:
    config = _read_config(source)
    if source.context > config.context_length:
        raise LocalInferError(
            f"a context of {source.context} tokens is more than the {config.context_length} positions of the model",
            f"leave the context out, or ask for at most {config.context_length}",
        )
    r = Recorder(source.tensors)
    x = _embedding(r, config, source)
    for i in range(config.layers):
        x = _layer(r, config, i, x)
    return _finish(r, config, source, r.select_rows("states", x))


def _read_config(source: ModelSource) -> EncoderConfig:
    if source.flag("attention.causal", False):
        raise UnsupportedError(f"this {source.architecture} model sees earlier tokens only, which is not supported")
    layers = source.integer("block_count")
    if not source.tensors.has_tensor(last := f"blk.{layers - 1}.attn_output.weight"):  # before anything is sized by it
        raise FormatError(f"metadata key {source.key('block_count')} is {layers}, but there is no tensor {last}")
    width, heads = source.integer("embedding_length"), source.integer("attention.head_count")
    if width % heads or source.integer("attention.head_count_kv", heads) != heads:
        raise FormatError(f"{heads} heads do not divide the embedding length {width}, or keys have other heads")
    rotary = source.architecture == "nomic-bert"
    name = source.text("hidden_activation", "gelu")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"the activation {name[:40]!r} is not supported", f"known: {', '.join(ACTIVATIONS)}")
    return EncoderConfig(
        layers=layers,
        width=width,
        heads=heads,
        feed_forward=source.integer("feed_forward_length"),
        context_length=source.integer("context_length"),
        norm_eps=source.positive("attention.layer_norm_epsilon"),
        rope=read_rope(source, width // heads, "halves") if rotary else None,
        activation="silu" if rotary else ACTIVATIONS[name],
        gated=rotary,
    )


def _embedding(r: Recorder, c: EncoderConfig, source: ModelSource) -> Value:
    """The sum of what tokens, types and positions are, normalized."""
    table = r.table("token_embd.weight", c.width)
    source.check_tokens(table.rows)
    x = r.embed("embedding", table, 1.0)
    if r.tensors.has_tensor("token_types.weight"):
        types = r.embed("types", r.table("token_types.weight", c.width), 1.0, by="type")
        x = r.add("typed", x, types)
    if c.rope is None:
        table = r.matrix("position_embd.weight", c.context_length, c.width)
        x = r.add("placed", x, r.embed("positions", table, 1.0, by="position"))
    return _norm(r, c, "embedding_norm", "token_embd_norm", x)


def _layer(r: Recorder, c: EncoderConfig, i: int, x: Value) -> Value:
    block, name = f"blk.{i}", f"l{i}"
    matrices, biases = r.qkv_weights(block, c.width, c.width, c.width)
    q, k, v = r.linear((f"{name}.q", f"{name}.k", f"{name}.v"), x, matrices, biases)
    if c.rope:
        q = r.rope(f"{name}.q_rope", q, c.head_dim, c.rope)
        k = r.rope(f"{name}.k_rope", k, c.head_dim, c.rope)
    heads = r.text_attention(f"{name}.heads", q, k, v, c.heads, 1 / math.sqrt(c.head_dim))
    branch = _linear(r, f"{name}.attn", f"{block}.attn_output", heads, c.width)
    x = _norm(r, c, f"{name}.attn_norm", f"{block}.attn_output_norm", r.add(f"{name}.attn_sum", x, branch))
    branch = _linear(r, f"{name}.ffn", f"{block}.ffn_down", _hidden(r, c, block, name, x), c.width)
    return _norm(r, c, f"{name}.norm", f"{block}.layer_output_norm", r.add(f"{name}.ffn_sum", x, branch))


def _hidden(r: Recorder, c: EncoderConfig, block: str, name: str, x: Value) -> Value:
    if not c.gated:
        up = _linear(r, f"{name}.up", f"{block}.ffn_up", x, c.feed_forward)
        return r.activate(f"{name}.hidden", up, c.activation)
    matrices = tuple(r.matrix(f"{block}.ffn_{part}.weight", c.feed_forward, c.width) for part in ("gate", "up"))
    gate, up = r.linear((f"{name}.gate", f"{name}.up"), x, matrices, (None, None))
    return r.glu(f"{name}.hidden", gate, up, c.activation)


def _finish(r: Recorder, c: EncoderConfig, source: ModelSource, states: Value) -> Program:
    """With a classification head, what is wanted is its score; else the states themselves."""
    purpose: Literal["embedding", "ranking"] = "embedding"
    x = states
    if r.tensors.has_tensor("cls.weight"):
        rows = r.tensors.tensor("cls.weight").shape[0]
        x = _linear(r, "head", "cls", x, rows)
        if r.tensors.has_tensor("cls.output.weight"):
            x = r.softcap("head_tanh", x, 1.0)  # tanh(x)
    if r.tensors.has_tensor("cls.output.weight"):
        x = _linear(r, "score", "cls.output", x, r.tensors.tensor("cls.output.weight").shape[0])
    if x is not states:
        purpose = "ranking"
        if x.width != 1:
            raise UnsupportedError(
                f"this model sorts texts into {x.width} classes, which is not supported",
                "models that make embeddings, or give a query and a document one score, are",
            )
    elif source.integer("pooling_type", 0, minimum=0) == 4:
        raise FormatError("the model is for ranking (pooling_type 4), but has no tensor cls.output.weight")
    vocabulary = r.table("token_embd.weight", c.width).rows
    metadata = {"architecture": source.architecture}
    name = source.metadata.get("general.name")
    title = name if isinstance(name, str) and name else source.architecture
    return r.finish_encoder(title, x, vocabulary, c.context_length, metadata, purpose)


def _linear(r: Recorder, name: str, tensor: str, x: Value, rows: int) -> Value:
    weight, bias = r.matrix(f"{tensor}.weight", rows, x.width), r.optional_vector(f"{tensor}.bias", rows)
    (out,) = r.linear((name,), x, (weight,), (bias,))
    return out


def _norm(r: Recorder, c: EncoderConfig, name: str, tensor: str, x: Value) -> Value:
    weight, bias = r.vector(f"{tensor}.weight", c.width), r.optional_vector(f"{tensor}.bias", c.width)
    return r.layer_norm(name, x, weight, bias, c.norm_eps)
