"""Which blocks of the KV pool hold whose keys and values. Integers only.

A block holds `block_size` consecutive positions. A full block whose tokens are committed is known by the chained hash
of all tokens up to its end, so that a later prompt with the same beginning shares it; shared blocks are never written.
A block that nobody uses keeps its contents until the room is needed, least recently used first.

When a sequence ends, its last, partly filled block is kept too (its *tail*). A tail is never shared: the sequence
that continues it takes it over and writes on. So the next turn of a chat processes its new tokens only.
"""

from __future__ import annotations

from array import array
from collections import deque

from localinfer.engine.sequence import Sequence

try:  # where hashlib has it from; hashlib itself loads OpenSSL, which takes a few ms of every start
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


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

        At least the last token stays to be computed: its logits are wanted. A full hit therefore leaves out the last
        block, which the sequence computes in one of its own.
        """
        tokens, size = sequence.tokens, self.block_size
        parent, usable = self._root, len(tokens) - 1
        while self._share and (len(sequence.blocks) + 1) * size <= usable:
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
        self._take_tail(sequence, parent, usable)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Gives the sequence blocks for its first `tokens` tokens; False, and nothing changes, if too few are free."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing > self.free:
            return False
        for _ in range(missing):
            block = self._empty.popleft() if self._empty else self._evict()
            self._users[block] = 1
            sequence.blocks.append(block)
        return True

    def commit(self, sequence: Sequence, computed: int) -> None:
        """The keys and values of the first `computed` tokens are written: blocks that became full can be shared."""
        sequence.computed = computed
        if not self._share:
            return
        size = self.block_size
        for i in range(len(sequence.hashes), computed // size):
            digest = self._digest(self._parent(sequence, i), sequence.tokens[i * size : (i + 1) * size])
            sequence.hashes.append(digest)
            if digest not in self._full:
                self._full[digest] = sequence.blocks[i]
                self._key[sequence.blocks[i]] = digest

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
        if tail and self._share:
            self._keep_tail(self._parent(sequence, full), sequence.blocks[full], tail)
        self._drop(sequence.blocks)
        sequence.blocks.clear()
        sequence.hashes.clear()
        sequence.computed = 0

    def _digest(self, parent: bytes, tokens: array[int]) -> bytes:
        return blake2b(tokens.tobytes(), key=parent, digest_size=16).digest()

    def _parent(self, sequence: Sequence, index: int) -> bytes:
        return sequence.hashes[index - 1] if index else self._root

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
        else:
            del self._tails[key]
