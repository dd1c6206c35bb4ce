"""Decoders and products of every format, beside NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fewbit.formats import Format, get
from fewbit.formats.spec import every, ints
from fewbit.formats.table import SIMPLE
from fewbit.ops import numpy as reference
from fewbit.ops.webgpu import Gpu
from fewbit.ops.webgpu.device import header
from fewbit.ops.webgpu.multiply import Product, RowsAt
from fewbit.ops.webgpu.tensor import to_device
from fewbit.ops.webgpu.weights import send_matrix, send_pairs

from .cases import error, formats, make, multiplied, poisoned_rows, ragged, rows_of, send_rows

pytestmark = pytest.mark.webgpu
BAR, F16_BAR = 1e-5, 3e-3


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
def test_products_in_f16(gpu: Gpu, fmt: Format) -> None:
    if not gpu.has_f16:
        pytest.skip("the adapter has no f16 arithmetic")
    if fmt.is_scalar and fmt.name not in ("f16", "bf16", "f32"):
        pytest.skip("numbers of any size")
    w, values = make(fmt, *ragged(fmt))
    matrix = send_matrix(gpu, [w])
    for count in (1, 37):
        x = rows_of(count, values.shape[1])
        expected = x.astype(np.float64) @ values.T.astype(np.float64)
        assert error(multiplied(gpu, matrix, x, f16=True), expected) <= F16_BAR


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
