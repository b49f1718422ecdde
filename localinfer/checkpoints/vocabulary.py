"""The tokenizer of a checkpoint, as the `tokenizer.ggml.…` metadata of a GGUF file.

BERT's tokenizer.json is read in word_piece.py. Two other kinds are known, both "BPE": those that spell bytes in GPT-2's
characters ("gpt2" in GGUF), and those made from SentencePiece models ("llama"), whose merges are turned back into
scores. A folder without tokenizer.json may have the SentencePiece model itself. Beside the tokens, the special ones,
the chat template and what is recommended for sampling are read. What llama.cpp's converter writes has its names; those
under "localinfer." are our own.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from localinfer.checkpoints.config import float32
from localinfer.checkpoints.sentencepiece import read_sentencepiece
from localinfer.checkpoints.splitting import name_of_split, steps
from localinfer.checkpoints.word_piece import word_piece_metadata
from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.json_file import read_json_object
from localinfer.formats.metadata import Value
from localinfer.kernels.host.encoder import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from localinfer.text.tokenizer import pack_strings

_PREFIX = "tokenizer.ggml."
_MAX_TOKENS = 1 << 22
_MAX_PIECE = 1024  # characters of a token that is merged from others
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE = "▁"
# Added tokens that text must not become although their file does not call them special (llama.cpp's rule).
_LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<｜.*｜>|<pad>|<mask>|<unused\d+>", re.DOTALL)
# Kinds of special tokens by the names of transformers, and their GGUF keys.
_SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # so spelled in the format
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
_CUSTOM = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}  # of SentencePiece models, where nothing says otherwise
_PREFIXES = {"always": "every", "first": "first", "never": "none"}  # Metaspace's words
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


class Added(NamedTuple):
    """A token that was added to a vocabulary: its text is looked for before anything else."""

    id: int
    content: str
    special: bool
    strip_left: bool = False
    strip_right: bool = False


@dataclass
class Vocabulary:
    """Tokens by id, and how text becomes them.

    model         "gpt2" or "llama" (`tokenizer.ggml.model`)
    ends          special tokens put around a text by the file's own rule, by kind; None: it has no rule
    space_prefix  where text gets a space in front: "every" piece between special tokens, the "first", or "none"
    """

    model: str
    pre: str
    tokens: dict[int, str] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    merges: list[str] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    starts: list[str] | None = None
    ends: list[str] | None = None
    space_prefix: str = "none"
    composes: bool = False


def read_vocabulary(folder: Path, config: Mapping[str, Any], vocab_size: int) -> dict[str, Value]:
    """Metadata of the tokenizer in a folder; without a tokenizer only what else is known about its use.

    `vocab_size` rows are in the embedding table: ids without a token get a name that no text becomes.
    FormatError for files that are damaged, UnsupportedError for a tokenizer that would not be rendered exactly.
    """
    settings = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    metadata: dict[str, Value] = {}
    if (path := folder / "tokenizer.json").is_file():
        data = read_json_object(path)
        if isinstance(data.get("model"), dict) and data["model"].get("type") == "WordPiece":
            return word_piece_metadata(data, vocab_size, path)
        vocabulary = _from_tokenizer_json(data, path)
    elif (path := folder / "tokenizer.model").is_file():
        vocabulary = _from_sentencepiece(path, folder, settings)
    else:
        return metadata | _sampling(generation)
    metadata |= _tokens(vocabulary, vocab_size, path)
    metadata |= _special_tokens(vocabulary, folder, settings, config, generation)
    metadata |= _templates(folder, settings)
    return metadata | _sampling(generation)


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


# ---- tokenizer.json ------------------------------------------------------------------------------------------------


def _from_tokenizer_json(data: dict[str, Any], path: Path) -> Vocabulary:
    model = data.get("model")
    if not isinstance(model, dict) or not isinstance(vocab := model.get("vocab"), dict | list):
        raise FormatError(f"{path}: model.vocab is missing", "download it again")
    if (kind := model.get("type", "BPE")) != "BPE" or not isinstance(vocab, dict):
        raise UnsupportedError(f"{path}: tokenizers of the type {kind!r} are not supported", "BPE and WordPiece are")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedError(f"{path}: BPE with {key} {model[key]!r} is not supported")
    added = _added_tokens(data.get("added_tokens", []), path)
    tokens = _by_id([*vocab.items(), *((token.content, token.id) for token in added)], path)
    merges = _merges(model.get("merges"), path)
    split, byte_level = name_of_split(data, bool(model.get("ignore_merges")), path)
    if byte_level:
        vocabulary = Vocabulary("gpt2", split, tokens, merges=list(map(" ".join, merges)))
        vocabulary.composes = _normalizers(data, path) == ["NFC"]
        if not vocabulary.composes and _normalizers(data, path):
            raise UnsupportedError(f"{path}: the normalizers {_normalizers(data, path)} are not supported here")
    else:
        vocabulary = Vocabulary("llama", "default", tokens)
        vocabulary.scores = _scores(vocab, merges, {token.content for token in added}, path)
        vocabulary.types = {i: BYTE for i, token in tokens.items() if _BYTE_TOKEN.fullmatch(token)}
        vocabulary.space_prefix = _space_prefix(data, vocab, path)
        if not model.get("byte_fallback") and not vocabulary.types:
            raise UnsupportedError(f"{path}: BPE on characters without byte_fallback is not supported")
    if isinstance(unknown := model.get("unk_token"), str) and unknown in vocab:
        vocabulary.types[vocab[unknown]] = UNKNOWN
    vocabulary.added = added
    vocabulary.starts, vocabulary.ends = _template(data.get("post_processor"), path)
    return vocabulary


def _by_id(pairs: Iterable[tuple[str, Any]], path: Path) -> dict[int, str]:
    tokens: dict[int, str] = {}
    for text, token_id in pairs:
        if type(token_id) is not int or not 0 <= token_id < _MAX_TOKENS:
            raise FormatError(f"{path}: token {text!r} has the id {str(token_id)[:40]!r}", "download it again")
        if tokens.setdefault(token_id, text) != text:
            raise FormatError(
                f"{path}: tokens {tokens[token_id]!r} and {text!r} have the same id {token_id}", "download it again"
            )
    return tokens


def _added_tokens(entries: Any, path: Path) -> list[Added]:
    if not isinstance(entries, list):
        raise FormatError(f"{path}: added_tokens should be a list", "download it again")
    return [_added_token(entry, entry.get("id") if isinstance(entry, dict) else None, path) for entry in entries]


def _added_token(entry: Any, token_id: Any, path: Path) -> Added:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not isinstance(token_id, int):
        raise FormatError(f"{path}: an added token should have an id and a content: {str(entry)[:80]}")
    if entry.get("single_word"):
        raise UnsupportedError(f"{path}: added token {entry['content']!r} is for whole words, which is not supported")
    flags = (bool(entry.get(name)) for name in ("special", "lstrip", "rstrip"))
    return Added(token_id, entry["content"], *flags)


def _merges(entries: Any, path: Path) -> list[list[str]]:
    """Pairs of tokens, best first; written as "left right" or as [left, right]."""
    if not isinstance(entries, list):
        raise FormatError(f"{path}: model.merges is missing", "download it again")
    merges = [entry.split(" ") if isinstance(entry, str) else entry for entry in entries]
    for i, pair in enumerate(merges):
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            raise FormatError(f"{path}: {str(entries[i])[:60]!r} is no pair of tokens", "download it again")
    return merges


def _normalizers(data: Mapping[str, Any], path: Path) -> list[str]:
    return [str(step.get("type")) for step in steps(data.get("normalizer"), "normalizers", path)]


def _scores(vocab: Mapping[str, int], merges: list[list[str]], added: set[str], path: Path) -> dict[int, float]:
    """Scores with which merging the best piece first does what the list of merges does.

    SentencePiece merges any two neighbours that make a piece, the piece of the highest score first. A list made from
    such a model has all pairs of a piece, one after the other; only then do scores say the same.
    """
    counts: dict[str, int] = {}
    for piece, pairs in groupby(map("".join, merges)):
        if piece in counts:
            raise _inexact(path)
        counts[piece] = len(list(pairs))
    if unknown := counts.keys() - vocab.keys():
        raise FormatError(f"{path}: {min(unknown)!r} is merged, but no token", "download it again")
    for piece in vocab.keys() - added:
        if len(piece) > _MAX_PIECE:
            raise FormatError(f"{path}: {piece[:40]!r}... is a token of {len(piece)} characters", "download it again")
        splits = 0
        for i in range(1, len(piece)):
            if piece[i:] in vocab and piece[:i] in vocab:
                splits += 1
        if splits != counts.get(piece, 0) and not _BYTE_TOKEN.fullmatch(piece):
            raise _inexact(path)
    return {vocab[piece]: -float(place) for place, piece in enumerate(counts)}


def _inexact(path: Path) -> UnsupportedError:
    return UnsupportedError(
        f"{path}: this vocabulary merges characters by a list that no SentencePiece model has made, which is not "
        "supported",
        "byte-level BPE and vocabularies from SentencePiece are",
    )


def _space_prefix(data: Mapping[str, Any], vocab: Mapping[str, int], path: Path) -> str:
    """Whether text gets a space in front, from normalizer and pre-tokenizer of a vocabulary with U+2581 for spaces."""
    prefix = "none"
    escapes = False
    for step in steps(data.get("normalizer"), "normalizers", path):
        match step:
            case {"type": "Prepend", "prepend": "▁"}:
                prefix = "every"
            case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
                escapes = True
            case _:
                raise UnsupportedError(f"{path}: the normalizer {step.get('type')!r} is not supported here")
    for step in steps(data.get("pre_tokenizer"), "pretokenizers", path):
        match step:
            case {"type": "Metaspace", "replacement": "▁"}:
                escapes = True
                scheme = str(step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never"))
                if scheme not in _PREFIXES:
                    raise UnsupportedError(f"{path}: Metaspace with prepend_scheme {scheme[:40]!r} is not supported")
                prefix = _PREFIXES[scheme]
                if step.get("split", True) and any(_SPACE in piece[1:] for piece in vocab):
                    raise UnsupportedError(f"{path}: Metaspace that splits, with tokens of several words")
            case {"type": "Split", "pattern": {"String": " "}, "invert": False}:
                pass  # there are no spaces any more
            case _:
                raise UnsupportedError(f"{path}: the pre-tokenizer {step.get('type')!r} is not supported here")
    if not escapes:
        raise UnsupportedError(f"{path}: BPE on characters that does not write spaces as U+2581 is not supported")
    return prefix


def _template(part: Any, path: Path) -> tuple[list[str] | None, list[str] | None]:
    """Special tokens that the post-processor puts in front of a text and behind it; None if it says nothing."""
    for step in steps(part, "processors", path):
        match step:
            case {"type": "TemplateProcessing", "single": list(pieces)}:
                return _around(pieces, path)
            case {"type": "ByteLevel"}:
                pass
            case _:
                raise UnsupportedError(f"{path}: the post-processor {step.get('type')!r} is not supported")
    return None, None


def _around(pieces: list[Any], path: Path) -> tuple[list[str], list[str]]:
    before: list[str] = []
    after: list[str] = []
    places = 0
    for piece in pieces:
        match piece:
            case {"Sequence": _}:
                places += 1
            case {"SpecialToken": {"id": str(token)}}:
                (after if places else before).append(token)
            case _:
                raise FormatError(f"{path}: the post-processor's template has {str(piece)[:60]!r}")
    if places != 1:
        raise FormatError(f"{path}: the post-processor's template has {places} places for the text")
    return before, after


# ---- tokenizer.model -----------------------------------------------------------------------------------------------


def _from_sentencepiece(path: Path, folder: Path, settings: Mapping[str, Any]) -> Vocabulary:
    """The SentencePiece model, and the tokens that were added to it beside it."""
    model = read_sentencepiece(path)
    vocabulary = Vocabulary("llama", "default", space_prefix="every" if model.add_dummy_prefix else "none")
    for token_id, (piece, score, kind) in enumerate(model.pieces):
        vocabulary.tokens[token_id] = piece
        vocabulary.scores[token_id] = score
        vocabulary.types[token_id] = kind
    for text, token_id in _optional(folder / "added_tokens.json").items():
        vocabulary.added.append(_added_token({"content": text}, token_id, folder / "added_tokens.json"))
    entries = settings.get("added_tokens_decoder", {})
    where = folder / "tokenizer_config.json"
    if not isinstance(entries, dict):
        raise FormatError(f"{where}: added_tokens_decoder should be an object")
    decoder = [_added_token(e, int(key) if key.isdecimal() else None, where) for key, e in entries.items()]
    known = {token.id for token in decoder}
    vocabulary.added = [token for token in vocabulary.added if token.id not in known] + decoder
    for token in vocabulary.added:
        if not 0 <= token.id < _MAX_TOKENS:
            raise FormatError(f"{where}: token {token.content!r} has the id {token.id}")
        vocabulary.tokens[token.id] = token.content
    return vocabulary


# ---- metadata ------------------------------------------------------------------------------------------------------


def _tokens(vocabulary: Vocabulary, vocab_size: int, path: Path) -> dict[str, Value]:
    """Token list, types, scores and merges, with names for ids that have none."""
    count = max(vocab_size, 1 + max(vocabulary.tokens, default=0))
    texts = [vocabulary.tokens.get(i, f"[PAD{i}]") for i in range(count)]
    types = array("i", [NORMAL if i in vocabulary.tokens else UNUSED for i in range(count)])
    for token_id, kind in vocabulary.types.items():
        types[token_id] = kind
    for token in vocabulary.added:
        if types[token.id] != UNKNOWN:
            control = token.special or _LOOKS_SPECIAL.fullmatch(token.content)
            types[token.id] = CONTROL if control else USER_DEFINED
            if vocabulary.model == "llama" and not control:
                texts[token.id] = token.content.replace(_SPACE, " ")
    metadata: dict[str, Value] = {
        _PREFIX + "model": vocabulary.model,
        _PREFIX + "pre": vocabulary.pre,
        _PREFIX + "tokens": _strings(texts, path),
        _PREFIX + "token_type": types,
    }
    if vocabulary.model == "llama":
        lowest = min(vocabulary.scores.values(), default=0.0) - 1
        metadata[_PREFIX + "scores"] = array("f", [vocabulary.scores.get(i, lowest) for i in range(count)])
        metadata[_PREFIX + "add_space_prefix"] = vocabulary.space_prefix != "none"
        if vocabulary.space_prefix == "first":
            metadata["localinfer.tokenizer.space_prefix_first"] = True
    else:
        metadata[_PREFIX + "merges"] = _strings(vocabulary.merges, path)
    if vocabulary.composes:
        metadata["localinfer.tokenizer.nfc"] = True
    for key, ids in (
        ("strip_left", [token.id for token in vocabulary.added if token.strip_left]),
        ("strip_right", [token.id for token in vocabulary.added if token.strip_right]),
    ):
        if ids:
            metadata[f"localinfer.tokenizer.{key}"] = array("i", ids)
    return metadata


def _strings(texts: list[str], path: Path) -> Value:
    try:
        return pack_strings(texts)
    except UnicodeEncodeError as error:
        raise FormatError(f"{path}: {error.object!r} is no text", "download it again") from error


def _special_tokens(
    vocabulary: Vocabulary,
    folder: Path,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> dict[str, Value]:
    """Ids of special tokens, what ends an answer, and whether a text begins and ends with them."""
    by_text = {text: token_id for token_id, text in vocabulary.tokens.items()}
    names = _optional(folder / "special_tokens_map.json") | dict(settings)
    ids: dict[str, int] = {}
    for kind in _SPECIAL:
        entry = names.get(f"{kind}_token")
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str) and text in by_text:
            ids[kind] = by_text[text]
        elif candidates := _ids(config.get(f"{kind}_token_id"), vocabulary):
            ids[kind] = candidates[0]
        elif vocabulary.model == "llama" and _CUSTOM.get(kind) in by_text:
            ids[kind] = by_text[_CUSTOM[kind]]
    stop = _ids(generation.get("eos_token_id"), vocabulary) or _ids(config.get("eos_token_id"), vocabulary)
    if stop:
        ids.setdefault("eos", stop[0])
    for kind, around in (("bos", vocabulary.starts), ("eos", vocabulary.ends)):
        if around and around[0] in by_text:
            ids.setdefault(kind, by_text[around[0]])
    metadata: dict[str, Value] = {_PREFIX + _SPECIAL[kind]: token_id for kind, token_id in ids.items()}
    if more := [token_id for token_id in stop if token_id != ids.get("eos")]:
        metadata["localinfer.tokenizer.stop_ids"] = array("i", more)
    for flag, kind, around in (("add_bos_token", "bos", vocabulary.starts), ("add_eos_token", "eos", vocabulary.ends)):
        metadata[_PREFIX + flag] = _adds(kind, around, ids, by_text, vocabulary, settings.get(flag), folder)
    return metadata


def _adds(
    kind: str,
    around: list[str] | None,
    ids: Mapping[str, int],
    by_text: Mapping[str, int],
    vocabulary: Vocabulary,
    setting: Any,
    folder: Path,
) -> bool:
    """Whether BOS or EOS is put around a text: by the rule in tokenizer.json, else by the setting, else by custom."""
    if around is None:
        default = kind == "bos" and vocabulary.model == "llama"
        return (setting if isinstance(setting, bool) else default) and kind in ids
    if not around:
        return False
    if len(around) == 1 and ids.get(kind) == by_text.get(around[0], -1):
        return True
    raise UnsupportedError(
        f"{folder / 'tokenizer.json'}: {around} around every text is not supported, only one {kind} token"
    )


def _ids(value: Any, vocabulary: Vocabulary) -> list[int]:
    """One id or a list of them; what is no token is left out."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v in vocabulary.tokens]


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, Value]:
    """Chat templates: a file of its own, else in tokenizer_config.json, one or several by name."""
    found = settings.get("chat_template")
    if (path := folder / "chat_template.jinja").is_file():
        try:
            found = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"{path} cannot be read: {error}") from error
    elif found is None:
        found = _optional(folder / "chat_template.json").get("chat_template")
    if isinstance(found, str):
        return {"tokenizer.chat_template": found}
    metadata: dict[str, Value] = {}
    for entry in found if isinstance(found, list) else []:
        match entry:
            case {"name": "default", "template": str(template)}:
                metadata["tokenizer.chat_template"] = template
            case {"name": str(name), "template": str(template)}:
                metadata[f"tokenizer.chat_template.{name}"] = template
    return metadata


def _sampling(generation: Mapping[str, Any]) -> dict[str, Value]:
    """What the authors recommend to sample with, if they recommend sampling."""
    if generation.get("do_sample") is not True:
        return {}
    metadata: dict[str, Value] = {}
    for name, key in _SAMPLING.items():
        value = generation.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            metadata[f"general.sampling.{key}"] = int(value) if name == "top_k" else float32(value)
    return metadata
