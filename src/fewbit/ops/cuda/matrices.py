"""Products with packed weights on a GPU, and quantizing there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...arrays import to_floats
from ...errors import ArgumentError, DtypeError, LayoutError, ShapeError
from ...formats import Format, get
from . import dlpack, kernels
from .device import shared_session
from .layout import row_fields
from .memory import DeviceArray
from .products import begin_rows, make_form, multiply
from .session import Session
from .tensor import CudaTensor, from_rows, quantizable
from .values import Launcher, Rows

ACTIVATIONS = ("int8", "int16", "f16")
FLOATS = ("f32", "f16", "bf16")


def linear(
    x: Any, w: CudaTensor, out: Any = None, activations: str | None = None, *, bias: Any = None, residual: Any = None
) -> Any:
    """x @ w.T on the GPU that w is on, plus bias (n,) and residual (..., n), if given.

    x of (..., k), in f32, f16 or bf16, is anything with DLPack or `__cuda_array_interface__` there, or an array in host
    memory; bias and residual are in f32. The result of (..., n) is a DeviceArray of f32, or `out`.

    One token is taken in 8 bits ("int8"), in 16 ("int16") or in f16; up to 256 tokens always in f16, more in bf16.
    """
    if not isinstance(w, CudaTensor):
        raise DtypeError(f"w must be on the GPU, not {type(w).__name__}; w.to('cuda') sends it there")
    if activations is not None and activations not in ACTIVATIONS:
        raise ArgumentError(f"activations must be {', '.join(ACTIVATIONS)} on a GPU, or None, not {activations!r}")
    with w.device.lock:
        w.device.use()
        return _linear(x, w, out, activations, bias, residual)


def _linear(x: Any, w: CudaTensor, out: Any, activations: str | None, bias: Any, residual: Any) -> Any:
    device, (n, k) = w.device, w.shape
    given = to_view(device, x, "x", FLOATS)
    if not given.shape or given.shape[-1] != k:
        raise ShapeError(f"x must hold rows of {k} values to match w, its shape is {given.shape}")
    leading = given.shape[:-1]
    result = device.empty((*leading, n)) if out is None else out
    target = shaped(device, result, "out", (*leading, n), FLOATS)
    if target.device_type != dlpack.CUDA:
        raise LayoutError("out must be in the GPU's memory")
    added = None if bias is None else shaped(device, bias, "bias", (n,))
    other = None if residual is None else shaped(device, residual, "residual", (*leading, n))
    try:
        _launch(device, given, w, target, activations, added, other)
    finally:
        keep(device, [given, added, other])
    if not isinstance(result, DeviceArray):
        device.sync()  # its owner knows nothing of our stream
    return result


def _launch(
    device: Session, x: dlpack.ForeignArray, w: CudaTensor, target: dlpack.ForeignArray, activations: str | None,
    bias: dlpack.ForeignArray | None, residual: dlpack.ForeignArray | None,
) -> None:  # fmt: skip
    (n, k), tokens = w.shape, prod(x.shape[:-1])
    if not (n and tokens):
        return
    y = target.pointer if target.dtype == "f32" else device.scratch("y", 4 * tokens * n)
    run, out = Launcher(device, device.stream), Rows(y, n, n)
    added = bias.pointer if bias else 0, Rows(residual.pointer, n, n) if residual else None
    if k:
        int16, f16 = activations == "int16", activations == "f16"
        form = make_form(run, Rows(x.pointer, k, k), tokens, int16=int16, f16=f16, dtype=x.dtype)
        multiply(run, w, form, tokens, out, *added)
    else:
        device.fill(y, 0, 4 * tokens * n)
        begin_rows(run, out, tokens, *added)
    if target.dtype != "f32":
        _cast(device, y, "f32", target.pointer, target.dtype, tokens, n)


def keep(device: Session, views: Sequence[dlpack.ForeignArray | None]) -> None:
    """Inputs of others stay until the GPU has read them; ours are freed on the stream, behind what reads them."""
    foreign = [view for view in views if view is not None and not isinstance(view.owner, DeviceArray)]
    if foreign:
        nbytes = sum(prod(view.shape) * dlpack.ITEM_BYTES[view.dtype] for view in foreign)
        device.keep([view.owner for view in foreign], nbytes)


def shaped(
    device: Session, x: Any, what: str, shape: tuple[int, ...], dtypes: tuple[str, ...] = ("f32",)
) -> dlpack.ForeignArray:
    view = to_view(device, x, what, dtypes)
    if view.shape != shape:
        raise ShapeError(f"{what} must have shape {shape}, its shape is {view.shape}")
    return view


def to_view(device: Session, x: Any, what: str, dtypes: tuple[str, ...]) -> dlpack.ForeignArray:
    """Memory of the device; what lies in host memory is copied there."""
    if isinstance(x, DeviceArray):
        view: dlpack.ForeignArray | None = dlpack.ForeignArray(
            x.pointer, x.shape, x.dtype, dlpack.CUDA, x.device.ordinal, x
        )
    else:
        stream = int(device.stream.handle)
        view = None if isinstance(x, np.ndarray) else dlpack.read(x, stream, what, device.ordinal_of)
        producer = None if hasattr(x, "__dlpack__") else getattr(x, "__cuda_array_interface__", {}).get("stream")
        if producer:
            device.wait_for(producer)
    if view is None or view.device_type == dlpack.CPU:
        copy = device.array(to_floats(x, what))
        view = dlpack.ForeignArray(copy.pointer, copy.shape, copy.dtype, dlpack.CPU, device.ordinal, copy)
    if view.dtype not in dtypes:
        raise DtypeError(f"{what} must be {', '.join(dtypes)}, not {view.dtype}")
    if view.device_type == dlpack.CUDA and view.device_id != device.ordinal:
        raise LayoutError(f"{what} is on cuda:{view.device_id}, the weights are on cuda:{device.ordinal}")
    return view


def _cast(device: Session, x: int, source: str, y: int, target: str, rows: int, k: int) -> None:
    device.launch(kernels.cast_rows(source, target), (rows, -(-k // 256)), 256, x, y, k, k)


def quantize(x: Any, format: str | Format, ordinal: int = 0) -> CudaTensor:
    """Pack rows of finite floats, (n, k), on the GPU, into the bytes that `fb.quantize` makes of them."""
    device, fmt = shared_session(ordinal), get(format)
    quantizable(fmt)
    with device.lock:
        view = to_view(device, x, "weights", FLOATS)
        if len(view.shape) != 2:
            raise ShapeError(f"weights must be a matrix, their shape is {view.shape}")
        n, k = view.shape
        rows = encode_rows(device, view, fmt)
        return from_rows(device, fmt, (n, k), rows.pointer)  # which waits until all is read


def encode_rows(device: Session, view: dlpack.ForeignArray, fmt: Format) -> DeviceArray:
    """The packed rows themselves, as they lie in files."""
    n, k = view.shape
    out = device.empty((n, fmt.row_bytes(k)), "u8")
    if n and k:
        warps = n * fmt.groups(k) if fmt.placement == "row" else n * -(-k // fmt.block)
        args = (view.pointer, out.pointer, *row_fields(fmt, k), n, k)
        device.launch(kernels.encode(fmt, view.dtype), -(-warps // 4), 128, *args)
    return out
