"""Tiny seeded models, one per family and variant: a transformers model and the GGUF file of the same weights.

The file is written as llama.cpp's converter writes it (tensor names, permuted rows, norm weights plus one), by code of
our own; tests/data/llama_cpp holds what llama.cpp makes of these very files. To add a family, add a row to TINY_MODELS.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

SEED = 20240607
VOCABULARY = 3 + 256 + 29  # special tokens, bytes, pieces
PIECES = (
    "▁", "e", "t", "a", "o", "n", "i", "s", "r", "h", "l", "d", "u", "▁t", "he", "▁the", "in", "er", "an", "▁a", "on",
    "re", "▁s", "en", "at", "or", "▁w", "is", "▁o",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TinyModel:
    """`config` are transformers' config arguments beside those of BASE.

    context      positions that the model is recorded for, and that llama.cpp gets (which rounds up to 256)
    length       tokens of the comparison
    llama_cpp    whether llama.cpp computes the same; `why_not` says where it differs on purpose
    """

    name: str
    architecture: str
    model_class: str
    config: dict[str, Any] = field(default_factory=dict)
    context: int = 256
    length: int = 40
    llama_cpp: bool = True
    why_not: str = ""

    def tokens(self) -> list[int]:
        """Fixed token ids, the first of them <s>."""
        return [1] + [(7 * i * i + 11 * i + 5) % (VOCABULARY - 3) + 3 for i in range(1, self.length)]


BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.0 + 0.4 * i for i in range(8)],
}
GEMMA2 = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 4}
GEMMA2 |= {"tie_word_embeddings": True, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
GEMMA3 = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7}
GEMMA3 |= {"tie_word_embeddings": True}
GEMMA3_ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 0.5}

TINY_MODELS = [
    TinyModel("llama", "llama", "Llama"),
    TinyModel("llama-tied", "llama", "Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    TinyModel("llama-bias", "llama", "Llama", {"attention_bias": True, "mlp_bias": True}),
    TinyModel(
        "llama-linear",
        "llama",
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    TinyModel("llama-yarn", "llama", "Llama", {"rope_parameters": YARN}),
    TinyModel(
        "llama-llama3",
        "llama",
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    TinyModel(
        "mistral-window",
        "llama",
        "Mistral",
        {"sliding_window": 8},
        llama_cpp=False,
        why_not="it has no window in this architecture",
    ),
    TinyModel("qwen2", "qwen2", "Qwen2", {"tie_word_embeddings": True}),
    TinyModel("qwen2-yarn", "qwen2", "Qwen2", {"rope_parameters": YARN}),
    TinyModel(
        "qwen2-yarn-options",
        "qwen2",
        "Qwen2",
        {"rope_parameters": YARN | {"beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3}},
        llama_cpp=False,
        why_not="it does not read these keys in this architecture",
    ),
    TinyModel("qwen3", "qwen3", "Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    TinyModel("smollm3", "smollm3", "SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    TinyModel("gemma2", "gemma2", "Gemma2", GEMMA2),
    TinyModel("gemma3", "gemma3", "Gemma3", GEMMA3),
    TinyModel(
        "gemma3-linear",
        "gemma3",
        "Gemma3",
        GEMMA3
        | {
            "rope_parameters": GEMMA3_ROPE
            | {"full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}
        },
    ),
    TinyModel("phi3", "phi3", "Phi3"),
    TinyModel(
        "phi3-partial",
        "phi3",
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}},
    ),
    TinyModel(
        "phi3-longrope-long",
        "phi3",
        "Phi3",
        {"original_max_position_embeddings": 32, "rope_parameters": LONGROPE},
    ),
    TinyModel(
        "phi3-longrope-short",
        "phi3",
        "Phi3",
        {"max_position_embeddings": 1024, "original_max_position_embeddings": 512, "rope_parameters": LONGROPE},
    ),
    TinyModel(
        "phi3-window",
        "phi3",
        "Phi3",
        {"sliding_window": 8},
        llama_cpp=False,
        why_not="it ignores this architecture's window (its pull request 13676)",
    ),
    TinyModel("granite", "granite", "Granite", GRANITE),
    TinyModel("olmo2", "olmo2", "Olmo2"),
    TinyModel(
        "olmo3",
        "olmo2",
        "Olmo3",
        {
            "sliding_window": 8,
            "num_hidden_layers": 5,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
]

PERMUTED = {"llama", "smollm3", "granite"}  # q and k rows are stored with the columns of a rotary pair adjacent
NORMS_PLUS_ONE = {"gemma2", "gemma3"}


def by_name(name: str) -> TinyModel:
    return next(m for m in TINY_MODELS if m.name == name)


def transformers_model(tiny: TinyModel) -> Any:
    """The seeded model in transformers, float32, in evaluation mode."""
    # transformers probes for an unrelated package named `kernels`; an editable install of localinfer puts a folder of
    # that name on the path, which must not be mistaken for it. None means: not installed.
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]
    import transformers

    prefix = "Gemma3Text" if tiny.model_class == "Gemma3" else tiny.model_class
    config = getattr(transformers, f"{prefix}Config")(**BASE | tiny.config, attn_implementation="eager")
    with torch.no_grad():
        model = getattr(transformers, f"{tiny.model_class}ForCausalLM")(config).float().eval()
        for index, (name, parameter) in enumerate(sorted(model.named_parameters())):
            parameter.copy_(_random(index, name, tuple(parameter.shape), tiny))
    return model


def transformers_logits(tiny: TinyModel) -> np.ndarray:
    """float32 `[length, vocabulary]`."""
    with torch.no_grad():
        return transformers_model(tiny)(torch.tensor([tiny.tokens()])).logits[0].numpy()


def _random(index: int, name: str, shape: tuple[int, ...], tiny: TinyModel) -> torch.Tensor:
    """Weights of a size that keeps every branch audible. RandomState's uniform stream never changes (NEP 19)."""
    uniform = np.random.RandomState(SEED + index).random_sample(shape) * 2 - 1
    if len(shape) == 2:
        loud = "embed_tokens" in name and not tiny.config.get("tie_word_embeddings")
        uniform *= math.sqrt(3 / shape[1]) * (4 if loud else 1)
    elif "norm" in name:
        uniform = uniform * 0.3 + (0.0 if tiny.architecture in NORMS_PLUS_ONE else 1.0)
    else:
        uniform *= 0.5
    return torch.from_numpy(uniform.astype(np.float32))


