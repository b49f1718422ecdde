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


# What the kernels use, or may use one day, as Linux spells it on x86 and on Arm.
_FEATURES = (
    *("avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme"),
)


def cpu_features() -> list[str]:
    """Instruction sets that matter here and that the processor has; empty if the system does not say."""
    try:
        match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    found = set(match[1].split()) if match else set()
    return [name for name in _FEATURES if name in found]


def memory_bytes() -> int:
    """Memory of the machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
