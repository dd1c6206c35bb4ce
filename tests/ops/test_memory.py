"""What a container may use, read from folders that look like those of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewbit.ops.cores import quotas
from fewbit.ops.memory import address_space, available_memory

GB = 10**9


def write(root: Path, files: dict[str, object]) -> Path:
    meminfo = f"MemTotal: {32 * GB // 1024} kB\nMemAvailable: {8 * GB // 1024} kB"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


V2 = {
    "proc/self/cgroup": "0::/pod/app",
    "sys/fs/cgroup/pod/app/memory.max": 2 * GB,
    "sys/fs/cgroup/pod/app/memory.current": GB,
    "sys/fs/cgroup/pod/app/memory.stat": f"anon 5\nactive_file {GB // 4}\ninactive_file {GB // 4}\n",
}
V1 = {
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/pod/app\n3:cpu,cpuacct:/pod",
    "sys/fs/cgroup/memory/pod/app/memory.limit_in_bytes": 2 * GB,
    "sys/fs/cgroup/memory/pod/app/memory.usage_in_bytes": GB,
    "sys/fs/cgroup/memory/pod/app/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB // 2}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 8 * GB, id="what the system has available"),
        pytest.param(V2, 3 * GB // 2, id="version 2; memory that holds files can be had"),
        pytest.param(V1, 3 * GB // 2, id="version 1"),
        pytest.param({**V2, "sys/fs/cgroup/pod/app/memory.max": "max"}, 8 * GB, id="no limit"),
        pytest.param({**V2, "sys/fs/cgroup/pod/memory.max": GB}, GB, id="of a group above"),
        pytest.param({**V2, "sys/fs/cgroup/pod/app/memory.high": GB}, GB // 2, id="from where on it is slowed down"),
        pytest.param({**V2, "sys/fs/cgroup/pod/app/memory.current": 5 * GB}, 0, id="over the limit"),
        pytest.param({"sys/fs/cgroup/memory.max": GB}, GB, id="a container that sees its own group only"),
        pytest.param(
            {**V2, "proc/self/cgroup": "0::/elsewhere", "sys/fs/cgroup/memory.max": GB},
            GB,
            id="a path that is not there",
        ),
        pytest.param(
            {**V2, "sys/fs/cgroup/pod/app/memory.max": "?", "proc/self/cgroup": "?\n0::/pod/app"}, 8 * GB, id="nonsense"
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, object], expected: int) -> None:
    assert abs(available_memory(write(tmp_path, files)) - expected) < 2048


def test_without_linux(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 0
    assert address_space() > 0


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "150000 100000"}, [2]),
        (
            {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "max 100000", "sys/fs/cgroup/cpu.max": "10 100"},
            [1],
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": 400000,
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": 100000,
            },
            [4],
        ),
        ({**V1, "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": -1, "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": 100000}, []),
    ],
)
def test_quotas(tmp_path: Path, files: dict[str, object], expected: list[int]) -> None:
    assert quotas(write(tmp_path, files)) == expected
