"""Which row of text/pretokenizers.py the pre-tokenizer of a tokenizer.json is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localinfer.errors import FormatError, UnsupportedError
from localinfer.text.pretokenizers import PRETOKENIZERS

# ByteLevel's own rule, where it says use_regex (tokenizers, pre_tokenizers/byte_level.rs).
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Names that say most about a vocabulary, where several stand for the same rules.
_PREFERRED = ("llama-bpe", "qwen2", "gpt-2", "smollm", "dbrx", "gpt-4o", "tekken", "deepseek-v3", "deepseek-r1-qwen")


def name_of_split(data: Mapping[str, Any], whole_words: bool, path: Path) -> tuple[str, bool]:
    """The value of `tokenizer.ggml.pre`, and whether tokens are spelled in GPT-2's characters for bytes.

    `data` is a whole tokenizer.json; `whole_words` says that words which are tokens are not merged from their parts.
    UnsupportedError for rules that the table does not have.
    """
    parts = steps(data.get("pre_tokenizer"), "pretokenizers", path)
    if not any(step.get("type") == "ByteLevel" for step in parts):
        return "", False
    rules = tuple(rule for step in parts for rule in _rules(step, path))
    canonical = tuple(map(_canonical, rules))
    names = [
        name
        for name, row in PRETOKENIZERS.items()
        if row.byte_level and row.whole_words == whole_words and tuple(map(_canonical, row.rules)) == canonical
    ]
    if not names:
        shown = " then ".join(rules)
        raise UnsupportedError(
            f"{path}: this vocabulary splits text in a way that localinfer does not know: {shown[:300]}",
            "a newer version of localinfer may know it",
        )
    return next((name for name in _PREFERRED if name in names), names[0]), True


def steps(part: Any, name: str, path: Path) -> list[dict[str, Any]]:
    """The parts of a tokenizer.json's section, of which there may be none, one, or a sequence."""
    if part is None:
        return []
    found = part.get(name) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    if not isinstance(found, list) or not all(isinstance(step, dict) for step in found):
        raise FormatError(f"{path}: {name} should be a list of objects", "download it again")
    return found


def _rules(step: Mapping[str, Any], path: Path) -> list[str]:
    """The rules, each applied to what the ones before left, that a step stands for."""
    match step:
        case {"type": "ByteLevel"}:
            if step.get("add_prefix_space"):
                raise UnsupportedError(f"{path}: ByteLevel with add_prefix_space is not supported")
            return [_BYTE_LEVEL] if step.get("use_regex", True) else []
        case {"type": "Digits"}:
            return [r"\p{N}" if step.get("individual_digits") else r"\p{N}+"]
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
            return [pattern]
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Removed", "invert": True}:
            return [pattern]  # what matches is kept; the rules of the table leave nothing between matches
    raise UnsupportedError(f"{path}: the pre-tokenizer {step.get('type')!r} is not supported in this form")


def _canonical(rule: str) -> str:
    """The same rule in one spelling: files differ in how they write contractions and quotes."""
    spelled = "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    rule = rule.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", f"(?:{spelled})?")
    rule = rule.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", spelled)
    rule = rule.replace("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", spelled)
    rule = rule.replace(r"\"", '"').replace(r"\/", "/")
    # A last run of spaces is the rest anyway, which is a piece of its own.
    return rule.removesuffix(r"|\s+") if rule.endswith(r"\s+(?!\S)|\s+") else rule
