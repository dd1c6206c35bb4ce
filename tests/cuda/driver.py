"""NVIDIA's packages on a machine that may have none: as much of them as finding a GPU needs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from fewbit.ops.cuda import cards, compile, device


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


def make_driver(gpus: Sequence[tuple[str, tuple[int, int]]] = (), status: Status = Status.CUDA_SUCCESS) -> Any:
    """Some GPUs, by name and compute capability; `status` is what the driver says first."""
    good = Status.CUDA_SUCCESS
    names = [f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{which}" for which in ("MAJOR", "MINOR")]
    return SimpleNamespace(
        CUresult=Status,
        CUdevice_attribute=SimpleNamespace(**{name: which for which, name in enumerate(names)}),
        cuInit=lambda flags: (status,),
        cuDriverGetVersion=lambda: (good, 13020),
        cuDeviceGetCount=lambda: (good, len(gpus)),
        cuDeviceGet=lambda ordinal: (good, ordinal),
        cuDeviceGetName=lambda length, device: (good, gpus[device][0].encode().ljust(length, b"\0")),
        cuDeviceGetAttribute=lambda which, device: (good, gpus[device][1][which]),
        cuDevicePrimaryCtxRetain=lambda device: (good, device),
        cuDevicePrimaryCtxRelease=lambda device: (good,),
        cuCtxPushCurrent=lambda context: (good,),
        cuCtxPopCurrent=lambda: (good, 0),
        cuMemGetInfo=lambda: (good, 100 << 30, 140 << 30),
    )


class NoDriver:
    """The package without the library of the driver: all of its functions raise."""

    CUresult = Status

    def __getattr__(self, name: str) -> Any:
        def function(*args: Any) -> None:
            raise RuntimeError('"cuda" is an NVIDIA driver library.\nEnsure that it is installed.')

        return function


def install(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    """Let fewbit find this driver, whatever the machine has, and no GPU that was opened before."""
    modules = {"cuda.core": None, "cuda.bindings.driver": driver}
    for module in (cards, device):
        monkeypatch.setattr(module, "package", lambda name: modules[name])
    monkeypatch.setattr(cards, "compiler_version", lambda: "13.4")
    monkeypatch.setattr(device, "_opened", device.Gpu)


def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}")

    monkeypatch.setattr(compile, "import_module", refuse)
    monkeypatch.setattr(cards, "compiler_version", compile.compiler_version.__wrapped__)
    monkeypatch.setattr(device, "_opened", device.Gpu)
