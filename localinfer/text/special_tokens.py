"""Which tokens of a vocabulary are special.

Files name some of them; the rest is known only by their text. The names are those that llama.cpp knows
(src/llama-vocab.cpp), since conversions are made for it.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from localinfer.formats.metadata import Metadata
from localinfer.kernels.host.encoder import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, NativeVocabulary

_PREFIX = "tokenizer.ggml."

_END_OF_TURN = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>"),
    *("▁<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
)
_END_OF_MESSAGE = ("<|eom_id|>",)
# Fill-in-the-middle tokens. These stand around a gap, by the names that models were trained with (Qwen and CodeGemma,
# SantaCoder, StarCoder and Granite, DeepSeek, CodeLlama, GLM, Falcon, Codestral, Seed-Coder).
_FIM_PREFIX = (
    *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
    *("<|prefix|>", "[PREFIX]", "<[fim-prefix]>"),
)
_FIM_SUFFIX = (
    *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
    *("<|suffix|>", "[SUFFIX]", "<[fim-suffix]>"),
)
_FIM_MIDDLE = (
    *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
    *("<|middle|>", "[MIDDLE]", "<[fim-middle]>"),
)
# What stands in front of the name of a file or a repository, beside what also ends every answer.
_FIM_FILE_NAME = ("<file_sep>", "<|file_separator|>", "<filename>")
_FIM_REPOSITORY_NAME = ("<repo_name>",)
# Trained with the suffix first: these, and the Mellum models, whose tokens are StarCoder's.
_SUFFIX_FIRST = ("[PREFIX]", "<[fim-prefix]>")
_NO_MIDDLE = "[PREFIX]"  # Codestral's answer follows the prefix itself
# Those that end an answer: padding, and what announces another file or repository.
_FIM_PAD = ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")
_FIM_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
_FIM_FILE = ("<|file_sep|>",)
# Whatever else ends an answer.
_STOP = (
    *_END_OF_TURN,
    *_END_OF_MESSAGE,
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "[EOS]", "<turn|>", "<|tool_response>", "[e~["),
)
# Texts that end an answer in chat templates.
END_OF_ANSWER = (*(text for text in _STOP), "<|END_OF_TURN_TOKEN|>", "<|eom|>", "</s>")
# These end an answer only if the file itself types them as special: elsewhere they may be plain text.
_STOP_IF_TYPED = ("</s>", "<eos>")


class FillInIds(NamedTuple):
    """Ids of the tokens around a gap that is to be filled in (Bavarian et al. 2022, arXiv:2207.14255).

    `middle` comes last, before the answer; None where nothing does. `repository` stands in front of a project's name,
    `file` in front of a file's. `suffix_first` says in which order the model saw the two sides.
    """

    prefix: int
    suffix: int
    middle: int | None
    repository: int | None
    file: int | None
    suffix_first: bool

    @property
    def marks(self) -> tuple[int, ...]:
        """All of them: none can be part of an answer."""
        found = (self.prefix, self.suffix, self.middle, self.repository, self.file)
        return tuple(token_id for token_id in found if token_id is not None)


class SpecialIds(NamedTuple):
    """Ids of the special tokens; None where the vocabulary has none. `stop` are those that end an answer."""

    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unk: int | None
    sep: int | None
    pad: int | None
    mask: int | None
    stop: frozenset[int]
    fill_in: FillInIds | None


def find_special_ids(
    data: Metadata, vocabulary: NativeVocabulary, defaults: dict[str, int], has_types: bool
) -> tuple[SpecialIds, list[str]]:
    """The ids, and notes about ids that the file names but its vocabulary does not have.

    Tokens that are special by their text get the type CONTROL, whatever the file says.
    `defaults` are ids by our names ("bos", ...) for files that leave them out.
    """
    notes: list[str] = []

    def named(key: str, default: str = "") -> int | None:
        token_id = data.get_int(_PREFIX + key, -1, minimum=-1, maximum=2**32 - 1)
        if token_id >= len(vocabulary):
            notes.append(f"{_PREFIX}{key} is {token_id}, but the vocabulary has {len(vocabulary)} tokens: ignored")
            token_id = -1
        if token_id < 0:
            token_id = defaults.get(default, -1)
        return token_id if 0 <= token_id < len(vocabulary) else None

    def by_text(texts: tuple[str, ...]) -> list[int]:
        found = [token_id for text in texts if (token_id := vocabulary.find(text)) is not None]
        for token_id in found:
            vocabulary.set_type(token_id, CONTROL)
        return found

    def is_typed(text: str) -> bool:
        token_id = vocabulary.find(text)
        return token_id is not None and vocabulary.type(token_id) != NORMAL

    def typed(texts: tuple[str, ...]) -> int | None:
        return next(iter(by_text(tuple(text for text in texts if is_typed(text)))), None)

    def either(key: str, texts: tuple[str, ...]) -> int | None:
        token_id = named(key)
        return token_id if token_id is not None else next(iter(by_text(texts)), None)

    def fill_in(repository: int | None, file: int | None) -> FillInIds | None:
        sides = []
        for name, texts in (("prefix", _FIM_PREFIX), ("suffix", _FIM_SUFFIX), ("middle", _FIM_MIDDLE)):
            token_id = named(f"fim_{name[:3]}_token_id")
            sides.append(token_id if token_id is not None else either(f"{name}_token_id", texts))  # the older key
        prefix, suffix, middle = sides
        if prefix is None or suffix is None:
            return None
        spelled = vocabulary.tokens[prefix]
        if spelled == _NO_MIDDLE:
            middle = None
        elif middle is None:
            return None
        file = typed(_FIM_FILE_NAME) if file is None else file
        repository = typed(_FIM_REPOSITORY_NAME) if repository is None else repository
        mellum = "mellum" in data.get_str("general.name", "").lower()
        return FillInIds(prefix, suffix, middle, repository, file, spelled in _SUFFIX_FIRST or mellum)

    bos, eos = named("bos_token_id", "bos"), named("eos_token_id", "eos")
    eot, eom = either("eot_token_id", _END_OF_TURN), either("eom_token_id", _END_OF_MESSAGE)
    repository, file = either("fim_rep_token_id", _FIM_REPOSITORY), either("fim_sep_token_id", _FIM_FILE)
    stop = {
        *(either("fim_pad_token_id", _FIM_PAD), repository, file, eos, eot, eom),
        *by_text(_STOP),
        *by_text(tuple(text for text in _STOP_IF_TYPED if not has_types or is_typed(text))),
        *_ids(data, "stop_ids", vocabulary),
    } - {None}
    stop -= _not_stops(vocabulary, {t for t in stop if t is not None})
    ids = SpecialIds(
        bos=bos,
        eos=eos,
        eot=eot,
        eom=eom,
        unk=named("unknown_token_id", "unk"),
        sep=named("seperator_token_id", "sep"),  # so spelled in the format
        pad=named("padding_token_id", "pad"),
        mask=named("mask_token_id", "mask"),
        stop=frozenset(t for t in stop if t is not None),
        fill_in=fill_in(repository, file),
    )
    return ids, notes


def _not_stops(vocabulary: NativeVocabulary, stop: set[int]) -> set[int]:
    """In the formats with channels (o200k_harmony, solar), <|end|> ends a channel, not the answer."""
    has = {text: vocabulary.find(text) in stop for text in ("<|return|>", "<|call|>", "<|calls|>", "<|flush|>")}
    end = vocabulary.find("<|end|>")
    calls = has["<|call|>"] or has["<|calls|>"]
    return {end} if end is not None and calls and (has["<|return|>"] or has["<|flush|>"]) else set()


def whitespace_strippers(data: Metadata, vocabulary: NativeVocabulary) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens that swallow the whitespace before them, and after them.

    Checkpoints say which (localinfer.tokenizer.…, see localinfer/checkpoints/vocabulary.py); other files do not, but
    families are known.
    """
    if "localinfer.tokenizer.strip_left" in data or "localinfer.tokenizer.strip_right" in data:
        return _ids(data, "strip_left", vocabulary), _ids(data, "strip_right", vocabulary)
    pre = data.get_str(_PREFIX + "pre", "")
    architecture = data.get_str("general.architecture", "")
    name = data.get_str("general.name", "").lower()
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in ("nomic-bert-moe", "jina-bert-v3"):
        mask = vocabulary.find("<mask>")
        return (() if mask is None else (mask,)), ()
    if "modern-bert" in name:
        mask = vocabulary.find("[MASK]")
        return (() if mask is None else (mask,)), ()
    if "phi-3" in name or "phi3" in name:
        kept = {vocabulary.find(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
        strippers = vocabulary.of_types(CONTROL, UNKNOWN, USER_DEFINED) | {vocabulary.find("</s>")}
        return (), tuple(sorted(i for i in strippers - kept if i is not None))
    return (), ()


def _ids(data: Metadata, name: str, vocabulary: NativeVocabulary) -> tuple[int, ...]:
    """Ids that a key of our own lists; those that are no tokens are left out."""
    values = data.get(f"localinfer.tokenizer.{name}")
    if not isinstance(values, array) or values.typecode in "fd":
        return ()
    return tuple(int(i) for i in values if 0 <= i < len(vocabulary))
