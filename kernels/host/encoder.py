"""The native text encoder (native/encoder*.cpp): a vocabulary where it is mapped, and its tokenizer model."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple
from weakref import finalize

from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.kernels.host.memory import address_of
from localinfer.kernels.host.strings import StringArray
from localinfer.kernels.native_library import open_library

ModelKind = Literal["bpe", "spm", "word_piece", "unigram", "rwkv", "plamo2"]
_KINDS: tuple[ModelKind, ...] = ("bpe", "spm", "word_piece", "unigram", "rwkv", "plamo2")

# Token types of GGUF files (`tokenizer.ggml.token_type`).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_MESSAGE_BYTES = 256
_FLAGS = (  # of EncoderOptions, in the order of the native struct
    *("byte_level", "escape_spaces", "whole_words", "whole_lines", "drop_spaces", "lowercase"),
    *("strip_accents", "space_prefix", "merge_spaces", "space_suffix"),
)


class EncoderOptions(NamedTuple):
    """What a tokenizer model does to text. Each kind of model reads only what concerns it (native/encoder_models.h)."""

    kind: ModelKind
    unknown_id: int = -1  # -1: text that the vocabulary lacks is an error
    split_rules: tuple[str, ...] = ()  # see native/encoder_split.h
    byte_level: bool = False  # tokens are spelled in GPT-2's printable characters for bytes
    escape_spaces: bool = False  # a space is U+2581 in the vocabulary
    whole_words: bool = False  # a word that is a token is not merged from its parts
    whole_lines: bool = False  # the same, for runs of newlines only
    drop_spaces: bool = False
    lowercase: bool = False
    strip_accents: bool = False
    space_prefix: bool = False  # text at the start and after special tokens gets a space in front
    merge_spaces: bool = False
    space_suffix: bool = False
    charsmap: bytes = b""  # SentencePiece's precompiled normalization rules
    strip_left: tuple[int, ...] = ()  # special tokens that swallow whitespace before them
    strip_right: tuple[int, ...] = ()  # and after them


class _Strings(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("count", ctypes.c_int32),
    )

    @classmethod
    def of(cls, strings: StringArray) -> _Strings:
        return cls(strings.address, strings.offsets.buffer_info()[0], strings.lengths.buffer_info()[0], len(strings))


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_uint64))


class _Ids(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("count", ctypes.c_int32))


class _Config(ctypes.Structure):
    """`li_encoder_config` in native/encoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "unknown")),
        *((name, ctypes.c_int32) for name in _FLAGS),
        ("n_rules", ctypes.c_int32),
        ("rules", ctypes.POINTER(ctypes.c_char_p)),
        ("merges", _Strings),
        ("charsmap", _Bytes),
        ("strip_left", _Ids),
        ("strip_right", _Ids),
    )


