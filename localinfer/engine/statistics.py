"""What an engine has done since it was started, and what it is doing now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStatistics:
    """Counters since the start, then gauges. Tokens, steps, sequences (an answer each) and KV blocks.

    prompt_tokens     of the requests that have begun; cached_tokens of them were found in the cache
    steps_mixed       steps that processed prompts and went on with answers
    steps_cached      steps with a sequence whose beginning was found in the cache
    steps_speculated  steps with drafted tokens, of which accepted + rejected = drafted
    kv_waste_tokens   places in blocks of running sequences that hold nothing: less than a block for each
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    steps_mixed: int = 0
    steps_cached: int = 0
    steps_speculated: int = 0
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_waste_tokens: int = 0
