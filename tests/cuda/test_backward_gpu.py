"""Gradients of products on a GPU against the NumPy decoder."""

from __future__ import annotations

import numpy as np
import pytest

import fewbit as fb
from fewbit.formats import Format, get
from fewbit.ops import cuda
from fewbit.ops.cuda import backward

from .cases import ALL, make, ragged, relative_error

pytestmark = pytest.mark.cuda
rng = np.random.default_rng(0)


def gradients(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_every_format(fmt: Format, device: cuda.Session) -> None:
    w, values = make(fmt, *ragged(fmt))
    grad = gradients(67, w.shape[0])
    assert relative_error(fb.linear_backward(grad, cuda.to_device(w)).numpy(), grad.astype(np.float64) @ values) < 1e-6


@pytest.mark.parametrize("name", ["q4_0", "int4_group", "f16", "iq2_xs"])
def test_some_rows_at_a_time(name: str, device: cuda.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    w, values = make(get(name), 133, 512)
    monkeypatch.setattr(backward, "MAX_DECODED", 4 * 512 * 48)
    for tokens in (0, 1, 64, 65):
        grad = gradients(tokens, 133)
        found = fb.linear_backward(grad, cuda.to_device(w)).numpy()
        assert found.shape == (tokens, 512)
        assert not tokens or relative_error(found, grad.astype(np.float64) @ values) < 1e-6


def test_arrays_there_and_in_16_bits(device: cuda.Session) -> None:
    w, values = make(get("q8_0"), 40, 64)
    sent, grad = cuda.to_device(w), gradients(2, 3, 40).astype(np.float16)
    out = device.empty((2, 3, 64))
    assert sent.linear_backward(device.array(grad), out) is out
    assert relative_error(out.numpy(), grad.astype(np.float64) @ values) < 1e-6


def test_wrong_arguments(device: cuda.Session) -> None:
    sent = cuda.to_device(make(get("q8_0"), 40, 64)[0])
    with pytest.raises(fb.ShapeError, match="rows of 40 values"):
        sent.linear_backward(gradients(2, 64))
    with pytest.raises(fb.LayoutError, match="GPU's memory"):
        sent.linear_backward(gradients(2, 40), np.empty((2, 64), np.float32))
    with pytest.raises(fb.ArgumentError, match="threads"):
        fb.linear_backward(gradients(2, 40), sent, threads=2)
