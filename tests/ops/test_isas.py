"""Which instruction set runs: the one that was asked for, and no other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import fewbit as fb
from fewbit.ops import cpu

from ..samples import ISAS
from .products import inputs


def test_the_forced_instruction_set_really_multiplies(isa: str) -> None:
    w = fb.quantize(inputs(8, 256), "q4_0")
    before = {name: _products(name) for name in cpu.isas()}
    own = {"amx": (5, 9, 70), "neon_i8mm": (70,)}  # fewer are left to the instruction set below
    for m in own.get(isa, (1, 70)):
        fb.linear(inputs(m, 256), w)
    after = {name: _products(name) for name in cpu.isas()}
    assert {name for name in after if after[name] > before[name]} == {isa}


def _products(name: str) -> int:
    with cpu.forced_isa(name):
        return int(cpu._native.products())


@pytest.mark.parametrize("name", ISAS)
def test_environment_forces_an_instruction_set(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from fewbit.ops import cpu; print(cpu.isa())"],
        env={**os.environ, "FEWBIT_ISA": name}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if name in cpu.isas():
        assert run.stdout.strip() == name
    else:
        assert "is not available here" in run.stderr
