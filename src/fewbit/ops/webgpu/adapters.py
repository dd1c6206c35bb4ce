"""Adapters: what WebGPU offers on this machine, best first."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any

from ...errors import DeviceError, ExtraError, FewbitError

CHOICE = "FEWBIT_WEBGPU_ADAPTER"  # part of an adapter's name, or its number
FEATURES = {"shader-f16": "f16 arithmetic", "subgroup": "subgroups", "timestamp-query": "timestamps"}
_KINDS = {"DiscreteGPU": 0, "IntegratedGPU": 1, "CPU": 3}  # the order in which they are proposed
_BACKENDS = {"Metal": 0, "Vulkan": 0, "D3D12": 1}
_opening = Lock()


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter, without opening it."""

    number: int
    name: str
    backend: str
    kind: str  # DiscreteGPU, IntegratedGPU, CPU or Unknown
    features: tuple[str, ...]
    binding_bytes: int  # that a shader sees of one buffer
    buffer_bytes: int

    @property
    def is_software(self) -> bool:
        return self.kind == "CPU"

    def described(self) -> str:
        """The adapter in a line."""
        known = [text for name, text in FEATURES.items() if name in self.features]
        kind = "software" if self.is_software else {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated"}.get(
            self.kind, "unknown kind"
        )  # fmt: skip
        features = ", ".join(known) or "no optional features"
        return f"{self.name}, {self.backend}, {kind}; {features}; bindings of {self.binding_bytes >> 20} MiB"


@cache
def package() -> Any:
    """The package wgpu."""
    try:
        wgpu = import_module("wgpu")
        native = import_module("wgpu.backends.wgpu_native.extras")
    except ImportError as error:
        raise ExtraError(f"WebGPU needs the package wgpu ({error}): pip install 'fewbit[webgpu]'") from error
    with suppress(RuntimeError):  # somebody else has begun already
        native.set_instance_extras(backends=("Vulkan", "Metal", "DX12"))
    return wgpu


@cache
def _found() -> tuple[tuple[AdapterInfo, Any], ...]:
    try:
        raw = [one for one in package().gpu.enumerate_adapters_sync() if one.info["backend_type"] != "OpenGL"]
    except FewbitError:
        raise
    except Exception as error:  # of drivers, in kinds of their own
        raise DeviceError(f"WebGPU cannot look for adapters: {one_line(error)}") from error
    raw.sort(key=lambda one: (_KINDS.get(one.info["adapter_type"], 2), _BACKENDS.get(one.info["backend_type"], 2)))
    return tuple((_described(number, one), one) for number, one in enumerate(raw))


def _described(number: int, adapter: Any) -> AdapterInfo:
    info, limits = adapter.info, adapter.limits
    return AdapterInfo(
        number, info["device"], info["backend_type"], info["adapter_type"], tuple(sorted(adapter.features)),
        limits["max-storage-buffer-binding-size"], limits["max-buffer-size"],
    )  # fmt: skip


def list_adapters() -> list[AdapterInfo]:
    """All adapters, real GPUs first; none where the package wgpu is missing or no driver is found."""
    with _opening:
        try:
            return [info for info, _ in _found()]
        except FewbitError:
            return []


def find(number: int | None = None) -> tuple[AdapterInfo, Any]:
    """An adapter by its number; None: the one that FEWBIT_WEBGPU_ADAPTER names, else the best."""
    with _opening:
        found = _found()
    if not found:
        raise DeviceError("there is no WebGPU adapter: no driver of Vulkan, Metal or D3D12 was found")
    if number is None:
        return _chosen(found)
    if number >= len(found):
        raise DeviceError(f"there is no WebGPU adapter {number}; there are {len(found)}")
    return found[number]


def _chosen(found: tuple[tuple[AdapterInfo, Any], ...]) -> tuple[AdapterInfo, Any]:
    choice = os.environ.get(CHOICE, "")
    if not choice:
        return found[0]
    if choice.isdecimal():
        fitting = [one for one in found if one[0].number == int(choice)]
    else:
        fitting = [one for one in found if choice.lower() in f"{one[0].name} {one[0].kind}".lower()]
    if not fitting:
        names = ", ".join(info.name for info, _ in found)
        raise DeviceError(f"{CHOICE}={choice} names no WebGPU adapter; there are: {names}")
    return fitting[0]


def has_gpu() -> bool:
    """Whether "auto" may take WebGPU: a real GPU, or an adapter that FEWBIT_WEBGPU_ADAPTER names."""
    try:
        info, _ = find()
    except FewbitError:
        return False
    return not info.is_software or bool(os.environ.get(CHOICE))


def one_line(error: BaseException) -> str:
    """What a driver says, in one line without its last dot."""
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
