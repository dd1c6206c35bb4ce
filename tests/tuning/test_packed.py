"""Products of torch tensors and packed weights, beside torch on the decoded ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fewbit as fb
from fewbit.formats import Format
from fewbit.tuning import packed_linear

from ..ops.products import inputs, tensor
from ..samples import ALL, random_rows


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_values_and_gradients_are_those_of_torch(fmt: Format) -> None:
    w = tensor(fmt, random_rows(fmt, 40, 288), 288)
    decoded = torch.from_numpy(w.dequantize())
    x, grad = torch.from_numpy(inputs(7, 288)), torch.from_numpy(inputs(7, 40, seed=2))
    found = []
    for product in (lambda x: packed_linear(x, w), lambda x: x @ decoded.T):
        own = x.clone().requires_grad_()
        y = product(own)
        y.backward(grad)
        assert own.grad is not None
        found.append((y.detach(), own.grad))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_leading_dimensions_and_second_use() -> None:
    w = fb.quantize(inputs(6, 64), "q4_k")
    x = torch.ones(2, 3, 64, requires_grad=True)
    y = packed_linear(x, w, threads=1)
    assert y.shape == (2, 3, 6)
    (y.sum() + packed_linear(x, w).square().sum()).backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert np.isfinite(x.grad.numpy()).all()
