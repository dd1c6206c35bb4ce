"""Gradients of products: rows times the transpose of what `linear` multiplies by."""

from __future__ import annotations

from typing import Any

from ... import _native
from ...arrays import Floats, to_floats
from ...errors import ArgumentError, ShapeError
from ...tensor import QuantTensor
from ..arguments import count_rows, expect_tensor, result_array
from .machine import checked_threads, packed


def linear_backward(grad: Any, w: QuantTensor, out: Floats | None = None, threads: int | None = None) -> Floats:
    """grad @ w, the gradient of the inputs of `linear(x, w)`: w is decoded inside the product, some rows at a time.

    Everything is multiplied and added in float32. The result is the same for any number of threads, and a row of it
    does not depend on the others. If w is on a GPU (`w.to("cuda")`), grad may be in host memory or there, and the
    result is there.

    Args:
        grad: Array of (..., n) values, the gradient of the result of `linear`.
        w: Packed matrix of (n, k).
        out: Float32 array of (..., k) for the result. Allocated if not given.
        threads: Number of threads. Defaults to all usable cores.

    Returns:
        Float32 array of (..., k).

    >>> import numpy as np, fewbit as fb
    >>> w = fb.quantize(np.eye(64, dtype=np.float32)[:3], "q8_0")
    >>> fb.linear_backward([1, 2, 3], w)[:4].round(2).tolist()
    [1.0, 2.0, 3.0, 0.0]
    """
    if not isinstance(w, QuantTensor) and hasattr(w, "linear_backward"):
        if threads is not None:
            raise ArgumentError("threads are for weights in host memory, w is on a GPU")
        return w.linear_backward(grad, out)
    expect_tensor(w)
    if len(w.shape) != 2:
        raise ShapeError(f"w must be a matrix (n, k), its shape is {w.shape}")
    values, (n, k) = to_floats(grad, "grad"), w.shape
    if not values.shape or values.shape[-1] != n:
        raise ShapeError(f"grad must hold rows of {n} values to match w, its shape is {values.shape}")
    m = count_rows(values.shape)
    result = result_array(out, values.shape[:-1], k, values, w.stored)
    _native.linear_backward(packed(w), values.reshape(m, n), result.reshape(m, k), checked_threads(threads))
    return result
