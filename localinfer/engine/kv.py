"""Which blocks of the KV pool hold whose keys and values. Integers only.

A block holds `block_size` consecutive positions. A full block whose tokens are committed is known by the chained hash
of all tokens up to its end, so that a later prompt with the same beginning shares it; shared blocks are never written.
A block that nobody uses keeps its contents until the room is needed, least recently used first.

When a sequence ends, its last, partly filled block is kept too (its *tail*). A tail is never shared: the sequence
that continues it takes it over and writes on. So the next turn of a chat processes its new tokens only.

Answers to one prompt share its full blocks, and each writes to a copy of its partly filled one.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import islice

from localinfer.engine.sequence import NearMiss, Sequence

try:  # where hashlib has it from; hashlib itself loads OpenSSL, which takes a few ms of every start
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


COMPARED = 64  # cached continuations that a prompt which misses the cache is compared with, the latest first


class BlockManager:
    """Blocks 0 … count - 1, all of one model and KV type."""

    def __init__(self, count: int, block_size: int, *, share: bool = True) -> None:
        self.count = count
        self.block_size = block_size
        self._share = share
        self._root = blake2b(digest_size=16).digest()
        self._users = [0] * count
        self._empty = deque(range(count))
        self._idle: dict[int, None] = {}  # unused blocks with contents, oldest first
        self._full: dict[bytes, int] = {}  # hash of a full block -> block
        self._tails: dict[bytes, tuple[int, array[int]]] = {}  # hash before it -> block and its tokens
        self._key: dict[int, bytes] = {}  # block -> its key in _full or _tails
        self._parents: dict[int, bytes] = {}  # full block -> hash before it
        self._following: dict[bytes, dict[int, array[int]]] = {}  # hash -> full blocks that follow it, and their tokens

    @property
    def free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._empty) + len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def waste(self, sequence: Sequence) -> int:
        """Places in the blocks of a sequence that hold nothing."""
        return len(sequence.blocks) * self.block_size - sequence.computed

    def admit(self, sequence: Sequence) -> None:
        """Gives a sequence without blocks those that the cache has of its beginning, and sets `computed`.

        At least the last token stays to be computed, and every other of which a row is wanted. A full hit therefore
        leaves out the last block, which the sequence computes in one of its own. The first time it is also noted where
        the sequence parts from what the cache holds.
        """
        if not self._shares(sequence):
            return
        tokens, size = sequence.tokens, self.block_size
        parent, usable = self._root, len(tokens) - 1
        if sequence.rows_from is not None:
            usable = min(usable, sequence.rows_from)
        while (len(sequence.blocks) + 1) * size <= usable:
            start = len(sequence.blocks) * size
            digest = self._digest(parent, tokens[start : start + size])
            block = self._full.get(digest)
            if block is None:
                break
            self._idle.pop(block, None)
            self._users[block] += 1
            sequence.blocks.append(block)
            sequence.hashes.append(digest)
            parent = digest
        sequence.computed = len(sequence.blocks) * size
        if sequence.cached is None:
            sequence.near_miss = self._near_miss(sequence, parent)
        self._take_tail(sequence, parent, usable)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Gives the sequence blocks for its first `tokens` tokens; False, and nothing changes, if too few are free."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing > self.free:
            return False
        for _ in range(missing):
            sequence.blocks.append(self._take())
        return True

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        """Lets `child`, which begins with what is computed of `parent`, have that too.

        Returns the blocks that must be copied, from and to, before a step: the partly filled one. None, and nothing
        changes, if no block is free for it.
        """
        full, partial = divmod(parent.computed, self.block_size)
        if partial and not self.free:
            return None
        child.blocks = parent.blocks[:full]
        for block in child.blocks:
            self._users[block] += 1
        child.hashes = list(parent.hashes)
        child.computed, child.cached = parent.computed, parent.cached
        if not partial:
            return []
        child.blocks.append(self._take())
        return [(parent.blocks[full], child.blocks[full])]

    def commit(self, sequence: Sequence, computed: int) -> None:
        """The keys and values of the first `computed` tokens are written: blocks that became full can be shared."""
        sequence.computed = computed
        if not self._shares(sequence):
            return
        size = self.block_size
        for i in range(len(sequence.hashes), computed // size):
            parent, tokens = self._parent(sequence, i), sequence.tokens[i * size : (i + 1) * size]
            digest = self._digest(parent, tokens)
            sequence.hashes.append(digest)
            if digest not in self._full:
                block = sequence.blocks[i]
                self._full[digest] = block
                self._key[block] = digest
                self._parents[block] = parent
                self._following.setdefault(parent, {})[block] = tokens

    def trim(self, sequence: Sequence) -> None:
        """Takes back the blocks that hold nothing committed, after a step that did not happen."""
        keep = self.blocks_for(sequence.computed)
        self._drop(sequence.blocks[keep:])
        del sequence.blocks[keep:]

    def release(self, sequence: Sequence) -> None:
        """Takes all blocks back. What they hold stays in the cache until the room is needed."""
        self.trim(sequence)
        full = sequence.computed // self.block_size
        tail = sequence.tokens[full * self.block_size : sequence.computed]
        if tail and self._shares(sequence):
            self._keep_tail(self._parent(sequence, full), sequence.blocks[full], tail)
        self._drop(sequence.blocks)
        sequence.blocks.clear()
        sequence.hashes.clear()
        sequence.computed = 0

    def _shares(self, sequence: Sequence) -> bool:
        return self._share and not sequence.hidden

    def _digest(self, parent: bytes, tokens: array[int]) -> bytes:
        return blake2b(tokens.tobytes(), key=parent, digest_size=16).digest()

    def _parent(self, sequence: Sequence, index: int) -> bytes:
        return sequence.hashes[index - 1] if index else self._root

    def _near_miss(self, sequence: Sequence, parent: bytes) -> NearMiss | None:
        """The first difference from the cached tokens after `parent` that agree longest; None if none agree at all."""
        asked = sequence.tokens[sequence.computed : sequence.computed + self.block_size]
        cached = list(islice(reversed(self._following.get(parent, {}).values()), COMPARED))
        if parent in self._tails:
            cached.insert(0, self._tails[parent][1])
        longest, found = -1, None
        for tokens in cached:
            same = next((i for i, (a, b) in enumerate(zip(tokens, asked, strict=False)) if a != b), -1)
            if same < 0:  # one is the beginning of the other
                return None
            if same > longest:
                longest, found = same, NearMiss(sequence.computed + same, tokens[same], asked[same])
        return found if found and found.position else None

    def _take(self) -> int:
        """A block for one sequence to write to; there must be a free one."""
        block = self._empty.popleft() if self._empty else self._evict()
        self._users[block] = 1
        return block

    def _take_tail(self, sequence: Sequence, parent: bytes, usable: int) -> None:
        block, held = self._tails.get(parent, (-1, None))
        same = 0
        while held and same < len(held) and sequence.computed < usable:
            if held[same] != sequence.tokens[sequence.computed]:
                break
            same += 1
            sequence.computed += 1
        if same:
            self._forget(block)
            del self._idle[block]
            self._users[block] = 1
            sequence.blocks.append(block)

    def _keep_tail(self, parent: bytes, block: int, tokens: array[int]) -> None:
        if parent in self._tails:  # the latest continuation of this beginning is the likeliest to go on
            older = self._tails[parent][0]
            self._forget(older)
            del self._idle[older]
            self._empty.append(older)
        self._tails[parent] = (block, tokens)
        self._key[block] = parent

    def _drop(self, blocks: list[int]) -> None:
        for block in reversed(blocks):  # so that a beginning outlives what follows it
            self._users[block] -= 1
            if self._users[block] == 0 and block in self._key:
                self._idle[block] = None
            elif self._users[block] == 0:
                self._empty.append(block)

    def _evict(self) -> int:
        block = next(iter(self._idle))
        del self._idle[block]
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        key = self._key.pop(block)
        if self._full.get(key) == block:
            del self._full[key]
            parent = self._parents.pop(block)
            following = self._following[parent]
            del following[block]
            if not following:
                del self._following[parent]
        else:
            del self._tails[key]
