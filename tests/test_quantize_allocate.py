"""The knapsack of mixed precision: within the size, and close to the best that there is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localinfer.quantize.allocate import Option, allocate, lower_hull

OPTIONS = st.lists(
    st.builds(Option, st.just("T"), st.integers(1, 60), st.floats(0, 100, allow_nan=False)), min_size=1, max_size=4
)


def best_error(options: dict[str, list[Option]], budget: int) -> float:
    """By trying everything."""
    mixes = itertools.product(*options.values())
    return min(sum(o.error for o in mix) for mix in mixes if sum(o.nbytes for o in mix) <= budget)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPTIONS, min_size=1, max_size=4), st.integers(0, 100))
def test_it_stays_within_the_size_and_wastes_no_step_that_fits(some: list[list[Option]], extra: int) -> None:
    options = {str(i): list(tensor) for i, tensor in enumerate(some)}
    budget = sum(min(o.nbytes for o in tensor) for tensor in some) + extra
    chosen = allocate(options, budget)
    used = sum(option.nbytes for option in chosen.values())
    assert used <= budget
    for name, tensor in options.items():
        now = chosen[name]
        assert now in tensor
        for option in tensor:
            fits = used - now.nbytes + option.nbytes <= budget
            assert not (fits and option.nbytes > now.nbytes and option.error < now.error)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPTIONS, min_size=1, max_size=4), st.integers(0, 100))
def test_it_is_as_good_as_trying_everything_but_for_one_step(some: list[list[Option]], extra: int) -> None:
    """The greedy choice on hulls loses no more than the last step that did not fit."""
    options = {str(i): list(tensor) for i, tensor in enumerate(some)}
    budget = sum(min(o.nbytes for o in tensor) for tensor in some) + extra
    found = sum(option.error for option in allocate(options, budget).values())
    largest_step = max(
        (a.error - b.error for tensor in some for a, b in itertools.pairwise(lower_hull(tensor))), default=0.0
    )
    assert found <= best_error(options, budget) + largest_step + 1e-6


def test_bytes_go_where_they_lower_the_error_most() -> None:
    options = {
        "dull": [Option("Q2_K", 10, 1.0), Option("Q4_K", 20, 0.9), Option("Q8_0", 40, 0.8)],
        "keen": [Option("Q2_K", 10, 9.0), Option("Q4_K", 20, 3.0), Option("Q8_0", 40, 0.1)],
    }
    assert {n: o.type for n, o in allocate(options, 30).items()} == {"dull": "Q2_K", "keen": "Q4_K"}
    assert {n: o.type for n, o in allocate(options, 50).items()} == {"dull": "Q2_K", "keen": "Q8_0"}
    assert {n: o.type for n, o in allocate(options, 80).items()} == {"dull": "Q8_0", "keen": "Q8_0"}


def test_too_small_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="take 10 bytes"):
        allocate({"a": [Option("Q2_K", 10, 1.0)]}, 9)
