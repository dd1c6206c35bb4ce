"""Decoders and products of every format, beside NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fewbit import quantize
from fewbit.formats import Format, get
from fewbit.formats.spec import Integers, every, ints
from fewbit.formats.table import SIMPLE
from fewbit.ops import numpy as reference
from fewbit.ops.webgpu import Gpu, products
from fewbit.ops.webgpu.decoders import decoder, device_format
from fewbit.ops.webgpu.device import header
from fewbit.ops.webgpu.multiply import Product, RowsAt
from fewbit.ops.webgpu.products import few_rows, many_rows
from fewbit.ops.webgpu.tensor import to_device
from fewbit.ops.webgpu.weights import send_matrix, send_pairs
from fewbit.ops.webgpu.wgsl import SUBGROUPS

from .cases import error, formats, make, multiplied, poisoned_rows, ragged, rows_of, send_rows

pytestmark = pytest.mark.webgpu
BAR, F16_BAR = 1e-5, 3e-3
# f16 on an adapter without it: f32 that is rounded after each conversion and product.
EMULATED_HALF = """\
alias Half = f32;
alias Half4 = vec4<f32>;
fn to_half(v: f32) -> Half { return quantizeToF16(v); }
fn to_halves(v: vec4<f32>) -> Half4 { return quantizeToF16(v); }
fn times(a: Half4, b: Half4) -> vec4<f32> { return quantizeToF16(a * b); }"""


@pytest.fixture
def half(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The f16 path runs here: in f16, or emulated."""
    if gpu.has_f16:
        yield
        return
    kernels = few_rows, many_rows
    for kernel in kernels:
        kernel.cache_clear()
    monkeypatch.setattr(products, "HALF", EMULATED_HALF)
    monkeypatch.setattr(products, "F16", SUBGROUPS)
    monkeypatch.setattr(gpu, "extensions", gpu.extensions | {SUBGROUPS})
    yield
    for kernel in kernels:
        kernel.cache_clear()


@pytest.mark.parametrize("fmt", formats())
def test_decoding(gpu: Gpu, fmt: Format) -> None:
    w, values = make(fmt, *ragged(fmt))
    assert error(to_device(w).dequantize(), values) <= BAR


@pytest.mark.parametrize("fmt", formats())
def test_products_of_one_some_and_many_rows(gpu: Gpu, fmt: Format) -> None:
    w, values = make(fmt, *ragged(fmt))
    matrix = send_matrix(gpu, [w])
    for count in (1, 7, 37):
        x = rows_of(count, values.shape[1])
        expected = x.astype(np.float64) @ values.T.astype(np.float64)
        assert error(multiplied(gpu, matrix, x), expected) <= BAR


@pytest.mark.parametrize("fmt", formats(("q4_0",)))
def test_products_in_f16(gpu: Gpu, fmt: Format, half: None) -> None:
    if fmt.is_scalar and fmt.name not in ("f16", "bf16", "f32"):
        pytest.skip("numbers of any size")
    w, values = make(fmt, *ragged(fmt))
    matrix = send_matrix(gpu, [w])
    for count in (1, 7, 37):
        x = rows_of(count, values.shape[1])
        expected = x.astype(np.float64) @ values.T.astype(np.float64)
        got = multiplied(gpu, matrix, x, f16=True)
        assert 1e-6 < error(got, expected) <= F16_BAR


def test_sums_of_products_in_f16_are_f32(gpu: Gpu, half: None) -> None:
    """Sums of f16 would stay at 2048."""
    matrix = send_matrix(gpu, [quantize(np.ones((8, 8192), np.float32), "f16")])
    for count in (1, 7, 37):
        assert (multiplied(gpu, matrix, np.ones((count, 8192), np.float32), f16=True) == 8192).all()


@pytest.mark.parametrize("fmt", formats(("q4_0",)))
def test_products_of_bytes(gpu: Gpu, fmt: Format) -> None:
    """Rows of x that 8 bits hold exactly: what is left are sums."""
    if not decoder(device_format(fmt)).has_packed:
        assert fmt.codebook or not isinstance(fmt.codes, Integers) or fmt.group % 16 or fmt.codes.times > 1
        return
    w, values = make(fmt, *ragged(fmt))
    there = to_device(w)
    for count in (1, 7):
        x = np.rint(rows_of(count, values.shape[1]) * 30).clip(-127, 127)
        x[:, ::32] = 127  # the scale of every 32 values is 1
        expected = x.astype(np.float64) @ values.T.astype(np.float64)
        assert error(there.linear(x, activations="int8"), expected) <= BAR


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_gates_biases_and_residuals(gpu: Gpu, small_bindings: Gpu, count: int, is_split: bool) -> None:
    if not is_split:
        gpu.binding_bytes = gpu.info.binding_bytes
    (gate, gate_values), (up, up_values) = (make(get("q8_0"), 42, 96, seed) for seed in (1, 2))
    x = rows_of(count, 96)
    pairs = send_pairs(gpu, gate, up)
    assert (len(pairs.parts) > 1) == is_split
    expected = reference.gate(None, x @ gate_values.T, x @ up_values.T, kind="gelu")  # type: ignore[arg-type]
    assert error(multiplied(gpu, pairs, x, gate="gelu"), expected) <= BAR
    bias, residual = rows_of(1, 42, 3)[0], rows_of(count, 42, 4)
    matrix, other = send_matrix(gpu, [gate]), RowsAt(gpu.array(residual), 42, 42)
    expected = x @ gate_values.T + bias + residual
    assert error(multiplied(gpu, matrix, x, bias=gpu.array(bias), residual=other), expected) <= BAR


def test_matrices_below_each_other_and_split(small_bindings: Gpu) -> None:
    gpu = small_bindings
    tensors = [make(get("q4_0"), n, 64, n) for n in (9, 110, 1)]
    matrix = send_matrix(gpu, [w for w, _ in tensors])
    assert len(matrix.parts) > 2
    x = rows_of(2, 64)
    expected = np.concatenate([x @ values.T for _, values in tensors], axis=1)
    assert error(multiplied(gpu, matrix, x), expected) <= BAR


def test_a_format_that_nobody_knows(gpu: Gpu) -> None:
    """New records need no line of WGSL: five bits in planes of their own, scales in small integers, a codebook."""
    q5 = next(fmt for fmt in SIMPLE if fmt.name == "q5_1")
    odd = replace(q5, name="odd5", codes=ints(*q5.codes.planes, times=3, zero=7), offset_sign=-1)  # type: ignore[union-attr]
    bits = replace(
        get("q4_0"), name="odd3", fields=(("d", "bf16", 1), ("qs", "u8", 12)), codes=ints(every("qs", 3, 3)),
        codebook=(-100, -30, -9, -2, 3, 11, 28, 90),
    )  # fmt: skip
    for fmt in (odd, bits):
        w, values = make(fmt, 11, 96)
        assert error(to_device(w).dequantize(), values) <= BAR
        x = rows_of(3, 96)
        assert error(multiplied(gpu, send_matrix(gpu, [w]), x), x @ values.T) <= BAR


def test_rows_beyond_the_last_are_not_written(gpu: Gpu) -> None:
    w, _ = make(get("q4_0"), 5, 32)
    y = poisoned_rows(gpu, 3, 5)
    before = gpu.download(y.memory, y.memory.nbytes)
    product = Product(send_matrix(gpu, [w]), gpu.array(header({"tokens": 0})), send_rows(gpu, rows_of(3, 32)), y, 4)
    gpu.run(product.dispatches(gpu), {"tokens": 3})
    assert (gpu.download(y.memory, y.memory.nbytes) == before).all()
