"""Answers drawn at random: whatever a model would say, only the constraint makes sense of it."""

from __future__ import annotations

import random
from collections.abc import Iterable

from localinfer.text.grammar import Matcher
from localinfer.text.tokenizer import Tokenizer, load_tokenizer

JSON_PIECES = ('"', '": ', '", "', '"}', '"]', "{", "}", "[", "]", ", ", "true", "false", "null", "12", "0", "{}", "[]")


def byte_tokenizer(pieces: Iterable[str] = JSON_PIECES, special: Iterable[str] = ()) -> Tokenizer:
    """A vocabulary of all bytes, some longer pieces, and special tokens beside the usual ones."""
    said = [piece for piece in dict.fromkeys(pieces) if len(piece) > 1]
    marks = ["<unk>", "<s>", "</s>", *dict.fromkeys(special)]
    tokens = [*marks, *(f"<0x{byte:02X}>" for byte in range(256)), " ", *said]
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [token.replace(" ", "▁") for token in tokens],
            "tokenizer.ggml.scores": [-float(number) for number in range(len(tokens))],
            "tokenizer.ggml.token_type": [2, *[3] * (len(marks) - 1), *[6] * 256, *[1] * (1 + len(said))],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )


class Drawing:
    """Draws answers of one vocabulary. Ends, and tokens of several bytes, are preferred: else texts and lists would
    hardly ever end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ends = self._marks = self._plain = 0
        for token in range(tokenizer.vocab_size):
            text = tokenizer.token_bytes(token)
            if token in tokenizer.stop_ids:
                self._ends |= 1 << token
            elif tokenizer.is_special(token) or len(text) > 1:
                self._marks |= 1 << token
            elif len(text) == 1 and 32 < text[0] < 127:
                self._plain |= 1 << token

    def answer(self, matcher: Matcher, chance: random.Random, most: int = 400) -> list[int] | None:
        """The tokens of an answer, each drawn from those that are allowed; None if it does not end in time."""
        answer: list[int] = []
        for _ in range(most):
            if matcher.complete:
                return answer
            allowed = int.from_bytes(matcher.allowed().tobytes(), "little")
            if allowed & self._ends and chance.random() < 0.5:
                return answer
            said = allowed & ~self._ends
            if allowed & self._marks and chance.random() < 0.4:
                said = allowed & self._marks
            elif allowed & self._plain and chance.random() < 0.8:
                said = allowed & self._plain
            if not said:
                return answer
            token = chance.choice(_set_bits(said))
            assert matcher.take(token), (self._tokenizer.decode(answer), token)
            answer.append(token)
        return None


def _set_bits(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
