"""config.json of an encoder of the bert family, as the metadata of a GGUF file; and how its states are pooled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localinfer.checkpoints.config import Description, Reader, float32
from localinfer.errors import FormatError, LocalInferError, UnsupportedError

# "architectures" in config.json -> what is not used of the weights beside the encoder
_MASKED = ("pooler.", "cls.predictions.", "cls.seq_relationship.")
ENCODERS: Mapping[str, tuple[str, ...]] = {
    "BertModel": _MASKED,
    "BertForMaskedLM": _MASKED,
    "BertForPreTraining": _MASKED,
    "BertForSequenceClassification": (),
}
_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh")  # models/bert.py
_RANKS = "BertForSequenceClassification"
# Numbers of pooling_type (include/llama.h of llama.cpp), by the flags of sentence-transformers' 1_Pooling/config.json.
_POOLING = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_RANKING = 4
_MODULES = ("Transformer", "Pooling", "Normalize")
_HARMLESS = ("attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob", "sentence_transformers")


def describe_encoder(config: Mapping[str, Any], name: str, path: Path) -> Description:
    """Translates config.json, which lies at `path`, of a model of the class `name`.

    FormatError if a key is missing or makes no sense, UnsupportedError for a model that models/bert.py cannot run.
    """
    read = Reader({"layer_norm_eps": 1e-12, **config}, path)
    out = Description("bert", vocab_size=read.integer("vocab_size"), unused=ENCODERS[name])
    out.metadata["general.architecture"] = "bert"
    for key, value in {
        "vocab_size": out.vocab_size,
        "context_length": read.integer("max_position_embeddings", minimum=2),
        "embedding_length": read.integer("hidden_size"),
        "block_count": read.integer("num_hidden_layers"),
        "feed_forward_length": read.integer("intermediate_size"),
        "attention.head_count": read.integer("num_attention_heads"),
        "attention.layer_norm_epsilon": float32(read.number("layer_norm_eps")),
        "attention.causal": False,
    }.items():
        out.metadata[f"bert.{key}"] = value
    out.metadata["tokenizer.ggml.token_type_count"] = read.integer("type_vocab_size", 2)
    for key in _HARMLESS:
        read.get(key)
    for key, needed in (("position_embedding_type", "absolute"), ("is_decoder", False), ("add_cross_attention", False)):
        if (found := read.get(key, needed)) != needed:
            raise UnsupportedError(f"{path}: {key} is {str(found)[:60]!r}, which is not supported")
    activation = read.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedError(f"{path}: the activation {str(activation)[:60]!r} is not supported for {name}")
    if activation != "gelu":
        out.metadata["bert.hidden_activation"] = activation
    pooling = _RANKING if name == _RANKS else _pooling_type(path.parent)
    if pooling is not None:
        out.metadata["bert.pooling_type"] = pooling
    out.notes += read.notes()
    return out


def _pooling_type(folder: Path) -> int | None:
    """What modules.json of sentence-transformers says; None where there is none."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    found = None
    for module in _read(path, list):
        kind = str(module.get("type") if isinstance(module, dict) else module).rpartition(".")[2]
        if kind not in _MODULES:
            raise UnsupportedError(f"{path}: the module {kind[:60]!r} is not supported", f"{', '.join(_MODULES)} are")
        if kind == "Pooling":
            found = _pooling_of(_read(_inside(folder, module.get("path"), path) / "config.json", dict), path)
    return found


def _inside(folder: Path, part: Any, path: Path) -> Path:
    if not isinstance(part, str) or Path(part).is_absolute() or ".." in Path(part).parts:
        raise FormatError(f"{path}: {str(part)[:60]!r} is no folder beside it")
    return folder / part


def _pooling_of(settings: dict[str, Any], path: Path) -> int:
    modes = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True}
    if isinstance(mode := settings.get("pooling_mode"), str):  # as newer versions write it
        modes.add(
            {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}.get(mode, f"pooling_mode_{mode}")
        )
    if len(modes) != 1 or not modes <= _POOLING.keys():
        raise UnsupportedError(
            f"{path}: pooling by {', '.join(sorted(modes)) or 'nothing'} is not supported",
            "the mean of all tokens, the first one and the last one are",
        )
    return _POOLING[modes.pop()]


def _read(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise LocalInferError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON", "download it again") from error
    if not isinstance(found, kind):
        raise FormatError(f"{path} should hold {'a list' if kind is list else 'an object'}", "download it again")
    return found
