"""Beam search: not one answer is drawn, the likeliest ones are looked for.

At every place the continuations of all unfinished answers (the *beams*) are ranked by the sum of their log
probabilities, ties by the rank of the beam and of the token, and taken in this order until `beam_width` unfinished ones
are found; those that end on the way are finished. Finished answers are ranked by their sum divided by
length ** `length_penalty`, the length in tokens with the one that ended it. The search ends as soon as `beam_width` are
finished and no unfinished one, as it stands, ranks before the last of these, or if all are finished.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from localinfer.engine.request import TokenLogprob
from localinfer.engine.sequence import Sequence


class Candidate(NamedTuple):
    """A token that may come next; `score` is its log probability as the search sees it, `told` what is told of it."""

    token: int
    score: float
    told: TokenLogprob | None


@dataclass(eq=False)
class Beam:
    """An unfinished answer."""

    sequence: Sequence
    total: float = 0.0
    told: tuple[TokenLogprob, ...] = ()
    candidates: tuple[Candidate, ...] = ()  # best first; none before the logits have come


class Found(NamedTuple):
    """A finished answer."""

    tokens: array[int]
    score: float
    told: tuple[TokenLogprob, ...]


class Step(NamedTuple):
    """What follows from the candidates of all beams: sequences that are left, and `(from, to)` of those that divide."""

    dropped: list[Sequence]
    forks: list[tuple[Sequence, Sequence]]


@dataclass(eq=False)
class BeamSearch:
    """The search for one request. It knows tokens and sums; who runs when is the scheduler's business.

    width           how many beams there are at most
    length_penalty  see above
    limit           tokens that an answer may have
    ends            whether an answer ends with these tokens, before the limit
    """

    width: int
    length_penalty: float
    limit: int
    ends: Callable[[array[int]], bool]
    beams: list[Beam]
    finished: list[Found] = field(default_factory=list)  # the `width` best, best first
    _next: list[tuple[Beam, Candidate]] = field(default_factory=list)
    _sequences: int = 1  # made so far

    @property
    def sequences(self) -> list[Sequence]:
        return [beam.sequence for beam in self.beams]

    def offer(self, sequence: Sequence, candidates: Iterable[Candidate]) -> bool:
        """What may follow a beam, best first. True if every beam has got its candidates."""
        for beam in self.beams:
            if beam.sequence is sequence:
                beam.candidates = tuple(candidates)
        return all(beam.candidates for beam in self.beams)

    def choose(self) -> Step:
        """Takes the best continuations. Afterwards come the forks, and then `advance`."""
        ranked = sorted(
            (-(beam.total + candidate.score), place, rank)
            for place, beam in enumerate(self.beams)
            for rank, candidate in enumerate(beam.candidates)
        )
        self._next = []
        unfinished = 0
        for _, place, rank in ranked:
            if unfinished == self.width:
                break
            beam = self.beams[place]
            candidate = beam.candidates[rank]
            answer = beam.sequence.tokens[beam.sequence.prompt_length :]
            answer.append(candidate.token)
            if self.ends(answer):
                self._finish(beam, candidate, answer)
                continue
            unfinished += 1
            if len(answer) == self.limit:
                self._finish(beam, candidate, answer)
            else:
                self._next.append((beam, candidate))
        if self._is_decided():
            self._next = []
        return self._divide()

    def advance(self) -> None:
        """Every beam gets its token."""
        for beam, (_, candidate) in zip(self.beams, self._next, strict=True):
            beam.sequence.tokens.append(candidate.token)

    def _finish(self, beam: Beam, candidate: Candidate, answer: array[int]) -> None:
        total = beam.total + candidate.score
        self.finished.append(Found(answer, self._score(total, len(answer)), _told(beam, candidate)))
        self.finished.sort(key=lambda found: -found.score)
        del self.finished[self.width :]

    def _score(self, total: float, length: int) -> float:
        divisor: float = length**self.length_penalty
        return total / divisor

    def _is_decided(self) -> bool:
        if len(self.finished) < self.width:
            return False
        scores = (
            self._score(beam.total + candidate.score, len(beam.sequence.tokens) - beam.sequence.prompt_length + 1)
            for beam, candidate in self._next
        )
        return max(scores, default=-float("inf")) <= self.finished[-1].score

    def _divide(self) -> Step:
        """Makes the next beams: the first that continues a beam has its sequence, the others get new ones."""
        beams, forks, kept = [], [], set()
        for beam, candidate in self._next:
            sequence = beam.sequence
            if sequence in kept:
                sequence = Sequence(sequence.id, sequence.tokens[:], sequence.prompt_length, self._sequences)
                sequence.priority = beam.sequence.priority
                self._sequences += 1
                forks.append((beam.sequence, sequence))
            kept.add(sequence)
            beams.append(Beam(sequence, beam.total + candidate.score, _told(beam, candidate)))
        dropped = [sequence for sequence in self.sequences if sequence not in kept]
        self.beams = beams
        return Step(dropped, forks)


def _told(beam: Beam, candidate: Candidate) -> tuple[TokenLogprob, ...]:
    return beam.told if candidate.told is None else (*beam.told, candidate.told)
