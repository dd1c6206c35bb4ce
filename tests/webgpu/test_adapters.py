"""Which adapter is taken, and when "auto" takes one. No adapter is needed."""

from __future__ import annotations

from typing import Any

import pytest

import fewbit as fb
from fewbit import devices
from fewbit.cli.doctor import machine_rows
from fewbit.ops.webgpu import adapters
from fewbit.ops.webgpu.adapters import AdapterInfo, find, has_gpu, list_adapters

GPU = AdapterInfo(0, "Radeon", "Vulkan", "DiscreteGPU", ("shader-f16", "subgroup"), 1 << 30, 1 << 31)
SOFTWARE = AdapterInfo(1, "llvmpipe", "Vulkan", "CPU", (), 1 << 27, 1 << 31)


def found(monkeypatch: pytest.MonkeyPatch, *infos: AdapterInfo) -> None:
    monkeypatch.setattr(adapters, "_found", lambda: tuple((info, None) for info in infos))


def no_cuda(_ordinal: int = 0) -> Any:
    raise fb.DeviceError("no card")


def test_auto_takes_real_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.ops.cuda.gpu", no_cuda)
    monkeypatch.delenv(adapters.CHOICE, raising=False)
    for infos, best in (((GPU, SOFTWARE), "webgpu"), ((SOFTWARE,), "cpu"), ((), "cpu")):
        found(monkeypatch, *infos)
        assert devices.find_best() == best
    found(monkeypatch, SOFTWARE)
    monkeypatch.setenv(adapters.CHOICE, "llvm")
    assert has_gpu()
    assert devices.find_best() == "webgpu"


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, GPU, SOFTWARE)
    for choice, expected in (("", GPU), ("1", SOFTWARE), ("LLVMPIPE", SOFTWARE), ("cpu", SOFTWARE)):
        monkeypatch.setenv(adapters.CHOICE, choice)
        assert find()[0] is expected
    assert find(0)[0] is GPU
    monkeypatch.setenv(adapters.CHOICE, "Arc")
    with pytest.raises(fb.DeviceError, match="names no WebGPU adapter; there are: Radeon, llvmpipe"):
        find()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise fb.ExtraError("WebGPU needs the package wgpu: pip install 'fewbit[webgpu]'")

    monkeypatch.setattr(adapters, "_found", missing)
    assert list_adapters() == []
    assert not has_gpu()
    with pytest.raises(fb.ExtraError, match="pip install"):
        devices.get("webgpu")


def test_doctor_names_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    from fewbit.bench.machine import describe

    found(monkeypatch, GPU, SOFTWARE)
    rows = dict(machine_rows(describe()))
    assert rows["GPU webgpu:0"] == "Radeon, Vulkan, discrete; f16 arithmetic, subgroups; bindings of 1024 MiB"
    assert rows["GPU webgpu:1"] == "llvmpipe, Vulkan, software; no optional features; bindings of 128 MiB"
