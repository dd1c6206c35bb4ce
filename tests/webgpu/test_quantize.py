"""Packing floats on an adapter, beside `fb.quantize`."""

from __future__ import annotations

import numpy as np
import pytest

import fewbit as fb
from fewbit.ops import webgpu
from fewbit.ops.webgpu import Gpu

from .cases import rows_of

pytestmark = pytest.mark.webgpu
FORMATS = (
    "int8", "int8:per=tensor", "int8_affine", "int8_affine:per=tensor", "int4", "int4:block=6", "int4:block=48",
    "int4_group", "int4_group:group=64", "int4_group:group=128,zero=true", "int4_group:zero=true,scale=f16",
)  # fmt: skip
USUAL = ("int8", "int4_group:group=64", "int4_group:zero=true,scale=f16")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in USUAL else pytest.mark.exhaustive) for n in FORMATS])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_values_are_those_of_the_host(gpu: Gpu, name: str, dtype: type) -> None:
    """But for codes whose values lie in the middle between two: division on a GPU is not exact."""
    x = rows_of(9, 203).astype(dtype)
    x[3], x[4] = 0, np.abs(x[4])
    got, expected = webgpu.quantize(x, name).to("cpu"), fb.quantize(x, name)
    assert got.format == expected.format
    assert np.mean(np.abs(got.dequantize() - expected.dequantize()) > 1e-5) < 0.005
    step = np.abs(expected.dequantize() - x).max()
    assert np.abs(got.dequantize() - x).max() <= 1.001 * step
    np.testing.assert_allclose(webgpu.quantize(x, name).dequantize(), got.dequantize(), rtol=1e-6, atol=1e-7)


def test_rows_in_several_buffers(small_bindings: Gpu) -> None:
    x = rows_of(50, 64)
    for name in ("int4_group", "int8:per=tensor"):
        tensor = webgpu.quantize(x, name)
        assert len(tensor.matrix.parts) > 1
        assert np.mean(np.abs(tensor.dequantize() - fb.quantize(x, name).dequantize()) > 1e-5) < 0.005


def test_what_cannot_be_packed(gpu: Gpu) -> None:
    with pytest.raises(fb.FormatError, match="WebGPU quantizes to int8"):
        webgpu.quantize(rows_of(2, 32), "q4_k")
    with pytest.raises(fb.ShapeError, match="must be a matrix"):
        webgpu.quantize(rows_of(2, 32)[0], "int8")
    with pytest.raises(fb.DataError, match="NaN or infinity"):
        webgpu.quantize(np.full((1, 32), np.nan, np.float32), "int8")
    with pytest.raises(fb.ArgumentError, match="goes to 'cpu'"):
        webgpu.quantize(rows_of(2, 32), "int8").to("cuda")
    assert webgpu.quantize(np.zeros((0, 32), np.float32), "int8").to("cpu").shape == (0, 32)
