"""Products by the transpose of packed weights: format x shape x threads x instruction set, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewbit as fb
from fewbit.formats import Format
from fewbit.formats.decode import decode
from fewbit.ops import cpu

from ..samples import ALL, ISAS, random_rows
from .products import error, inputs, tensor


def check(got: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    """The result beside a product in double precision."""
    assert got.shape == (len(grad), w.shape[1])
    assert got.size == 0 or error(got, grad, w.T) < 1e-6


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_every_format(fmt: Format, isa: str) -> None:
    data, grad = random_rows(fmt, 150, 288), inputs(51, 150)
    w = tensor(fmt, data, 288)
    one = fb.linear_backward(grad, w, threads=1)
    check(one, grad, decode(fmt, data, 288))
    assert np.array_equal(fb.linear_backward(grad, w, threads=3), one)
    assert np.array_equal(fb.linear_backward(grad[40:], w), one[40:])  # a row does not depend on the others


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "int8", "f16"])
def test_interleaved_rows_give_the_same(name: str, isa: str) -> None:
    w = fb.quantize(inputs(300, 512), name)
    grad = inputs(7, 300)
    assert np.array_equal(fb.linear_backward(grad, fb.repack(w)), fb.linear_backward(grad, w))


@given(
    fmt=st.sampled_from(ALL),
    shape=st.tuples(st.integers(0, 60), st.integers(0, 200), st.integers(0, 600)),
    seed=st.integers(0, 1000),
    threads=st.sampled_from([1, 2, 3]),
    name=st.sampled_from([i for i in ISAS if i in cpu.isas()]),
)
def test_any_shape_and_seed(fmt: Format, shape: tuple[int, int, int], seed: int, threads: int, name: str) -> None:
    m, n, k = shape
    data, grad = random_rows(fmt, n, k, seed), inputs(m, n, seed)
    with cpu.forced_isa(name):
        got = fb.linear_backward(grad, tensor(fmt, data, k), threads=threads)
    check(got, grad, decode(fmt, data, k))


def test_it_is_the_gradient_of_linear() -> None:
    w, x, grad = fb.quantize(inputs(40, 64), "q4_k"), inputs(3, 64), inputs(3, 40)
    step = np.float32(1e-2) * inputs(3, 64, seed=4)
    change = fb.linear(x + step, w, exact=True).astype(np.float64) - fb.linear(x, w, exact=True)
    assert np.vdot(fb.linear_backward(grad, w), step) == pytest.approx(np.vdot(grad, change), rel=1e-3)


def test_leading_dimensions_and_out() -> None:
    w, grad = fb.quantize(inputs(6, 40), "q8_0"), inputs(6, 6).reshape(2, 3, 6)
    out = np.empty((2, 3, 40), np.float32)
    assert fb.linear_backward(grad, w, out) is out
    assert np.array_equal(out.reshape(6, 40), fb.linear_backward(grad.reshape(6, 6), w))
    assert fb.linear_backward(grad[0, 0], w).shape == (40,)


@pytest.mark.parametrize(
    ("grad", "w", "error", "message"),
    [
        (np.ones((2, 5), np.float32), fb.quantize(inputs(6, 40), "q8_0"), fb.ShapeError, "rows of 6 values"),
        (np.float32(1), fb.quantize(inputs(6, 40), "q8_0"), fb.ShapeError, "rows of 6 values"),
        (np.ones(6, np.float32), np.ones((6, 40)), fb.DtypeError, "must be a QuantTensor"),
        (np.ones(40, np.float32), fb.quantize(inputs(1, 40)[0], "q8_0"), fb.ShapeError, "must be a matrix"),
        (["a"], fb.quantize(inputs(1, 40), "q8_0"), fb.DtypeError, "must be numbers"),
    ],
)
def test_wrong_arguments(grad: Any, w: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fb.linear_backward(grad, w)


def test_a_result_over_its_input_is_refused() -> None:
    w, both = fb.quantize(inputs(40, 40), "q8_0"), inputs(2, 40)
    with pytest.raises(fb.LayoutError, match="overlaps"):
        fb.linear_backward(both, w, both)
    out = np.empty((2, 40), np.float32)
    out.flags.writeable = False
    with pytest.raises(fb.LayoutError, match="read-only"):
        fb.linear_backward(both, w, out)
