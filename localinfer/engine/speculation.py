"""Speculative decoding: tokens that may come next are computed along, and kept where they are what is drawn.

A sequence that decodes gets drafted tokens behind its last one. Their logits come from the same step, and the target
draws from them as it would without drafts (same seed, position, penalties, ends): as long as a drafted token is the
token drawn, the next row is valid too. So a draft changes how many tokens a step makes, never which. Keys and values
of rejected tokens are overwritten later; a block is known to the cache only when its tokens are accepted.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple
from weakref import WeakKeyDictionary

from localinfer.engine.draft_control import DraftControl, Offer
from localinfer.engine.kv import BlockManager
from localinfer.engine.ngram import NgramIndex
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.engine.step_times import StepTimes

if TYPE_CHECKING:
    from localinfer.engine.draft import DraftModel, Guess

# auto: with a draft model if there is one, and by prompt lookup, where it measures faster; ngram, draft: always
SpeculationMode = Literal["auto", "off", "ngram", "draft"]

MOST = 8  # tokens drafted for a sequence in one step
ALWAYS = 4  # ... in the modes that do not ask whether it pays off
DRAFT_MODEL = "draft model"  # the arm of DraftControl


class _Lookup(NamedTuple):
    arm: Hashable
    tokens: array[int]


@dataclass
class _Draft:
    arm: Hashable
    tokens: int
    accepted: int = 0


class Speculation:
    """Drafts for the chunks of a step, and what is learned of them.

    Each step calls `extend`, `accept` for each drafted token that was drawn, and `settle`.
    """

    def __init__(
        self,
        mode: SpeculationMode,
        kv: BlockManager,
        times: StepTimes,
        *,
        max_tokens: int,
        max_rows: int,
        draft: DraftModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`max_tokens` and `max_rows` are those of a step. The mode "draft" needs a draft model."""
        if mode == "draft" and draft is None:
            raise ValueError("there is no draft model")
        self._mode = mode
        self._kv = kv
        self._times = times
        self._draft = draft
        self._control = DraftControl(times)
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._clock = clock
        self._indexes: WeakKeyDictionary[Sequence, NgramIndex] = WeakKeyDictionary()
        self._drafts: dict[Sequence, _Draft] = {}  # of the step at hand

    def extend(
        self, chunks: list[Chunk], running: Collection[Sequence], room: Callable[[Sequence], int], guess: Guess
    ) -> list[Chunk]:
        """The chunks of a step, with drafts where they pay off, and blocks for them.

        `room` says how many tokens at most make sense to draft for a sequence, `guess` draws from logits of the draft
        model as the target would.
        """
        self._drafts.clear()
        if self._draft:
            self._draft.keep(running)
        decoding = [chunk.sequence for chunk in chunks if chunk.decodes]
        if self._mode == "off" or not decoding or (self._mode == "auto" and len(decoding) < len(chunks)):
            return chunks  # beside prompts the time is theirs
        rows = self._max_rows - len(chunks) - sum(chunk.more_logits for chunk in chunks)
        tokens = self._max_tokens - sum(chunk.count for chunk in chunks)
        lookups = {sequence: self._look_up(sequence) for sequence in decoding}
        offers = {sequence: self._offer(lookups[sequence], min(MOST, room(sequence))) for sequence in decoding}
        counts = dict(zip(decoding, self._counts(list(offers.values()), min(rows, tokens)), strict=True))
        wanted = [(each, counts[each]) for each in decoding if counts[each] and offers[each].arm == DRAFT_MODEL]
        drafts = self._drafted(wanted, guess)
        for sequence in decoding:
            if offers[sequence].arm != DRAFT_MODEL:
                drafts[sequence] = lookups[sequence].tokens[: counts[sequence]]
        return [self._with_draft(chunk, offers, drafts) for chunk in chunks]

    def accept(self, sequence: Sequence) -> None:
        """The first drafted token of a sequence that is not accepted yet is what was drawn: it is computed already."""
        self._drafts[sequence].accepted += 1
        self._kv.commit(sequence, sequence.computed + 1)

    def settle(self, answers: int, prompt_tokens: int, seconds: float) -> tuple[int, int]:
        """The step is over: of so many sequences that decoded, and tokens of prompts. How many tokens were drafted,
        and how many accepted.
        """
        drafts = list(self._drafts.values())
        for sequence in self._drafts:
            self._kv.trim(sequence)
        drafted = sum(draft.tokens for draft in drafts)
        if not drafted or prompt_tokens:
            self._times.record(answers + drafted, prompt_tokens, seconds)
        if not prompt_tokens:
            self._control.record(answers, [(draft.arm, draft.tokens, draft.accepted) for draft in drafts], seconds)
        self._drafts.clear()
        return drafted, sum(draft.accepted for draft in drafts)

    def close(self) -> None:
        if self._draft:
            self._draft.close()

    def _look_up(self, sequence: Sequence) -> _Lookup:
        if self._mode == "draft":
            return _Lookup(0, array("i"))
        index = self._indexes.setdefault(sequence, NgramIndex())
        index.extend(sequence.tokens[len(index) :])
        tokens, agree = index.follow(MOST)
        return _Lookup(agree if agree < 4 else 1 + agree.bit_length(), tokens)  # 2, 3, 4 to 7, 8 to 15, ...

    def _offer(self, lookup: _Lookup, most: int) -> Offer:
        if self._draft and not (lookup.tokens and self._control.prefers(lookup.arm, DRAFT_MODEL)):
            return Offer(DRAFT_MODEL, most)
        return Offer(lookup.arm, min(most, len(lookup.tokens)))

    def _counts(self, offers: list[Offer], free: int) -> list[int]:
        if self._mode == "auto":
            return self._control.lengths(offers, len(offers), free)
        counts = []
        for offer in offers:
            counts.append(max(0, min(offer.most, ALWAYS, free)))
            free -= counts[-1]
        return counts

    def _drafted(self, wanted: list[tuple[Sequence, int]], guess: Guess) -> dict[Sequence, array[int]]:
        if not (wanted and self._draft):
            return {}
        started = self._clock()
        try:
            drafts = self._draft.propose(wanted, guess)
        except Exception as error:  # answers do not need it
            print(f"note: the draft model is not used any more: {error}", file=sys.stderr)
            self._draft.close()
            self._draft = None
            return {}
        tokens = sum(map(len, drafts))
        if tokens and not self._draft.catching_up:
            self._control.record_drafting(DRAFT_MODEL, tokens, self._clock() - started)
        return {sequence: draft for (sequence, _), draft in zip(wanted, drafts, strict=True)}

    def _with_draft(self, chunk: Chunk, offers: dict[Sequence, Offer], drafts: dict[Sequence, array[int]]) -> Chunk:
        sequence = chunk.sequence
        tokens = drafts.get(sequence)
        while tokens and not self._kv.grow(sequence, len(sequence.tokens) + len(tokens)):
            tokens.pop()
        if not tokens:
            return chunk
        self._drafts[sequence] = _Draft(offers[sequence].arm, len(tokens))
        return replace(chunk, drafts=tokens)
