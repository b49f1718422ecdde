"""Tokenizers, made from the metadata of a model file.

The native encoder (kernels/host/encoder.py) works on the vocabulary where it is mapped. Here is what differs from
one kind of tokenizer to the next: which model, which flags, which tokens are special.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.metadata import Metadata
from localinfer.kernels.host.encoder import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    EncoderOptions,
    NativeEncoder,
    NativeVocabulary,
)
from localinfer.kernels.host.strings import StringArray
from localinfer.text.detokenizer import Detokenizer
from localinfer.text.pretokenizers import PRETOKENIZERS, Pretokenizer
from localinfer.text.special_tokens import SpecialIds, find_special_ids, whitespace_strippers

_PREFIX = "tokenizer.ggml."
_OWN = "localinfer.tokenizer."  # what checkpoints say and GGUF has no keys for


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads."""

    def __init__(
        self,
        vocabulary: NativeVocabulary,
        encoder: NativeEncoder,
        special: SpecialIds,
        *,
        model: str,
        add_bos: bool,
        add_eos: bool,
        space_prefix: bool,
        space_first: bool = False,
        compose: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self.model = model  # `tokenizer.ggml.model`
        self.bos_id, self.eos_id = special.bos, special.eos
        self.eot_id, self.eom_id = special.eot, special.eom
        self.unk_id, self.sep_id, self.pad_id, self.mask_id = special.unk, special.sep, special.pad, special.mask
        self.stop_ids = special.stop
        self.fill_in = special.fill_in  # None: the model was not trained to fill gaps in
        self.add_bos, self.add_eos = add_bos, add_eos
        self.space_prefix = space_prefix  # encoding puts a space in front, decoding takes it away
        self._compose = compose  # text is brought into Unicode's composed form (NFC) first
        self._leading = _LeadingSpace(vocabulary) if space_first else None
        self.notes = tuple(notes)  # what a person should know about this vocabulary
        self._first = _required(special.bos, "bos", "in front of") if add_bos else None
        self._last = None
        if add_eos:  # BERT's texts end with SEP
            sep = model == "bert"
            self._last = _required(special.sep if sep else special.eos, "seperator" if sep else "eos", "after")

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary)

    def encode(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> array[int]:
        """Token ids, `array("i")`.

        `add_special` puts BOS in front and EOS behind where the vocabulary asks for them. With `parse_special` the
        text of a control token (such as <|im_end|>) means the token; without, it is text like any other. User-defined
        tokens are always found. Bytes that are no UTF-8 become U+FFFD. Raises LocalInferError for text that the
        vocabulary has no tokens for.
        """
        return self.encode_parts([(text, parse_special)], add_special=add_special)

    def encode_parts(self, parts: Iterable[tuple[str | bytes, bool]], *, add_special: bool) -> array[int]:
        """Token ids of the parts as one text; special tokens are found only within runs of parts marked True."""
        pieces: list[bytes] = []
        trusted: list[tuple[int, int]] = []
        size, in_run = 0, False
        for text, trust in parts:
            raw = _composed(_utf8(text)) if self._compose else _utf8(text)
            if self._leading and not size:
                raw = self._leading.put(raw, trust)
            pieces.append(raw)
            if trust:
                begin = trusted.pop()[0] if in_run else size
                trusted.append((begin, size + len(raw)))
            in_run = trust
            size += len(raw)
        ids = self._encoder.encode(b"".join(pieces), trusted)
        if add_special and self._first is not None:
            ids.insert(0, self._first)
        if add_special and self._last is not None:
            ids.append(self._last)
        return ids

    def encode_pair(self, first: str, second: str, longest: int | None = None) -> tuple[array[int], int]:
        """Two texts as encoders see them that were trained on pairs, and where the second begins.

        The second is cut to its `longest` first tokens. BERT's form: [CLS] first [SEP] second [SEP]. UnsupportedError
        if texts do not end with a token of their own.
        """
        if self._last is None:
            raise UnsupportedError("this vocabulary has no token between two texts", "choose a model that ranks texts")
        ids = self.encode(first, add_special=True, parse_special=False)
        start = len(ids)
        ids += self.encode(second, add_special=False, parse_special=False)[:longest]
        ids.append(self._last)
        return ids, start

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, strip_prefix: bool = True) -> str:
        """The text of the tokens. Bytes that are no UTF-8 become U+FFFD.

        `strip_prefix` takes back the space that the vocabulary puts in front of a text; pass False for tokens that
        continue a text.
        """
        raw = self._encoder.decode(ids, skip_special)
        if strip_prefix and self.space_prefix and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", "replace")

    def detokenizer(self, *, skip_special: bool = False, strip_prefix: bool = True) -> Detokenizer:
        """Decodes token by token; the pieces joined are what `decode` with the same arguments gives."""
        return Detokenizer(
            lambda token_id: self._encoder.decode((token_id,), skip_special), strip_prefix and self.space_prefix
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; of a control token, its name."""
        return self._encoder.decode((token_id,))

    def meeting(self, text: bytes) -> Iterator[tuple[int, int]]:
        """The tokens that hold a text, or end with its beginning, ascending; and how many of its bytes each has."""
        found = self._encoder.meeting(text)
        return zip(found[::2], found[1::2], strict=True)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is spelled exactly so in the vocabulary."""
        return self._vocabulary.find(text)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control or unknown token, which no plain text becomes."""
        return self._vocabulary.type(token_id) in (CONTROL, UNKNOWN)


class _LeadingSpace:
    """Puts a space in front of a text, but not of what follows a special token (Metaspace's "first" in tokenizers)."""

    def __init__(self, vocabulary: NativeVocabulary) -> None:
        def texts(*types: int) -> tuple[bytes, ...]:
            return tuple(vocabulary.tokens.raw(i) for i in vocabulary.of_types(*types))

        self._always = (b" ", "\u2581".encode(), *texts(USER_DEFINED))
        self._if_trusted = texts(CONTROL, UNKNOWN)

    def put(self, raw: bytes, trusted: bool) -> bytes:
        """The start of a text; of a part that is `trusted`, special tokens are found."""
        if not raw or raw.startswith(self._always) or (trusted and raw.startswith(self._if_trusted)):
            return raw
        return b" " + raw


class _Plan(NamedTuple):
    """What the metadata says about one vocabulary, before its tokens are looked at."""

    options: EncoderOptions
    defaults: dict[str, int]  # ids of special tokens that files of this kind leave out
    space_first: bool = False
    add_bos: bool = False
    add_eos: bool = False
    force_bos: bool = False
    needs_merges: bool = False
    notes: tuple[str, ...] = ()


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the `tokenizer.ggml.…` keys of a GGUF file describe.

    Raises FormatError if the keys are missing or contradict each other, UnsupportedError for a kind of tokenizer that
    we do not know.
    """
    data = metadata if isinstance(metadata, Metadata) else Metadata(_as_arrays(metadata), "the metadata")
    model = data.get_str(_PREFIX + "model")
    plan = _plan(model, data)

    tokens = data.get_strings(_PREFIX + "tokens")
    types = _numbers(data, "token_type", "i", len(tokens))
    vocabulary = NativeVocabulary(tokens, types, _numbers(data, "scores", "f", len(tokens)))
    special, notes = find_special_ids(data, vocabulary, plan.defaults, has_types=types is not None)
    strip_left, strip_right = whitespace_strippers(data, vocabulary)

    options = plan.options._replace(
        unknown_id=-1 if special.unk is None else special.unk,
        strip_left=strip_left,
        strip_right=strip_right,
    )
    merges = data.get_strings(_PREFIX + "merges") if plan.needs_merges else None
    return Tokenizer(
        vocabulary,
        NativeEncoder(vocabulary, options, merges),
        special,
        model=model,
        add_bos=data.get_bool(_PREFIX + "add_bos_token", plan.add_bos) or plan.force_bos,
        add_eos=data.get_bool(_PREFIX + "add_eos_token", plan.add_eos),
        space_prefix=options.space_prefix or options.kind == "word_piece" or plan.space_first,
        space_first=plan.space_first,
        compose=data.get_bool(_OWN + "nfc", False),
        notes=(*plan.notes, *notes),
    )


def _plan(model: str, data: Metadata) -> _Plan:
    def flag(name: str, default: bool) -> bool:
        return data.get_bool(_PREFIX + name, default)

    match model:
        case "gpt2" | "whitespace":
            return _plan_bpe(data, data.get_str(_PREFIX + "pre", ""))
        case "gemma4":
            return _plan_bpe(data, "gemma4")
        case "llama":
            first = data.get_bool(_OWN + "space_prefix_first", False)
            options = EncoderOptions("spm", space_prefix=flag("add_space_prefix", True) and not first)
            return _Plan(options, {"bos": 1, "eos": 2, "unk": 0}, space_first=first, add_bos=True)
        case "bert":
            lowercase = flag("normalizer.lowercase", True)
            strip_accents = flag("normalizer.strip_accents", lowercase)
            options = EncoderOptions("word_piece", lowercase=lowercase, strip_accents=strip_accents)
            defaults = {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}
            return _Plan(options, defaults, add_bos=True, add_eos=True)
        case "t5":
            options = EncoderOptions(
                "unigram",
                space_prefix=flag("add_space_prefix", False),
                merge_spaces=flag("remove_extra_whitespaces", False),
                escape_spaces=True,
                charsmap=_charsmap(data),
            )
            return _Plan(options, {"eos": 1, "unk": 2, "pad": 0}, add_eos=True)
        case "rwkv":
            return _Plan(EncoderOptions("rwkv"), {})
        case "plamo2":
            return _Plan(EncoderOptions("plamo2"), {"bos": 1, "eos": 2, "unk": 0, "pad": 3})
    raise UnsupportedError(
        f"the file's tokenizer is of the kind {model!r}, which localinfer does not know",
        "kinds it knows: bert, gemma4, gpt2, llama, plamo2, rwkv, t5, whitespace",
    )


def _plan_bpe(data: Metadata, pre: str) -> _Plan:
    notes: tuple[str, ...] = ()
    if not pre:
        pre = "default"
        notes = (
            f"the file does not say how its vocabulary splits text ({_PREFIX}pre), so a general rule is used: "
            "answers may be worse than they should be; a newer conversion of the model would say it",
        )
    row: Pretokenizer | None = PRETOKENIZERS.get(pre)
    if row is None:
        raise UnsupportedError(
            f"the file's vocabulary splits text in the way {pre!r} ({_PREFIX}pre), which localinfer does not know",
            f"known: {', '.join(sorted(PRETOKENIZERS))}",
        )
    options = EncoderOptions(
        "bpe",
        split_rules=row.rules,
        byte_level=row.byte_level,
        escape_spaces=row.escape_spaces,
        whole_words=row.whole_words,
        whole_lines=row.whole_lines,
        drop_spaces=row.drop_spaces,
        lowercase=row.drop_spaces and data.get_bool(_PREFIX + "normalizer.lowercase", False),
    )
    return _Plan(options, {}, add_bos=row.add_bos, force_bos=row.force_bos, needs_merges=True, notes=notes)


def _required(token_id: int | None, name: str, where: str) -> int:
    if token_id is None:
        raise FormatError(
            f"the vocabulary asks for a token {where} every text, but the file does not say which",
            f"it should have {_PREFIX}{name}_token_id; convert it again",
        )
    return token_id


def _charsmap(data: Metadata) -> bytes:
    value = data.get(_PREFIX + "precompiled_charsmap")
    if value is None:
        return b""
    if not isinstance(value, array) or value.typecode not in "bB":
        raise FormatError(f"{_PREFIX}precompiled_charsmap should be an array of bytes", "convert the file again")
    return value.tobytes()


def _utf8(text: str | bytes) -> bytes:
    """UTF-8, with U+FFFD for bytes that are none and for surrogates without a partner."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace").encode()
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _composed(raw: bytes) -> bytes:
    """The text in Unicode's normalization form C."""
    if raw.isascii():
        return raw
    from unicodedata import normalize

    return normalize("NFC", raw.decode()).encode()


def _numbers(data: Metadata, name: str, typecode: str, count: int) -> Any:
    """The array `tokenizer.ggml.NAME` with an item per token, or None if the file has none."""
    key = _PREFIX + name
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, array) or (typecode == "i" and value.typecode in "fd") or len(value) < count:
        raise FormatError(f"{key} should be an array of {count} numbers, one per token", "convert the file again")
    try:
        return value if value.typecode == typecode else array(typecode, value)
    except OverflowError:
        raise FormatError(f"{key} has a value out of range", "convert the file again") from None


def _as_arrays(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Plain lists, as a caller may write them down, in the form in which files give them."""
    return {key: _as_array(key, value) if isinstance(value, list) else value for key, value in metadata.items()}


def _as_array(key: str, values: list[Any]) -> Any:
    if (not values and key.endswith(("tokens", "merges"))) or (values and isinstance(values[0], str | bytes)):
        return pack_strings(values)
    return array("f" if values and isinstance(values[0], float) else "q", values)


def pack_strings(values: Sequence[str | bytes]) -> StringArray:
    """Strings in one buffer, as in a mapped file."""
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    lengths = array("Q", map(len, raw))
    offsets = array("Q", accumulate(lengths, initial=0))
    return StringArray(memoryview(b"".join(raw)), offsets[:-1], lengths)
