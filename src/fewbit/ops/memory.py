"""Available memory, within the limits of a container."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic

from .cgroup import ROOT, folders, read_number, read_table

FILES = ("inactive_file", "active_file")  # page cache, which is reclaimed when needed


def available_memory(root: Path = ROOT) -> int:
    """Bytes that this process can still use, by the system and by its control groups.

    >>> available_memory() > 0
    True
    """
    return max(0, min(_system(root), *_left(root), sys.maxsize))


def host_memory(file_bytes: int, layout: str) -> int:
    """Bytes available for a model. Its file is in the address space already, a copy of it is not."""
    return min(available_memory(), address_space() + (file_bytes if layout == "rows" else 0))


class Shortage:
    """Whether less than `least_bytes` of memory is available. It is checked a few times a second at most."""

    def __init__(self, least_bytes: int = 128 << 20, every_seconds: float = 0.1) -> None:
        self._least_bytes, self._every_seconds = least_bytes, every_seconds
        self._time, self._is_short = -every_seconds, False

    def __call__(self) -> bool:
        now = monotonic()
        if now - self._time >= self._every_seconds:
            self._time, self._is_short = now, available_memory() < self._least_bytes
        return self._is_short


def readable(nbytes: int) -> str:
    """
    >>> readable(1_130_000_000), readable(67_200_000)
    ('1.1 GB', '67 MB')
    """
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.0f} MB"


def address_space() -> int:
    """Bytes that this process can still map, if that is limited (`ulimit -v`)."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return sys.maxsize
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return max(0, limit - pages * resource.getpagesize())
    except (ImportError, OSError, ValueError):
        return sys.maxsize


def _system(root: Path) -> int:
    known = read_table(root / "proc/meminfo").get("MemAvailable")
    if known is not None:
        return known * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # unknown on this system
        return sys.maxsize


def _left(root: Path) -> list[int]:
    """Bytes that each control group leaves."""
    found = []
    for folder in folders("memory", root):
        for limits, usage, prefix in (
            (("memory.max", "memory.high"), "memory.current", ""),
            (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"),
        ):
            known = [limit for name in limits if (limit := read_number(folder / name)) is not None]
            if known:
                used, stat = read_number(folder / usage) or 0, read_table(folder / "memory.stat")
                found.append(min(known) - used + sum(stat.get(prefix + name, 0) for name in FILES))
    return found
