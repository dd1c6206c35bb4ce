"""The backends that tests take in turn: the NumPy reference, and the native code with each instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from fewbit.ops import attention, cpu, sampling


def _in_turn(reference: ModuleType, name: str) -> Iterator[ModuleType]:
    if name == "numpy":
        yield reference
        return
    with cpu.forced_isa(name):
        yield cpu


@pytest.fixture(scope="module", params=["numpy", *cpu.isas()])
def sampler(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from _in_turn(sampling, request.param)


@pytest.fixture(scope="module", params=["numpy", *cpu.isas()])
def kernels(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from _in_turn(attention, request.param)


@pytest.fixture(scope="module", params=cpu.isas())
def native_kernels(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from _in_turn(attention, request.param)
