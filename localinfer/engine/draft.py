"""A draft model: a small model of the same vocabulary that guesses the next tokens of the large one.

It has an Executable and KV blocks of its own. For every sequence it keeps a *shadow*: the same tokens, and how far the
draft model has computed them. What the target accepted of the last drafts is computed already; the rest is overwritten.
Blocks are hashed up to the tokens that are certain, so that the prefix cache works here as it does for the target.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from localinfer.engine.kv import BlockManager
from localinfer.engine.runner import run_step
from localinfer.engine.sampler import Sampler
from localinfer.engine.sequence import Chunk, Sequence
from localinfer.errors import LocalInferError
from localinfer.kernels.base import Executable, LoadConfig

# Tokens of prompts that the draft model catches up on in one step while several answers run: a few milliseconds.
CATCH_UP = 32
MOST_BEHIND = 16  # tokens that it lacks of a sequence, in a step whose time says what drafting takes

# From a sampler, a sequence, its shadow and the address of a row of logits to the token that would be drawn from them.
Guess = Callable[[Sampler, Sequence, Sequence, int], int]


@dataclass
class _Shadow:
    sequence: Sequence
    certain: int  # so many of its tokens are the target's


@dataclass
class _Job:
    sequence: Sequence
    shadow: Sequence
    count: int  # tokens to draft at most
    drafted: array[int] = field(default_factory=lambda: array("i"))


class DraftModel:
    """Computes what the target has; called between its steps, by the same thread."""

    def __init__(
        self, executable: Executable, config: LoadConfig, vocab_size: int, *, prefix_cache: bool = True
    ) -> None:
        self.kv = BlockManager(config.kv_blocks, config.block_size, share=prefix_cache)
        self.catching_up = False  # whether the last call of `propose` computed more than the latest tokens
        self._executable = executable
        self._config = config
        self._sampler = Sampler(vocab_size, config.context)
        self._shadows: dict[Sequence, _Shadow] = {}

    def propose(self, wanted: Iterable[tuple[Sequence, int]], guess: Guess) -> list[array[int]]:
        """For each sequence at most so many tokens that may come next; none as long as the draft model lags behind."""
        jobs = [_Job(sequence, self._follow(sequence), count) for sequence, count in wanted]
        chunks = self._first_chunks(jobs)
        by_shadow = {job.shadow: job for job in jobs}
        while chunks:
            results = run_step(self._executable, chunks)
            for chunk in chunks:
                chunk.sequence.computed += chunk.count  # not committed: a drafted token may turn out to be wrong
            chunks = []
            for rows in results:
                job = by_shadow[rows.sequence]
                token = self._guess(guess, job, rows.address)
                if token is not None:
                    job.drafted.append(token)
                    job.shadow.tokens.append(token)
                    if len(job.drafted) < job.count:
                        chunks.append(Chunk(job.shadow, 1))
        return [job.drafted for job in jobs]

    def keep(self, running: Collection[Sequence]) -> None:
        """Gives back the blocks of sequences that do not run any more; what they hold stays in the cache."""
        for sequence in [each for each in self._shadows if each not in running]:
            self.kv.release(self._follow(sequence))
            del self._shadows[sequence]

    def close(self) -> None:
        self._sampler.close()
        self._executable.close()

    def _follow(self, sequence: Sequence) -> Sequence:
        """The shadow of a sequence, with the tokens that it has now."""
        known = self._shadows.get(sequence)
        if known is None:
            shadow = Sequence.of_prompt(sequence.id, sequence.tokens)
            shadow.prompt_length = sequence.prompt_length
            self.kv.admit(shadow)
            self._shadows[sequence] = _Shadow(shadow, len(sequence.tokens))
            return shadow
        shadow, same = known.sequence, known.certain
        while same < min(len(shadow.tokens), len(sequence.tokens)) and shadow.tokens[same] == sequence.tokens[same]:
            same += 1
        del shadow.tokens[same:]
        shadow.tokens.extend(sequence.tokens[same:])
        self.kv.commit(shadow, min(shadow.computed, same, len(shadow.tokens) - 1))  # the last one's logits are wanted
        self.kv.trim(shadow)
        known.certain = len(sequence.tokens)
        return shadow

    def _first_chunks(self, jobs: list[_Job]) -> list[Chunk]:
        """What the draft model lacks of each sequence, or as much of it as it may take time for."""
        tokens = self._config.max_tokens
        if len(jobs) > 1:
            tokens = min(tokens, max(CATCH_UP, 2 * len(jobs)))
        chunks: list[Chunk] = []
        self.catching_up = False
        for job in jobs:
            shadow = job.shadow
            piece = min(shadow.remaining, tokens)
            self.catching_up |= shadow.remaining > MOST_BEHIND
            if piece and self.kv.grow(shadow, shadow.computed + piece + job.count - 1):
                chunks.append(Chunk(shadow, piece))
                tokens -= piece
        return chunks

    def _guess(self, guess: Guess, job: _Job, logits: int) -> int | None:
        try:
            return guess(self._sampler, job.sequence, job.shadow, logits)
        except LocalInferError:  # nothing can be drawn from these logits: then nothing is drafted
            return None
