"""How many threads a step gets beside other busy programs: the native policy on a clock of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_int, c_int64, c_void_p

import pytest

from localinfer.kernels.cpu.native import library

MILLISECOND = 1_000_000

Job = Callable[[int], tuple[float, float]]  # threads -> milliseconds that it takes, and that its threads sleep in all


class Machine:
    """Runs jobs one after the other, each on as many threads as the policy says."""

    def __init__(self) -> None:
        native = library()
        native.li_crowding_create.restype = c_void_p
        native.li_crowding_destroy.argtypes = [c_void_p]
        native.li_crowding_choose.argtypes = [c_void_p, c_int, c_int64]
        native.li_crowding_report.argtypes = [c_void_p, c_int, c_int64, c_int64, c_int64]
        self.native, self.policy, self.now = native, native.li_crowding_create(), 0.0

    def run(self, wanted: int, job: Job, milliseconds: float) -> list[int]:
        """The threads of each job."""
        end, used = self.now + milliseconds, []
        while self.now < end:
            threads = self.native.li_crowding_choose(self.policy, wanted, int(self.now * MILLISECOND))
            duration, slept = job(threads)
            self.now += duration
            self.native.li_crowding_report(
                self.policy, threads, int(duration * MILLISECOND), int(slept * MILLISECOND), int(self.now * MILLISECOND)
            )
            used.append(threads)
        return used


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.native.li_crowding_destroy(machine.policy)


def idle(threads: int) -> tuple[float, float]:
    return 8 / threads, 0.1 * (threads - 1)


def beside_a_busy_program(threads: int) -> tuple[float, float]:
    """On two cores: the second thread has its core half of the time or less, and the first one sleeps meanwhile."""
    return (8, 0) if threads == 1 else (14, 10)


def one_of_eight_cores_is_taken(threads: int) -> tuple[float, float]:
    return (8 / threads, 0.1) if threads < 8 else (2, 7)


def test_all_threads_run_on_an_idle_machine(machine: Machine) -> None:
    assert set(machine.run(2, idle, 5000)) == {2}
    assert set(machine.run(8, idle, 5000)) == {8}


def test_threads_that_wait_for_a_lost_core_are_left_out(machine: Machine) -> None:
    assert machine.run(2, beside_a_busy_program, 50)[-1] == 1
    used = machine.run(2, beside_a_busy_program, 20_000)
    assert 0 < used.count(2) < 0.02 * len(used), "it tries again, but rarely"


def test_they_are_back_soon_after_the_other_program_ends(machine: Machine) -> None:
    machine.run(2, beside_a_busy_program, 60_000)
    assert set(machine.run(2, idle, 10_000)[-500:]) == {2}
    machine.run(2, beside_a_busy_program, 50)
    machine.run(2, idle, 300)
    assert set(machine.run(2, idle, 1000)) == {2}, "a short disturbance costs a quarter of a second"


def test_a_few_time_slices_of_others_are_no_reason(machine: Machine) -> None:
    steps = iter(range(10_000))

    def now_and_then(threads: int) -> tuple[float, float]:
        duration, slept = idle(threads)
        return (duration + 4, slept + 4) if next(steps) % 5 == 0 else (duration, slept)

    assert set(machine.run(2, now_and_then, 10_000)) == {2}


def test_no_more_threads_are_left_out_than_lose_their_cores(machine: Machine) -> None:
    assert set(machine.run(8, one_of_eight_cores_is_taken, 5000)) == {7, 8}
    assert set(machine.run(4, idle, 1000)) == {4}, "another model that wants fewer gets them"


def test_a_crowded_machine_gives_threads_back_one_by_one(machine: Machine) -> None:
    def everything_is_taken(threads: int) -> tuple[float, float]:
        return 10, 8 * (threads - 1)

    assert machine.run(8, everything_is_taken, 5000)[-1] == 1
    used = machine.run(8, idle, 20_000)
    assert used[-1] == 8
    assert used == sorted(used)
