"""`w.to("webgpu")` and `fb.linear` with it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.ops.webgpu import Gpu, list_adapters
from fewbit.ops.webgpu.adapters import CHOICE

from .cases import error, rows_of

pytestmark = pytest.mark.webgpu


@pytest.fixture
def w(gpu: Gpu) -> Any:
    return fb.quantize(rows_of(10, 64), "int4_group")


def test_linear_there_is_linear_here(w: fb.QuantTensor) -> None:
    there, x = w.to("webgpu"), rows_of(6, 64).reshape(2, 3, 64)
    expected = fb.linear(x, w, exact=True)
    assert error(fb.linear(x, there), expected) <= 1e-5
    assert error(fb.linear(x[0, 0], there), expected[0, 0]) <= 1e-5
    halves = x.astype(np.float16)
    assert error(fb.linear(halves, there), fb.linear(halves, w, exact=True)) <= 1e-5
    bias, residual, out = rows_of(1, 10)[0], rows_of(6, 10).reshape(2, 3, 10), np.empty((2, 3, 10), np.float32)
    given = {"bias": bias, "residual": residual}
    assert fb.linear(x, there, out, **given) is out
    assert error(out, fb.linear(x, w, exact=True, **given)) <= 1e-5
    assert repr(there).startswith("WebGpuTensor(int4_group, 10x64, ")


def test_nothing_to_multiply(w: fb.QuantTensor) -> None:
    assert fb.linear(np.zeros((0, 64), np.float32), w.to("webgpu")).shape == (0, 10)
    empty = fb.QuantTensor.from_bytes(b"", (0, 64), "q8_0").to("webgpu")
    assert fb.linear(rows_of(2, 64), empty).shape == (2, 0)
    assert empty.dequantize().shape == (0, 64)


def test_what_is_wrong_is_said_in_a_sentence(w: fb.QuantTensor) -> None:
    there = w.to("webgpu")
    with pytest.raises(fb.ShapeError, match="x must hold rows of 64 values"):
        fb.linear(rows_of(2, 63), there)
    with pytest.raises(fb.ArgumentError, match="threads and exact"):
        fb.linear(rows_of(2, 64), there, exact=True)
    with pytest.raises(fb.ArgumentError, match="exact or f16"):
        fb.linear(rows_of(2, 64), there, activations="int16")
    with pytest.raises(fb.ShapeError, match="bias must have shape"):
        fb.linear(rows_of(2, 64), there, bias=rows_of(1, 9)[0])
    with pytest.raises(fb.LayoutError, match="out must be"):
        fb.linear(rows_of(2, 64), there, np.empty((2, 9), np.float32))
    with pytest.raises(fb.DtypeError, match="cannot be pickled"):
        pickle.dumps(there)
    with pytest.raises(fb.DeviceError, match="no WebGPU adapter 99"):
        w.to("webgpu:99")


def test_an_adapter_that_the_environment_names(w: fb.QuantTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "no such adapter")
    with pytest.raises(fb.DeviceError, match="names no WebGPU adapter"):
        w.to("webgpu")
    monkeypatch.setenv(CHOICE, list_adapters()[-1].name[:8])
    assert w.to("webgpu").shape == (10, 64)


def test_a_lost_device_is_an_error_and_the_next_one_works(w: fb.QuantTensor) -> None:
    there = w.to("webgpu")
    there.gpu.lose()
    with pytest.raises(fb.DeviceError, match="was lost"):
        fb.linear(rows_of(2, 64), there)
    assert fb.linear(rows_of(2, 64), w.to("webgpu")).shape == (2, 10)
