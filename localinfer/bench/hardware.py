"""What machine this is, in words and numbers, for reports."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def cpu_name() -> str:
    """The processor's name as its maker gives it, or the architecture if the system does not say."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def memory_bytes() -> tuple[int, int]:
    """Memory of the machine: (all of it, what is available), in bytes; 0 where the system does not say."""
    try:
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
        return int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0


def peak_memory_bytes() -> int:
    """The most memory that this process has had resident."""
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
