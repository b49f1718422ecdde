"""SentencePiece models (tokenizer.model): the few fields of their protobuf that a vocabulary needs.

    ModelProto      1: repeated SentencePiece, 2: TrainerSpec, 3: NormalizerSpec
    SentencePiece   1: piece (text), 2: score (float), 3: type (GGUF has the same numbers)
    TrainerSpec     3: model_type (1: unigram, 2: BPE)
    NormalizerSpec  2: precompiled_charsmap, 3: add_dummy_prefix, 4: remove_extra_whitespaces

(sentencepiece_model.proto; encoding: protobuf.dev/programming-guides/encoding.) Every length is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import FormatError, LocalInferError, UnsupportedError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_UNIGRAM, _BPE = 1, 2
_MAX_BYTES = 100_000_000


class SentencePieceModel(NamedTuple):
    """`pieces` are (text, score, type) by id."""

    pieces: list[tuple[str, float, int]]
    add_dummy_prefix: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a BPE model. FormatError if the file is damaged, UnsupportedError for models of another kind."""
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise FormatError(f"{path} has {size} bytes, too many for a vocabulary", "download it again")
        data = path.read_bytes()
    except OSError as error:
        raise LocalInferError(f"cannot read {path}: {error.strerror}") from error
    pieces: list[tuple[str, float, int]] = []
    model_type, prefix, merges_spaces, charsmap = _UNIGRAM, True, True, b""
    try:
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(_message(value)))
            elif number == 2:
                model_type = _last(_message(value), 3, model_type)
            elif number == 3:
                prefix = bool(_last(_message(value), 3, prefix))
                merges_spaces = bool(_last(_message(value), 4, merges_spaces))
                charsmap = next((v for n, v in _fields(_message(value)) if n == 2 and isinstance(v, bytes)), b"")
    except (ValueError, IndexError, struct.error) as error:
        raise FormatError(f"{path} is no SentencePiece model: {error}", "download it again") from error
    if not pieces:
        raise FormatError(f"{path} is no SentencePiece model: it has no pieces", "download it again")
    if model_type != _BPE:
        raise UnsupportedError(f"{path} is a SentencePiece model that does not merge pairs (BPE): not supported")
    if merges_spaces or charsmap:
        raise UnsupportedError(f"{path} normalizes text, which is not supported without tokenizer.json")
    return SentencePieceModel(pieces, prefix)


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = b"", 0.0, 1
    for number, value in _fields(data):
        if number == 1:
            text = _message(value)
        elif number == 2:
            (score,) = struct.unpack("<f", _message(value))
        elif number == 3 and isinstance(value, int):
            kind = value
    if not 1 <= kind <= 6:
        raise ValueError(f"a piece of type {kind}")
    return text.decode("utf-8", "replace"), score, kind


def _last(data: bytes, wanted: int, default: int) -> int:
    """The last value of a numeric field, which is the one that counts."""
    found = default
    for number, value in _fields(data):
        if number == wanted and isinstance(value, int):
            found = value
    return found


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message: number, and the value of an integer or the bytes of anything else."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if kind == _BYTES:
            size, position = _varint(data, position)
        if size < 0:
            raise ValueError(f"field of the unknown kind {kind} at byte {position}")
        if position + size > len(data):
            raise ValueError(f"a field of {size} bytes runs past the end at byte {position}")
        yield tag >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"an integer of more than ten bytes at byte {position}")
