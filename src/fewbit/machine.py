"""This machine as fewbit sees it: what `fewbit doctor` prints."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .formats import Format, all_formats
from .ops import cpu

REQUIRED = ("fewbit", "numpy", "tokenizers", "jinja2", "click", "rich")
OPTIONAL = ("torch", "triton", "wgpu", "starlette", "uvicorn", "msgspec", "llguidance", "huggingface_hub", "ray")


@dataclass(frozen=True)
class Machine:
    cpu: str
    system: str
    python: str
    cores: int
    usable_cores: int  # that this process may run on
    isas: list[str]  # instruction sets that can be used here, best first
    isa: str  # the one in use
    forced_isa: str | None  # what FEWBIT_ISA says
    threads: int
    kernels: dict[str, str]  # format -> the kernels that `linear` takes, by batch size
    packages: dict[str, str | None]  # name -> version, None if it is missing
    optional_packages: dict[str, str | None]


def describe() -> Machine:
    """Looks at this machine.

    >>> machine = describe()
    >>> machine.isa in machine.isas
    True
    """
    return Machine(
        cpu=cpu_name(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        isas=list(cpu.isas()),
        isa=cpu.isa(),
        forced_isa=os.environ.get("FEWBIT_ISA"),
        threads=cpu.default_threads(),
        kernels={name: kernels_of(fmt) for name, fmt in all_formats().items()},
        packages={name: version(name) for name in REQUIRED},
        optional_packages={name: version(name) for name in OPTIONAL},
    )


def kernels_of(fmt: Format) -> str:
    """Which kernel multiplies by weights of this format, for which batch sizes.

    >>> kernels_of(all_formats()["f32"])
    'f32 1+'
    """
    ranges = cpu.kernel_ranges(fmt)
    lasts = [first - 1 for first, _ in ranges[1:]]
    told = [f"{name} {first}-{last}" for (first, name), last in zip(ranges, lasts, strict=False)]
    return ", ".join([*told, f"{ranges[-1][1]} {ranges[-1][0]}+"])


def cpu_name() -> str:
    """The processor's name, or its architecture where the system does not tell more."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def version(package: str) -> str | None:
    """The installed version of a package; the package is not imported.

    >>> version("no-such-package") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
