"""Prompt lookup: what followed the last time that a sequence had the tokens it ends with now.

Answers repeat: names, code, quotations of the prompt. Where the last few tokens stood before, what followed them there
is a good guess of what follows now, and costs no second model.
"""

from __future__ import annotations

from array import array

SHORTEST = 2  # tokens that must agree
LONGEST = 16  # more do not make a guess better
CANDIDATES = 16  # earlier places that are compared, the latest first
BUCKETS = 4096


class NgramIndex:
    """Places of every pair of tokens in one sequence, as chains from the latest place to the first.

    Its memory is 4 bytes for every token and for every bucket. `add` takes constant time per token.
    """

    def __init__(self) -> None:
        self._tokens = array("i")
        self._latest = array("i", [-1]) * BUCKETS  # bucket -> the last place whose pair falls into it
        self._earlier = array("i")  # place -> the one before it in its bucket; a place is where a pair ends

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: array[int]) -> None:
        """The sequence goes on with these tokens."""
        all_tokens, latest, earlier = self._tokens, self._latest, self._earlier
        before = all_tokens[-1] if all_tokens else -1
        for place, token in enumerate(tokens, len(all_tokens)):
            bucket = _bucket(before, token)
            earlier.append(latest[bucket])
            latest[bucket] = place
            before = token
        all_tokens.extend(tokens)

    def follow(self, most: int) -> tuple[array[int], int]:
        """At most `most` tokens that followed an earlier place with the same end, and how many tokens agree there.

        The longest agreement counts (up to LONGEST), and of equally long ones the latest. Nothing and 0 if there is
        none of SHORTEST tokens.
        """
        tokens = self._tokens
        end = len(tokens) - 1
        best, length = -1, SHORTEST - 1
        place = self._earlier[end] if end >= 1 else -1
        for _ in range(CANDIDATES):
            if place < 1 or length >= LONGEST:
                break
            if (agree := self._agreement(place, end)) > length:
                best, length = place, agree
            place = self._earlier[place]
        if best < 0:
            return array("i"), 0
        following = tokens[best + 1 : best + 1 + most]
        # Where the earlier place is near the end, what follows it repeats with that distance as its period.
        while len(following) < most:
            following.append(following[len(following) - (end - best)])
        return following, length

    def _agreement(self, place: int, end: int) -> int:
        tokens, length = self._tokens, 0
        while length < LONGEST and length <= place and tokens[place - length] == tokens[end - length]:
            length += 1
        return length


def _bucket(first: int, second: int) -> int:
    return (first * 0x9E3779B1 + second * 0x85EBCA77 >> 12) % BUCKETS
