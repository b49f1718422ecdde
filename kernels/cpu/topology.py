"""How many threads to run: the physical (performance) cores that this process may use, within its quota."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_ROOT = Path("/sys/devices/system/cpu")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def allowed_cpus() -> list[int]:
    """Logical processors that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus: list[int], root: Path = _CPU_ROOT) -> list[int]:
    """One logical processor per physical core: hyperthreads share the vector units that we keep busy."""
    seen: dict[str, int] = {}
    for cpu in cpus:
        siblings = _read(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        seen.setdefault(siblings, cpu)
    return sorted(seen.values())


def performance_cores(cpus: list[int], root: Path = _CPU_ROOT) -> list[int]:
    """Leaves out cores much slower than the fastest: every barrier would wait for them.

    Speed is the kernel's `cpu_capacity` (Arm) or the maximal frequency (x86 hybrids differ by more than a quarter;
    the favoured cores of an ordinary processor by a few percent).
    """
    speeds: dict[int, int] = {}
    for cpu in cpus:
        text = _read(root / f"cpu{cpu}" / "cpu_capacity") or _read(root / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq")
        if not text.isdigit():
            return cpus
        speeds[cpu] = int(text)
    fastest = max(speeds.values())
    return [cpu for cpu in cpus if speeds[cpu] >= 0.78 * fastest]


def quota(cgroup_root: Path = _CGROUP_ROOT, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors' worth of time that the container may use (cgroup v2 or v1), or None if unlimited."""
    limits = []
    folders = [cgroup_root, cgroup_root / "cpu"]
    for line in _read(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        base = cgroup_root if not controllers else cgroup_root / controllers
        relative = Path(path.lstrip("/"))
        folders += [base / part for part in (relative, *relative.parents)]
    for folder in folders:
        fields = _read(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]):
            limits.append(int(fields[0]) / int(fields[1]))
        v1_quota, v1_period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if v1_quota.isdigit() and v1_period.isdigit() and int(v1_period):
            limits.append(int(v1_quota) / int(v1_period))
    return min(limits) if limits else None


def default_threads() -> int:
    """The number of threads used when nobody asks for another."""
    cores = len(performance_cores(physical_cores(allowed_cpus())))
    limit = quota()
    if limit is not None:
        cores = min(cores, max(1, math.floor(limit)))
    return max(1, cores)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
