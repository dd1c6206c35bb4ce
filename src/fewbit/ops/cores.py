"""How many cores there are to use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Physical cores that this process may run on, no more than its CPU quota allows.

    >>> usable_cores() >= 1
    True
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = len({_siblings(cpu) for cpu in allowed})
    return max(1, min(cores, _quota() or cores))


def _siblings(cpu: int) -> str:
    """CPUs that share a core with this one."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota() -> int | None:
    """Cores' worth of time that the control group may use, if it is limited."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None
