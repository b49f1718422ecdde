"""How many threads run, on made-up machines and containers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from localinfer.kernels.cpu import topology
from localinfer.kernels.cpu.topology import allowed_cpus, default_threads, performance_cores, physical_cores, quota


def write(root: Path, files: Mapping[str, object]) -> Path:
    """Small files as the kernel shows them, each with its closing newline."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def siblings(groups: Mapping[int, str]) -> dict[str, object]:
    return {f"cpu{cpu}/topology/thread_siblings_list": group for cpu, group in groups.items()}


def speeds(values: Mapping[int, int], name: str = "cpufreq/cpuinfo_max_freq") -> dict[str, object]:
    return {f"cpu{cpu}/{name}": value for cpu, value in values.items()}


# ---- cores -----------------------------------------------------------------------------------------------------


def test_hyperthreads_of_a_core_count_once(tmp_path: Path) -> None:
    neighbours = write(tmp_path / "neighbours", siblings({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}))
    assert physical_cores([0, 1, 2, 3], neighbours) == [0, 2]
    distant = write(tmp_path / "distant", siblings({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}))
    assert physical_cores([0, 1, 2, 3], distant) == [0, 1]


def test_only_hyperthreads_that_may_be_used_stand_for_their_core(tmp_path: Path) -> None:
    root = write(tmp_path, siblings({cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}))
    assert physical_cores([2, 5, 6, 7], root) == [2, 5, 7]


def test_without_siblings_each_processor_is_a_core(tmp_path: Path) -> None:
    assert physical_cores([0, 3, 5], tmp_path) == [0, 3, 5]
    assert physical_cores([0, 1, 2], write(tmp_path, siblings({0: "0-1", 1: "0-1"}))) == [0, 2]


@pytest.mark.parametrize(
    "files",
    [
        speeds({0: 446, 1: 446, 2: 1024, 3: 1024}, "cpu_capacity"),
        speeds({0: 3_900_000, 1: 3_900_000, 2: 5_200_000, 3: 5_200_000}),
        # Where there are both, the capacity knows more than the clock.
        speeds({0: 446, 1: 446, 2: 1024, 3: 1024}, "cpu_capacity") | speeds(dict.fromkeys(range(4), 3_000_000)),
    ],
)
def test_slow_cores_of_a_hybrid_are_left_out(tmp_path: Path, files: Mapping[str, object]) -> None:
    assert performance_cores([0, 1, 2, 3], write(tmp_path, files)) == [2, 3]
    assert performance_cores([0, 1], tmp_path) == [0, 1], "of those that may be used"


def test_favoured_cores_leave_the_others_in(tmp_path: Path) -> None:
    root = write(tmp_path, speeds({0: 5_700_000, 1: 5_500_000, 2: 5_400_000, 3: 5_150_000}))
    assert performance_cores([0, 1, 2, 3], root) == [0, 1, 2, 3]


@pytest.mark.parametrize("found", [{}, {0: 3_000_000}, {0: 3_000_000, 1: "<unknown>"}])
def test_without_every_speed_no_core_is_left_out(tmp_path: Path, found: dict[int, int]) -> None:
    assert performance_cores([0, 1], write(tmp_path, speeds(found))) == [0, 1]


def test_the_processors_of_this_process_are_some() -> None:
    cpus = allowed_cpus()
    assert cpus == sorted(set(cpus))
    assert cpus


# ---- quotas ----------------------------------------------------------------------------------------------------


class Container:
    """`group` is what /proc/self/cgroup says."""

    def __init__(self, root: Path, group: str, files: Mapping[str, object]) -> None:
        self.groups = write(root / "cgroup", files)
        self.own = root / "own"
        self.own.write_text(group)

    def quota(self) -> float | None:
        return quota(self.groups, self.own)


V2 = "0::/system.slice/docker-12.scope\n"
V1 = "12:pids:/docker/34\n5:cpu,cpuacct:/docker/34\n1:name=systemd:/docker/34\n"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        # A namespace of its own: the container sees its group as the top.
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        (V2, {"system.slice/docker-12.scope/cpu.max": "400000 100000"}, 4),
        (V2, {"system.slice/docker-12.scope/cpu.max": "max 100000"}, None),
        # The tightest limit from the own group to the top holds.
        (
            V2,
            {
                "cpu.max": "max 100000",
                "system.slice/cpu.max": "200000 100000",
                "system.slice/docker-12.scope/cpu.max": "300000 100000",
            },
            2,
        ),
        (V2, {"other.slice/cpu.max": "100000 100000"}, None),
        # The path is of the host, and only the top can be seen.
        (V2, {"cpu.max": "50000 100000"}, 0.5),
        (
            V1,
            {"cpu,cpuacct/docker/34/cpu.cfs_quota_us": 250000, "cpu,cpuacct/docker/34/cpu.cfs_period_us": 100000},
            2.5,
        ),
        (V1, {"cpu,cpuacct/docker/34/cpu.cfs_quota_us": -1, "cpu,cpuacct/docker/34/cpu.cfs_period_us": 100000}, None),
        (V1, {"cpu,cpuacct/docker/cpu.cfs_quota_us": 100000, "cpu,cpuacct/docker/cpu.cfs_period_us": 50000}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": 300000, "cpu/cpu.cfs_period_us": 100000}, 3),
        # Nothing that can be read, or nothing that makes sense.
        ("", {}, None),
        (V2, {}, None),
        (V1, {"cpu/cpu.cfs_quota_us": 300000}, None),
        ("nonsense\n\n:::\n", {"cpu.max": "words"}, None),
        ("0::/\n", {"cpu.max": ""}, None),
    ],
)
def test_quota(tmp_path: Path, group: str, files: Mapping[str, object], expected: float | None) -> None:
    assert Container(tmp_path, group, files).quota() == expected


@pytest.mark.parametrize(
    "files", [{"cpu.max": "100000 0"}, {"cpu/cpu.cfs_quota_us": 100000, "cpu/cpu.cfs_period_us": 0}]
)
def test_a_period_of_zero_is_no_limit(tmp_path: Path, files: Mapping[str, object]) -> None:
    assert Container(tmp_path, "0::/\n", files).quota() is None


def test_no_file_says_which_group_this_is(tmp_path: Path) -> None:
    assert quota(tmp_path, tmp_path / "absent") is None


@pytest.mark.parametrize(("limit", "threads"), [(None, 6), (0.25, 1), (1.9, 1), (4.0, 4), (64.0, 6)])
def test_threads_are_cores_within_the_quota(monkeypatch: pytest.MonkeyPatch, limit: float | None, threads: int) -> None:
    monkeypatch.setattr(topology, "allowed_cpus", lambda: list(range(16)))
    monkeypatch.setattr(topology, "physical_cores", lambda cpus: cpus[:8])
    monkeypatch.setattr(topology, "performance_cores", lambda cpus: cpus[:6])
    monkeypatch.setattr(topology, "quota", lambda: limit)
    assert default_threads() == threads
