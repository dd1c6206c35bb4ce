"""Gradients of products on a GPU: rows times a packed matrix, which is decoded some rows at a time."""

from __future__ import annotations

from math import prod
from typing import Any

from ...errors import LayoutError, ShapeError
from . import dlpack
from .kernels import cast_rows
from .kernels_products import backward_rows
from .layout import ROWS
from .matrices import FLOATS, keep, shaped, to_view
from .memory import DeviceArray
from .tensor import CudaTensor
from .values import Launcher

MAX_DECODED = 1 << 26  # bytes of floats at once
TILE = 64  # tokens and columns of a block


def linear_backward(grad: Any, w: CudaTensor, out: Any = None) -> Any:
    """grad @ w on the GPU that w is on, in f32: the gradient of the inputs of a product.

    grad of (..., n), in f32, f16 or bf16, is there or in host memory. The result of (..., k) is a DeviceArray, or `out`
    in f32.
    """
    with w.device.lock:
        w.device.use()
        device, (n, k) = w.device, w.shape
        given = to_view(device, grad, "grad", FLOATS)
        if not given.shape or given.shape[-1] != n:
            raise ShapeError(f"grad must hold rows of {n} values to match w, its shape is {given.shape}")
        shape = (*given.shape[:-1], k)
        result = device.empty(shape) if out is None else out
        target = shaped(device, result, "out", shape)
        if target.device_type != dlpack.CUDA:
            raise LayoutError("out must be in the GPU's memory")
        try:
            _launch(given, w, target.pointer)
        finally:
            keep(device, [given])
        if not isinstance(result, DeviceArray):
            device.sync()  # its owner knows nothing of our stream
        return result


def _launch(grad: dlpack.ForeignArray, w: CudaTensor, out: int) -> None:
    device, (n, k), tokens = w.device, w.shape, prod(grad.shape[:-1])
    if not (tokens and k):
        return
    run, given = Launcher(device, device.stream), grad.pointer
    if not n:
        device.fill(out, 0, 4 * tokens * k)
        return
    if grad.dtype != "f32":
        given = run.scratch("grad", 4 * tokens * n)
        run.launch(cast_rows(grad.dtype, "f32"), (tokens, -(-n // 256)), 256, grad.pointer, given, n, n)
    most = max(1, MAX_DECODED // (4 * k) // ROWS) * ROWS
    decoded = run.scratch("decoded", 4 * min(most, n) * k)
    grid = -(-k // TILE), -(-tokens // TILE)
    for first in range(0, n, most):
        rows = range(first, min(first + most, n))
        w.decode_into(decoded, k, "f32", run.launch, rows)
        args = (given + 4 * first, n, decoded, out, tokens, len(rows), k, first > 0)
        run.launch(backward_rows(), grid, 256, *args)
