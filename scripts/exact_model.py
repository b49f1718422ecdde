"""The exact side of the comparisons: a GGUF file's weights, dequantized to float32, in transformers' own code.

Nothing here comes from localinfer: the file is read and dequantized by the `gguf` package, whose table of tensor names
also gives the mapping, and the forward pass is transformers'. So an error that localinfer made twice would show.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

# transformers probes for an unrelated package named `kernels`; an editable install of localinfer puts a folder of that
# name on the path, which must not be mistaken for it. None means: not installed.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]

from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig  # noqa: E402

# architecture in the file -> model type in transformers
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

# configuration key -> key in the file, after the architecture's name
SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}


@dataclass(frozen=True)
class Choice:
    """A greedy choice: the token, the one that came second, and how far its logit was behind."""

    token: int
    second: int
    margin: float


@dataclass
class ExactModel:
    """A model in float32. `begin` are the ids that start every text (begin-of-text, or none)."""

    model: Any
    begin: list[int]
    vocabulary: int

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32 `[ids, vocabulary]`: the logits after each id."""
        out = self.model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return np.asarray(out.numpy(), dtype=np.float32)

    @torch.inference_mode()
    def greedy(self, ids: Sequence[int], count: int) -> list[Choice]:
        """The `count` most likely next tokens, one after another, end-of-text like any other."""
        prompt = torch.tensor([list(ids)])
        settings = GenerationConfig(
            max_new_tokens=count, do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True
        )
        out = self.model.generate(prompt, settings, attention_mask=torch.ones_like(prompt))
        choices = []
        for logits in out.logits:
            best = torch.topk(logits[0], 2)
            token, second = map(int, best.indices)
            choices.append(Choice(token, second, float(best.values[0] - best.values[1])))
        return choices


def load(path: Path) -> ExactModel:
    """Reads the file into transformers. Takes seconds and four bytes per weight."""
    reader = gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.tok")}
    architecture = str(fields["general.architecture"].contents())
    if architecture not in MODEL_TYPES:
        raise SystemExit(f"error: no exact model for {architecture}\n\nhint: known are {', '.join(MODEL_TYPES)}")
    tensors = {t.name: t for t in reader.tensors}
    settings = {
        key: fields[f"{architecture}.{name}"].contents()
        for key, name in SIZES.items()
        if f"{architecture}.{name}" in fields
    }
    vocabulary = int(tensors["token_embd.weight"].shape[1])
    config = AutoConfig.for_model(
        MODEL_TYPES[architecture], vocab_size=vocabulary, tie_word_embeddings="output.weight" not in tensors, **settings
    )
    if architecture == "gemma3":
        config.query_pre_attn_scalar = config.head_dim
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config = GenerationConfig()  # no end-of-text token: texts have the length that was asked for
    names = gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), config.num_hidden_layers
    )
    used = set()
    for name, parameter in model.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored is None or stored not in tensors:
            raise SystemExit(f"error: the file has no tensor for {name}")
        used.add(stored)
        weight = np.array(gguf.dequantize(tensors[stored].data, tensors[stored].tensor_type), dtype=np.float32)
        if architecture == "llama" and stored.endswith(("attn_q.weight", "attn_k.weight")):
            heads = config.num_attention_heads if "attn_q" in stored else config.num_key_value_heads
            weight = halves_from_pairs(weight, heads)
        if architecture == "gemma3" and "norm" in stored:
            weight -= 1  # transformers adds the 1 that the file contains
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(weight).reshape(parameter.shape))
    if "rope_freqs.weight" in tensors:  # llama 3.1's scaling, as divisors of the frequencies
        used.add("rope_freqs.weight")
        model.model.rotary_emb.inv_freq /= torch.from_numpy(np.array(tensors["rope_freqs.weight"].data))
    if unused := sorted(tensors.keys() - used):
        raise SystemExit(f"error: transformers' {config.model_type} has no place for {', '.join(unused[:5])}")

    begin = fields.get("tokenizer.ggml.bos_token_id")
    adds = fields.get("tokenizer.ggml.add_bos_token")
    begins = begin is not None and (bool(adds.contents()) if adds else architecture == "llama")
    return ExactModel(model, [int(begin.contents())] if begin is not None and begins else [], vocabulary)


def halves_from_pairs(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a llama's q or k, from the file's order (rotated pairs adjacent) to transformers' (halves)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
