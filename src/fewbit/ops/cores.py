"""The number of usable cores."""

from __future__ import annotations

from pathlib import Path

from .cgroup import ROOT, folders, read_number
from .topology import physical_cores, usable_cpus


def usable_cores() -> int:
    """Physical cores that this process may use, within its CPU quota.

    >>> usable_cores() >= 1
    True
    """
    return max(1, min([len(physical_cores(usable_cpus())), *quotas()]))


def quotas(root: Path = ROOT) -> list[int]:
    """The CPU quotas of control groups, in cores."""
    found = [_quota(folder) for folder in folders("cpu", root)]
    return [cores for cores in found if cores is not None]


def _quota(folder: Path) -> int | None:
    try:
        quota, period = map(int, (folder / "cpu.max").read_text().split())
    except (OSError, ValueError):  # "max": no limit
        quota = read_number(folder / "cpu.cfs_quota_us") or -1
        period = read_number(folder / "cpu.cfs_period_us") or 0
    return max(1, -(-quota // period)) if quota > 0 and period > 0 else None
