"""Writes small checkpoints as the Hugging Face hub has them: weights by transformers, tokenizers by their library."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tiny_models import TinyModel, transformers_model

# The patterns of published tokenizer.json files, as they stand there.
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_ANY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END
QWEN2 = LLAMA3.replace("{1,3}", "")
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
GPT4O = f"{_CASED}{_ANY_CASE}?|{_UPPER}{_ANY_CASE}?" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END
TEKKEN = f"{_CASED}|{_UPPER}" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END

# Words of several scripts, contractions, numbers, spaces and signs, to train small vocabularies with.
TRAINING = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'll say they've DON'T 12 345 6789 times.",
    "for i in range(10):\n    print(f'{i}: {i * i}')\n\n\treturn None  # a comment",
    "Füße und Äpfel, naïve café, łódź, Ελληνικά, русский язык, עברית, العربية, हिन्दी, ไทย, 日本語の文章、中文字符。",
    "there they're there their these those this that then than the them",
    "one two  three   four    five     six\n\n\nseven",
] * 3
TEXTS = [
    "",
    " ",
    "Hello world",
    " Hello  world ",
    "The dog's DON'T they'Ve I'LL",
    "1 12 123 1234 12345 3.14159 1,000,000",
    "for i in range(10):\n    print(i)\n\n\n\treturn  \n",
    "a\r\nb\r\n\r\nc\n \n d",
    "Füße naïve cafe\u0301 Å A\u030a ﬁ ½ ² Ⅷ",
    "日本語の文章と中文字符。한국어 العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧 ▁under▁score __init__ $100 <|x|> <s> </s> [INST] <0x41>",
    "\u00a0nbsp\u2003em\u3000wide\ttab\x0bvt",
    "!!!??? ... -- --> /* // */ C:\\path /usr/bin/",
    "ALLCAPS CamelCase snake_case x1y2 OpenAI's",
    "\x00\x01\x7f end",
]


def write_checkpoint(tiny: TinyModel, folder: Path, **changes: Any) -> Path:
    """The tiny model as transformers saves it; `changes` are of config.json (None removes a key)."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    transformers_model(tiny).save_pretrained(folder)
    if changes:
        change_json(folder / "config.json", **changes)
    return folder


def change_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    values = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(values), encoding="utf-8")


def train_byte_level(
    split: Iterable[Any], *, ignore_merges: bool = False, normalizer: Any = None, bos: str = ""
) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer with `split` before ByteLevel, and BOS in front of texts if there is one."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps = list(split)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not steps or not _is_split(steps[-1])))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def _is_split(step: Any) -> bool:
    return isinstance(step, pre_tokenizers.Split)


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)


def sentencepiece_model(path: Path, *, add_dummy_prefix: bool = True) -> Path:
    """A small SentencePiece BPE model with byte fallback, trained on TRAINING."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TRAINING for line in text.splitlines() if line),
        model_prefix=str(path.with_suffix("")),
        model_type="bpe",
        vocab_size=640,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        split_by_whitespace=True,
        user_defined_symbols=["[TOOL]"],
        minloglevel=2,
    )
    path.with_suffix(".vocab").unlink()
    return path


def tokenizer_from_sentencepiece(path: Path, prefix: str = "every") -> tokenizers.Tokenizer:
    """The tokenizer that transformers makes of a SentencePiece BPE model: all pairs of pieces, best piece first.

    `prefix`: "every" text between special tokens gets a space in front (Llama 2), or the "first" (Mistral), or "none".
    """
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (piece[:k], piece[k:])
        for i, piece in sorted(enumerate(pieces), key=lambda item: -model.get_score(item[0]))
        if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))
        for k in range(1, len(piece))
        if piece[:k] in vocab and piece[k:] in vocab
    ]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "▁")
    if prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    elif prefix == "every":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    else:
        tokenizer.normalizer = normalizers.Sequence([replace])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix != "none":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("[TOOL]", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer


def tokenizer_json(metadata: Any, pattern: str = "") -> dict[str, Any]:
    """The tokenizer.json that a GGUF file's vocabulary was made from, as far as its tokens go.

    `pattern` is how a byte-level vocabulary splits text; "" is GPT-2's way.
    """
    tokens = list(metadata["tokenizer.ggml.tokens"][:])
    types = list(metadata["tokenizer.ggml.token_type"])
    added = [
        {"id": i, "content": token, "special": kind == 3, "single_word": False, "lstrip": False, "rstrip": False}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (3, 4)
    ]
    vocab = {token: i for i, token in enumerate(tokens) if types[i] not in (4, 5)}
    if metadata["tokenizer.ggml.model"] == "gpt2":
        steps = [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": not pattern}]
        if pattern:
            steps.insert(0, {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})
        model = {"type": "BPE", "vocab": vocab, "merges": list(metadata["tokenizer.ggml.merges"][:])}
        return {"added_tokens": added, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "model": model}
    scores = metadata["tokenizer.ggml.scores"]
    best_first = sorted((i for i in vocab.values() if types[i] == 1), key=lambda i: (-scores[i], i))
    merges = [
        [tokens[i][:k], tokens[i][k:]]
        for i in best_first
        for k in range(1, len(tokens[i]))
        if tokens[i][:k] in vocab and tokens[i][k:] in vocab
    ]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "byte_fallback": True},
    }
