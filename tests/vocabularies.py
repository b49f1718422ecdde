"""Vocabularies for tests: the published ones beside the checkout, and small ones that can be read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from localinfer.formats.gguf import open_gguf
from localinfer.text.tokenizer import Tokenizer, load_tokenizer
from published import VOCABULARIES

NAMES = ("bert-bge", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def vocabulary_file(name: str) -> Path:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip("the published vocabularies are not beside the checkout")
    return path


@cache
def published(name: str) -> Tokenizer:
    return load_tokenizer(open_gguf(vocabulary_file(name)).metadata)


def bpe(tokens: list[str], merges: list[str], types: list[int] | None = None, **more: Any) -> Tokenizer:
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.token_type": types or [NORMAL] * len(tokens),
            **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
        }
    )


def spm(tokens: list[tuple[str, float, int]], **more: Any) -> Tokenizer:
    texts, scores, types = zip(*tokens, strict=True)
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": list(texts),
            "tokenizer.ggml.scores": list(scores),
            "tokenizer.ggml.token_type": list(types),
            **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
        }
    )


def words(tokenizer: Tokenizer, text: str, **how: bool) -> list[str]:
    options = {"add_special": False, "parse_special": False, **how}
    return [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in tokenizer.encode(text, **options)]


SPM_TOKENS = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    *((char, -100.0, NORMAL) for char in "▁abs<>"),
    ("▁a", -1.0, NORMAL),
    ("ab", -2.0, NORMAL),
    ("bb", -0.5, NORMAL),
    ("<s", -3.0, NORMAL),
]
