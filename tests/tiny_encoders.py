"""Tiny seeded encoders: a transformers model, and the GGUF file and the folder of the same weights."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

SEED = 20240607
POSITIONS = 320  # more than a chunk of 256 keys, and than several tiles of queries
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789日本語лисаß!,.?'-"
WORDS = ("the", "quick", "brown", "fox", "lazy", "dog", "##es", "##ing", "thing", "which", "grosse", "12", "##345")


@dataclass(frozen=True, eq=False)
class TinyEncoder:
    """`config` are transformers' config arguments beside those of BASE."""

    name: str
    architecture: str
    model_class: str
    config: dict[str, Any] = field(default_factory=dict)


BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-5,
}
TINY_ENCODERS = [
    TinyEncoder("bert", "bert", "BertModel"),
    TinyEncoder("bert-tanh", "bert", "BertModel", {"hidden_act": "gelu_new"}),
    TinyEncoder("bert-rank", "bert", "BertForSequenceClassification", {"num_labels": 1}),
    TinyEncoder("nomic", "nomic-bert", "NomicBertModel", {"head_dim": 16}),
]


def encoder(name: str) -> TinyEncoder:
    return next(tiny for tiny in TINY_ENCODERS if tiny.name == name)


def tokenizer() -> tokenizers.Tokenizer:
    """A small vocabulary of word pieces, as BERT cuts words."""
    pieces = [*SPECIAL, *dict.fromkeys(LETTERS), *(f"##{letter}" for letter in dict.fromkeys(LETTERS)), *WORDS]
    made = tokenizers.Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def transformers_encoder(tiny: TinyEncoder) -> Any:
    """The seeded model in transformers, float32, in evaluation mode."""
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]  # see tiny_models.py
    import transformers

    name = tiny.model_class.replace("ForSequenceClassification", "").replace("Model", "")
    vocabulary = {"vocab_size": tokenizer().get_vocab_size()}
    config = getattr(transformers, f"{name}Config")(**BASE | vocabulary | tiny.config, attn_implementation="eager")
    with torch.no_grad():
        model = getattr(transformers, tiny.model_class)(config).float().eval()
        for index, (parameter_name, parameter) in enumerate(sorted(model.named_parameters())):
            uniform = np.random.RandomState(SEED + index).random_sample(tuple(parameter.shape)) * 2 - 1
            scale = (3 / parameter.shape[1]) ** 0.5 if parameter.dim() == 2 else 0.4
            shift = 1.0 if "norm" in parameter_name.lower() and parameter_name.endswith("weight") else 0.0
            parameter.copy_(torch.from_numpy((uniform * scale + shift).astype(np.float32)))
    return model


def states(model: Any, ids: list[int], types: list[int] | None = None) -> np.ndarray:
    """float32 `[tokens, width]` of the last layer; of a model that ranks, its score `[1]`."""
    with torch.no_grad():
        found = model(torch.tensor([ids]), token_type_ids=torch.tensor([types or [0] * len(ids)]))
    return (found.logits if hasattr(found, "logits") else found.last_hidden_state)[0].numpy()


_NOMIC = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}


def _gguf_name(tiny: TinyEncoder, name: str) -> str:
    module, _, kind = name.removeprefix("bert.").rpartition(".")
    if tiny.architecture == "nomic-bert":
        layer = module.split(".")
        if layer[0] == "layers":
            return f"blk.{layer[1]}.{_NOMIC['.'.join(layer[2:])]}.{kind}"
        return f"{_NOMIC[module]}.{kind}"
    own = {"pooler.dense": "cls", "classifier": "cls.output"}
    found = own.get(module) or gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, 9).get_name(module)
    assert found is not None, name
    return f"{found}.{kind}"


def write_encoder_gguf(tiny: TinyEncoder, path: Path, matrix_type: str = "F32", pooling: int = 1) -> Path:
    """As llama.cpp's converter writes it, but for the pooler of a model that ranks, which that leaves out."""
    model = transformers_encoder(tiny)
    ranks = "classifier" in dict(model.named_children())
    writer = gguf.GGUFWriter(path, tiny.architecture)
    writer.add_name("tiny")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(3)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(4 if ranks else pooling))
    writer.add_token_type_count(2)
    if tiny.architecture == "nomic-bert":
        writer.add_rope_freq_base(1000.0)
    if "hidden_act" in tiny.config:
        writer.add_string("bert.hidden_activation", tiny.config["hidden_act"])
    _write_tokenizer(writer)
    for name, parameter in sorted(model.named_parameters()):
        if name.startswith("pooler."):
            continue
        data, target = parameter.detach().numpy(), _gguf_name(tiny, name)
        plain = data.ndim == 1 or target.startswith(("position_embd", "token_types", "cls"))
        kind = gguf.GGMLQuantizationType["F32" if plain else matrix_type]
        writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    vocabulary = tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([t if t in SPECIAL else t[2:] if t.startswith("##") else "▁" + t for t in tokens])
    writer.add_token_types([gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in tokens])
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_unk_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)


def write_encoder_folder(tiny: TinyEncoder, folder: Path, pooling: str = "mean") -> Path:
    """As transformers and sentence-transformers save it."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    transformers_encoder(tiny).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules.append({"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    flags = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
    settings = {f"pooling_mode_{flag}": name == pooling for name, flag in flags.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings | {"word_embedding_dimension": 64}))
    return folder