def write_gguf(tiny: TinyModel, path: Path, matrix_type: str = "F32") -> Path:
    """Writes the model; `matrix_type` names the type of every matrix (one that the gguf package can quantize)."""
    model = transformers_model(tiny)
    writer = gguf.GGUFWriter(path, tiny.architecture)
    _write_metadata(writer, tiny, model.config)
    _write_tokenizer(writer)
    for name, data in _tensors(tiny, model):
        kind = gguf.GGMLQuantizationType[matrix_type if data.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(tiny: TinyModel, model: Any) -> list[tuple[str, np.ndarray]]:
    config = model.config
    names = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[tiny.architecture], config.num_hidden_layers
    )
    tensors = []
    for name, parameter in model.named_parameters():
        data = parameter.detach().numpy()
        if tiny.architecture in PERMUTED and ".q_proj." in name:
            data = _adjacent_pairs(data, config.num_attention_heads)
        if tiny.architecture in PERMUTED and ".k_proj." in name:
            data = _adjacent_pairs(data, config.num_key_value_heads)
        if tiny.architecture in NORMS_PLUS_ONE and name.endswith("norm.weight"):
            data = data + 1
        tensors.append((names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(data)))
    return sorted(tensors + _rope_tensors(tiny, config), key=lambda item: item[0])


def _adjacent_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row i and row i + n/2 of each head of n rows become rows 2i and 2i + 1."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _rope_tensors(tiny: TinyModel, config: Any) -> list[tuple[str, np.ndarray]]:
    rope = config.rope_parameters
    kind = rope.get("rope_type")
    if kind == "longrope":
        return [
            (f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
            for which in ("long", "short")
        ]
    if kind == "llama3":
        dims = config.hidden_size // config.num_attention_heads
        return [("rope_freqs.weight", np.array(_llama3_factors(rope, dims), np.float32))]
    return []


def _llama3_factors(rope: dict[str, Any], dims: int) -> list[float]:
    """What each frequency is divided by: 1 for short wave lengths, `factor` for long ones, between them a blend."""
    factors = []
    for i in range(dims // 2):
        turns = rope["original_max_position_embeddings"] / (2 * math.pi * rope["rope_theta"] ** (2 * i / dims))
        blend = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        blend = min(1.0, max(0.0, blend))
        factors.append(1 / ((1 - blend) / rope["factor"] + blend))
    return factors


def _write_metadata(writer: gguf.GGUFWriter, tiny: TinyModel, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name("tiny")  # llama.cpp looks for family names in it
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if head_dim * config.num_attention_heads != config.hidden_size or tiny.architecture in NORMS_PLUS_ONE:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _write_rope(writer, tiny, config, head_dim)
    if tiny.architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if tiny.model_class == "Olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if tiny.architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _write_rope(writer: gguf.GGUFWriter, tiny: TinyModel, config: Any, head_dim: int) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if (local := config.rope_parameters.get("sliding_attention")) is not None:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if tiny.architecture in PERMUTED | {"phi3"}:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (
            ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
            ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
        ):
            if key in rope:
                add(rope[key])
    if tiny.architecture == "phi3":
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config.max_position_embeddings / original
        if kind == "longrope":
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    """The smallest SentencePiece vocabulary that can encode any text: three special tokens, bytes, a few pieces."""
    types = gguf.TokenType
    rows = [("<unk>", 0.0, types.UNKNOWN), ("<s>", 0.0, types.CONTROL), ("</s>", 0.0, types.CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, types.BYTE) for byte in range(256)]
    rows += [(piece, -float(i), types.NORMAL) for i, piece in enumerate(PIECES)]
    assert len(rows) == VOCABULARY
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([row[0] for row in rows])
    writer.add_token_scores([row[1] for row in rows])
    writer.add_token_types([row[2] for row in rows])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
