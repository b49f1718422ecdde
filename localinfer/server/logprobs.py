"""Log probabilities in the two shapes of OpenAI's API: of chats, and of text completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from localinfer.engine.request import TextDecoder, TokenLogprob
from localinfer.server.schemas.chat import ChoiceLogprobs, TopLogprob
from localinfer.server.schemas.chat import TokenLogprob as ChatTokenLogprob
from localinfer.server.schemas.completions import CompletionLogprobs

LEAST = -9999.0  # stands for a probability of 0, whose logarithm JSON cannot write

TokenBytes = Callable[[int], bytes]


def chat_logprobs(entries: Iterable[TokenLogprob], token_bytes: TokenBytes) -> ChoiceLogprobs:
    """The shape of chats."""
    return ChoiceLogprobs([_chat_entry(entry, token_bytes) for entry in entries])


def _chat_entry(entry: TokenLogprob, token_bytes: TokenBytes) -> ChatTokenLogprob:
    raw = token_bytes(entry.token)
    top = [_top(token_bytes(token), logprob) for token, logprob in entry.top]
    return ChatTokenLogprob(raw.decode("utf-8", "replace"), _finite(entry.logprob), list(raw), top)


def _top(raw: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(raw.decode("utf-8", "replace"), _finite(logprob), list(raw))


class CompletionLogprobsWriter:
    """The shape of text completions, token after token of one text. `decoder` finds where each token begins in it."""

    def __init__(self, decoder: TextDecoder, token_bytes: TokenBytes) -> None:
        self._decoder = decoder
        self._token_bytes = token_bytes
        self._offset = 0

    def write(self, entries: Iterable[TokenLogprob | int]) -> CompletionLogprobs:
        """What the next tokens add. A token without a log probability, such as the first of a prompt, is its id."""
        made = CompletionLogprobs([], [], [], [])
        for entry in entries:
            token = entry if isinstance(entry, int) else entry.token
            made.tokens.append(_spelled(self._token_bytes(token)))
            made.text_offset.append(self._offset)
            self._offset += len(self._decoder.push(token))
            if isinstance(entry, int):
                made.token_logprobs.append(None)
                made.top_logprobs.append(None)
            else:
                made.token_logprobs.append(_finite(entry.logprob))
                made.top_logprobs.append(self._alternatives(entry))
        return made

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float]:
        """With the token itself, which may not be among the likeliest. Of two with one spelling the likelier counts."""
        found: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            found.setdefault(_spelled(self._token_bytes(token)), _finite(logprob))
        return found


def _spelled(raw: bytes) -> str:
    """Bytes that are no whole characters are written as OpenAI's API does: `bytes:\\xf0\\x9f`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
