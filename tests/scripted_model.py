"""A model file whose answers are written down: each token leads to one next token, whatever came before.

Embeddings are one-hot, attention and feed-forward add nothing, and row n of the output matrix is 1 at the tokens that
token n follows. So the answer to any message is ANSWER, except that one with "forever" in it is answered by TICK
again and again, and one with "colours" by text with terminal control codes. Templates can lead to further answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from gguf_files import write_gguf

ANSWER = ["Hello", ",", " wide", " 🌍", "!"]
COLOURS = ["\x1b[31mred\x07", "\x9b1m", "done"]
TICK = " tick"
SPECIAL = ["<unk>", "<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|forever|>", "<|colours|>"]
TEMPLATE = """\
{%- for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}
{%- set last = messages[-1]['content'] %}
{{- '<|forever|>' if 'forever' in last else '<|colours|>' if 'colours' in last else '<|assistant|>' }}
{%- endif %}"""
HIDDEN = 512


def write_scripted_model(
    path: Path,
    *,
    template: str = TEMPLATE,
    context: int = 4096,
    extra_tensor: str = "",
    answer: Sequence[str] = ANSWER,
    answers: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Writes the model; with an empty `template` it has none, and `extra_tensor` names one that no op reads.

    `answer` are the pieces of what it answers. `answers` are further ones: what follows when a prompt ends with the
    special token "<|NAME|>". No two pieces are alike.
    """
    further = {f"<|{name}|>": chain for name, chain in (answers or {}).items()}
    special = [*SPECIAL, *further]
    said = [*answer, *COLOURS, TICK, *(piece for chain in further.values() for piece in chain)]
    pieces = special + [f"<0x{byte:02X}>" for byte in range(256)] + said
    kinds = [2, *[3] * (len(special) - 1), *[6] * 256, *[1] * len(said)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    output = np.zeros((len(pieces), HIDDEN), np.float32)

    def follow(chain: list[str]) -> None:
        for token, following in pairwise(chain):
            output[ids[following], ids[token]] = 1

    follow(["<|assistant|>", *answer, "<|end|>"])
    follow(["<|colours|>", *COLOURS, "<|end|>"])
    follow(["<|forever|>", TICK, TICK])
    for begin, chain in further.items():
        follow([begin, *chain, "<|end|>"])
    for byte in range(256):  # without a template: text is followed by the answer
        follow([f"<0x{byte:02X}>", answer[0]])
    embedding = np.zeros((len(pieces), HIDDEN), np.float32)
    embedding[np.arange(len(pieces)), np.arange(len(pieces))] = 1
    zeros = {
        "attn_q": (64, HIDDEN),
        "attn_k": (32, HIDDEN),
        "attn_v": (32, HIDDEN),
        "attn_output": (HIDDEN, 64),
        "ffn_gate": (64, HIDDEN),
        "ffn_up": (64, HIDDEN),
        "ffn_down": (HIDDEN, 64),
    }
    tensors = {f"blk.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in zeros.items()}
    tensors |= {f"blk.0.{name}.weight": np.ones(HIDDEN, np.float32) for name in ("attn_norm", "ffn_norm")}
    tensors |= {
        "token_embd.weight": embedding,
        "output.weight": output,
        "output_norm.weight": np.ones(HIDDEN, np.float32),
    }
    metadata = {
        "general.name": "scripted",
        "llama.context_length": context,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": 32,
        "llama.attention.value_length": 32,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 32,
        "llama.vocab_size": len(pieces),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece.replace(" ", "▁") for piece in pieces],
        "tokenizer.ggml.scores": [-float(number) for number in range(len(pieces))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if extra_tensor:
        tensors[extra_tensor] = np.ones(HIDDEN, np.float32)
    if template:
        metadata["tokenizer.chat_template"] = template
    return write_gguf(path, metadata, tensors)
