"""Inputs and weights to multiply, and NumPy's word on the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import fewbit as fb
from fewbit.arrays import Bytes, Floats
from fewbit.formats import Format
from fewbit.ops import activations as oracle


def inputs(m: int, k: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((m, k), np.float32)


def tensor(fmt: Format, data: Bytes, k: int) -> fb.QuantTensor:
    return fb.QuantTensor(data.reshape(-1), (len(data), k), fmt)


def error(got: Floats, x: npt.NDArray[Any], w: Floats) -> float:
    """The largest error, as a share of what the terms of a sum can add up to."""
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    scale = np.abs(x64).sum(axis=1, keepdims=True) * np.abs(w64).max(initial=0) + 1e-30
    return float((np.abs(got - x64 @ w64.T) / scale).max())


def to_bf16(x: Floats) -> Floats:
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def check(got: Floats, x: Floats, w: Floats, taken: str) -> None:
    """The result against NumPy, with inputs (and for bf16 weights) rounded as the kernel rounds them."""
    if taken == "bf16":
        assert error(got, to_bf16(x), to_bf16(w)) < (1e-4 if w.shape[1] >= 255 else 8e-3)
    else:
        rounded = oracle.rounded_activations(x, {"f32": "exact", "q8": "int8", "q16": "int16"}[taken])
        assert error(got, rounded, w) < 1e-6
