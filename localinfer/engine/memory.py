"""What memory this process takes, and what is free for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return _status("VmRSS") or _largest_ever()


def peak_resident() -> int:
    """The most that this process has held so far, in bytes; `reset_peak` starts anew."""
    return _status("VmHWM") or _largest_ever()


def reset_peak() -> bool:
    """Makes `peak_resident` count from now on; False where the system cannot do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: what the system has available, or what a container's limit leaves.

    Page cache counts as available, since the system gives it up. `root` is another "/" for tests.
    """
    free = [_available(root), *_left_by_cgroups(root)]
    return max(0, min(free))


def _available(root: Path) -> int:
    value = _field(root / "proc/meminfo", "MemAvailable:")
    if value is not None:
        return 1024 * value
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # no system figure: all there is


def _left_by_cgroups(root: Path) -> list[int]:
    """What each memory limit above this process leaves (cgroup v2, and the memory controller of v1)."""
    left = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top, limit, usage, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        # Inside a container the path may name a group of the host that is not visible: then the top is the own group.
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents) if folder.is_dir() else (top,):
            most, used = _number(group / limit), _number(group / usage)
            if most is not None and used is not None:
                left.append(most - used + (_field(group / "memory.stat", cache) or 0))
            if group == top:
                break
    return left


def _number(path: Path) -> int | None:
    """The number that a file holds; None if it holds none ("max") or is not there."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int | None:
    """The number after `name` at the beginning of a line."""
    try:
        with path.open() as file:
            return next((int(line.split()[1]) for line in file if line.split(None, 1)[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None


def _status(name: str) -> int:
    return 1024 * (_field(Path("/proc/self/status"), f"{name}:") or 0)


def _largest_ever() -> int:
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
