"""BERT's vocabulary in a tokenizer.json, in GGUF's spelling: "▁" in front of what begins a word, no "##" within it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localinfer.checkpoints.splitting import steps
from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.metadata import Value
from localinfer.kernels.host.encoder import CONTROL, NORMAL, UNUSED
from localinfer.text.tokenizer import pack_strings

_PREFIX = "tokenizer.ggml."
_CONTINUES = "##"
_LONGEST_WORD = 100  # characters, in the native encoder


def word_piece_metadata(data: Mapping[str, Any], vocab_size: int, path: Path) -> dict[str, Value]:
    """`tokenizer.ggml.…` of a whole tokenizer.json whose model is WordPiece.

    FormatError if parts of it are missing, UnsupportedError where the native encoder would not cut text alike.
    """
    model = data["model"]
    vocab, unknown = model.get("vocab"), model.get("unk_token")
    if not isinstance(vocab, dict) or not all(type(i) is int and 0 <= i < 1 << 22 for i in vocab.values()):
        raise FormatError(f"{path}: model.vocab should give tokens their ids", "download it again")
    if model.get("continuing_subword_prefix", _CONTINUES) != _CONTINUES:
        raise UnsupportedError(f"{path}: WordPiece with another mark than {_CONTINUES} is not supported")
    if model.get("max_input_chars_per_word", _LONGEST_WORD) != _LONGEST_WORD:
        raise UnsupportedError(
            f"{path}: WordPiece with words of other than {_LONGEST_WORD} characters is not supported"
        )
    added = _added(data, path)
    starts, ends = _around(data, path)
    tokens = {token_id: text for text, token_id in vocab.items()} | added
    ids = {text: token_id for token_id, text in tokens.items()}
    special = {"bos": starts, "seperator": ends, "unknown": unknown}  # one of them so spelled in the format
    for name, text in special.items():
        if text not in ids:
            raise FormatError(f"{path}: {str(text)[:40]!r} ({name}) is no token", "download it again")
    count = max(vocab_size, 1 + max(tokens))
    texts = [tokens.get(i, f"[PAD{i}]") for i in range(count)]
    control = added.keys() | {ids[text] for text in special.values()}
    metadata: dict[str, Value] = {
        _PREFIX + "model": "bert",
        _PREFIX + "pre": "default",
        _PREFIX + "tokens": pack_strings([t if i in control else _spelled(t) for i, t in enumerate(texts)]),
        _PREFIX + "token_type": array(
            "i", [CONTROL if i in control else NORMAL if i in tokens else UNUSED for i in range(count)]
        ),
    }
    for name, text in special.items():
        metadata[f"{_PREFIX}{name}_token_id"] = ids[text]
    for name, text in (("padding", "[PAD]"), ("mask", "[MASK]")):
        if text in ids:
            metadata[f"{_PREFIX}{name}_token_id"] = ids[text]
    return metadata | _normalizing(data, path)


def _spelled(text: str) -> str:
    return text.removeprefix(_CONTINUES) if text.startswith(_CONTINUES) else "▁" + text


def _added(data: Mapping[str, Any], path: Path) -> dict[int, str]:
    """Tokens whose text is looked for before anything else: here only special ones."""
    found: dict[int, str] = {}
    for entry in data.get("added_tokens") or []:
        match entry:
            case {"id": int(token_id), "content": str(text), "special": True} if 0 <= token_id < 1 << 22:
                found[token_id] = text
            case _:
                raise UnsupportedError(f"{path}: the added token {str(entry)[:80]} is not supported here")
    return found


def _normalizing(data: Mapping[str, Any], path: Path) -> dict[str, Value]:
    match steps(data.get("normalizer"), "normalizers", path), steps(data.get("pre_tokenizer"), "pretokenizers", path):
        case [{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True} as rule], [
            {"type": "BertPreTokenizer"}
        ]:
            lowercase = bool(rule.get("lowercase"))
            accents = rule.get("strip_accents")
            return {
                _PREFIX + "normalizer.lowercase": lowercase,
                _PREFIX + "normalizer.strip_accents": lowercase if accents is None else bool(accents),
            }
    raise UnsupportedError(f"{path}: WordPiece with other rules for words than BERT's is not supported")


def _around(data: Mapping[str, Any], path: Path) -> tuple[Any, Any]:
    """The tokens that stand before a text and behind it."""
    match steps(data.get("post_processor"), "processors", path):
        case [{"type": "BertProcessing", "cls": [start, _], "sep": [end, _]}]:
            return start, end
        case [
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": start}}, {"Sequence": _}, {"SpecialToken": {"id": end}}],
            }
        ]:
            return start, end
    raise UnsupportedError(f"{path}: other tokens around a text than one before it and one behind it are not supported")