@cache
def _library() -> ctypes.CDLL:
    library = open_library("localinfer.kernels.host._host")
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    i32, i64, u64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "li_vocabulary_create": (pointer, [pointer, pointer, pointer, i32, pointer, pointer]),
        "li_vocabulary_destroy": (None, [pointer]),
        "li_vocabulary_find": (i32, [pointer, text, u64]),
        "li_vocabulary_type": (i32, [pointer, i32]),
        "li_vocabulary_set_type": (None, [pointer, i32, i32]),
        "li_encoder_create": (pointer, [pointer, pointer, text, u64]),
        "li_encoder_destroy": (None, [pointer]),
        "li_encode": (i64, [pointer, text, u64, pointer, i32, pointer, text, u64]),
        "li_split": (i64, [pointer, i32, text, u64, pointer]),
        "li_free": (None, [pointer]),
        "li_meeting": (i64, [pointer, text, u64, pointer, i64]),
        "li_decode": (i64, [pointer, pointer, i64, i32, pointer, u64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class NativeVocabulary:
    """Tokens by id and by text. `types` int32 and `scores` float32 are `[len(tokens)]`; None means all normal, all 0.

    Types may be changed until an encoder is made from it.
    """

    def __init__(self, tokens: StringArray, types: array[int] | None, scores: array[float] | None) -> None:
        for name, values, typecode in (("types", types, "i"), ("scores", scores, "f")):
            if values is not None and (values.typecode != typecode or len(values) < len(tokens)):
                raise ValueError(f"{name} must be array({typecode!r}) with {len(tokens)} items")
        self.tokens = tokens
        self._types = types
        self._changed: dict[int, int] = {}
        strings = _Strings.of(tokens)
        self._handle = _library().li_vocabulary_create(
            strings.base,
            strings.offsets,
            strings.lengths,
            strings.count,
            None if types is None else types.buffer_info()[0],
            None if scores is None else scores.buffer_info()[0],
        )
        if not self._handle:
            raise MemoryError("no memory for the vocabulary")
        finalize(self, _library().li_vocabulary_destroy, self._handle)

    @property
    def handle(self) -> int:
        return int(self._handle)

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, text: str) -> int | None:
        """The id of the token with exactly this text."""
        raw = text.encode()
        found = _library().li_vocabulary_find(self._handle, raw, len(raw))
        return None if found < 0 else int(found)

    def type(self, token_id: int) -> int:
        """NORMAL, CONTROL, ...; -1 if there is no such id."""
        return int(_library().li_vocabulary_type(self._handle, token_id))

    def set_type(self, token_id: int, token_type: int) -> None:
        _library().li_vocabulary_set_type(self._handle, token_id, token_type)
        self._changed[token_id] = token_type

    def of_types(self, *wanted: int) -> set[int]:
        """The ids of all tokens of these types."""
        found = {i for i, t in enumerate(self._types or ()) if t in wanted}
        found -= self._changed.keys()
        return found | {i for i, t in self._changed.items() if t in wanted}


def split_text(rules: Sequence[str], text: bytes) -> list[bytes]:
    """The words into which a byte-pair vocabulary with these rules splits UTF-8 text (native/encoder_split.h)."""
    texts = (ctypes.c_char_p * len(rules))(*(rule.encode() for rule in rules))
    ends = array("Q", bytes(8 * max(1, len(text))))
    count = _library().li_split(texts, len(rules), text, len(text), ends.buffer_info()[0])
    if count < 0:
        raise ValueError(f"one of these rules cannot be used: {rules}")
    return [text[begin:end] for begin, end in zip([0, *ends[: count - 1]], ends[:count], strict=True)] if count else []


class NativeEncoder:
    """Text to token ids and back. May be used from many threads at once; encoding releases the GIL."""

    def __init__(
        self, vocabulary: NativeVocabulary, options: EncoderOptions, merges: StringArray | None = None
    ) -> None:
        if merges is None:
            merges = StringArray(memoryview(b""), array("Q"), array("Q"))
        rules = (ctypes.c_char_p * len(options.split_rules))(*(rule.encode() for rule in options.split_rules))
        strip_left, strip_right = array("i", options.strip_left), array("i", options.strip_right)
        config = _Config(
            kind=_KINDS.index(options.kind),
            unknown=options.unknown_id,
            n_rules=len(options.split_rules),
            rules=rules,
            merges=_Strings.of(merges),
            charsmap=_Bytes(options.charsmap, len(options.charsmap)),
            strip_left=_Ids(*strip_left.buffer_info()),
            strip_right=_Ids(*strip_right.buffer_info()),
            **{flag: int(getattr(options, flag)) for flag in _FLAGS},
        )
        self._keep = (vocabulary, merges, options)  # the native side points into these
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._handle = _library().li_encoder_create(vocabulary.handle, ctypes.byref(config), message, _MESSAGE_BYTES)
        if not self._handle:
            raise FormatError(f"the file's tokenizer cannot be used: {message.value.decode('utf-8', 'replace')}")
        finalize(self, _library().li_encoder_destroy, self._handle)

    def encode(self, text: bytes, trusted: Sequence[tuple[int, int]] = ()) -> array[int]:
        """Ids (`array("i")`) of UTF-8 text. Special tokens are found only in the `trusted` byte ranges, which ascend.

        Raises LocalInferError for text that the vocabulary cannot express.
        """
        library = _library()
        ranges = array("Q", (bound for pair in trusted for bound in pair))
        ids = ctypes.c_void_p()
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        count = library.li_encode(
            self._handle,
            text,
            len(text),
            ranges.buffer_info()[0],
            len(trusted),
            ctypes.byref(ids),
            message,
            _MESSAGE_BYTES,
        )
        if count == -1:
            lacking = message.value.decode("utf-8", "backslashreplace")  # a byte-level vocabulary may lack a mere byte
            raise LocalInferError(f"the model's vocabulary has no token for {lacking!r}", "remove it from the text")
        if count == -2:
            raise MemoryError(f"no memory to encode {len(text)} bytes")
        if count == -4:
            raise FormatError("the file's rules to normalize text are damaged", "download or convert it again")
        if count < 0:
            raise UnsupportedError(f"{len(text)} bytes are too many to encode at once", "split the text")
        result = array("i")
        result.frombytes(ctypes.string_at(ids, count * result.itemsize))
        library.li_free(ids)
        return result

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """The bytes that the tokens stand for; with `skip_special`, control and unknown tokens stand for none."""
        tokens = ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)
        capacity = 16 * len(tokens) + 64
        while True:
            buffer = bytearray(capacity)
            size = _library().li_decode(
                self._handle, tokens.buffer_info()[0], len(tokens), int(skip_special), address_of(buffer), capacity
            )
            if size == -1:
                raise LocalInferError(f"a token id is outside the vocabulary of {len(self._keep[0])} tokens")
            if size < 0:
                raise MemoryError(f"no memory to decode {len(tokens)} tokens")
            if size <= capacity:
                return bytes(buffer[:size])
            capacity = size

    def meeting(self, text: bytes) -> array[int]:
        """Pairs of a token that holds `text`, or ends with the beginning of it, and how many of its bytes it has.

        `array("i")`, tokens ascending; those that hold it are named for all of it, others for each beginning.
        """
        capacity = len(self._keep[0])
        while True:
            found = array("i", bytes(8 * capacity))
            count = _library().li_meeting(self._handle, text, len(text), found.buffer_info()[0], capacity)
            if count < 0:
                raise MemoryError("no memory to look at the tokens")
            if count <= capacity:
                return found[: 2 * count]
            capacity = count
