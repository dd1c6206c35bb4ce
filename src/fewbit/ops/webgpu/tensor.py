"""WebGpuTensor: packed weights in the memory of a WebGPU adapter, and products with them."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

import numpy as np

from ...arrays import Floats, to_floats
from ...errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from ...formats import Format
from ...tensor import QuantTensor
from .decoders import row_stride
from .device import Dispatch, Gpu, header, open_gpu
from .multiply import ONE, Product, RowsAt, token_class
from .products import decode_rows
from .weights import Matrix, row_blocks, send_matrix

ACTIVATIONS = ("exact", "f16")


class WebGpuTensor:
    """A matrix of a format on a WebGPU adapter. Inputs and results of products are arrays in host memory."""

    __slots__ = ("format", "gpu", "matrix", "shape")

    def __init__(self, gpu: Gpu, fmt: Format, shape: tuple[int, int], matrix: Matrix) -> None:
        self.gpu, self.format, self.shape, self.matrix = gpu, fmt, shape, matrix

    @property
    def nbytes(self) -> int:
        """Bytes of the packed rows."""
        return self.shape[0] * self.format.row_bytes(self.shape[1])

    def to(self, device: str) -> QuantTensor:
        """The tensor in host memory; `device` is "cpu"."""
        if device != "cpu":
            raise ArgumentError(f"a WebGpuTensor goes to 'cpu', not to {device!r}; from there to other devices")
        k = self.shape[1]
        if self.matrix.format != self.format:
            raise DtypeError(f"{self.format} is kept as f32 on WebGPU; dequantize() gives the values")
        stride, row = row_stride(self.format, k), self.format.row_bytes(k)
        parts = [self.gpu.download(p.memory, p.rows * stride).reshape(p.rows, stride) for p in self.matrix.parts]
        rows = np.concatenate(parts) if parts else np.zeros((0, stride), np.uint8)
        return QuantTensor(np.ascontiguousarray(rows[:, :row]).reshape(-1), self.shape, self.format)

    def dequantize(self) -> Floats:
        """The values as float32, decoded on the adapter."""
        n, k = self.shape
        if not n or not k:
            return np.zeros((n, k), np.float32)
        found = []
        for part in self.matrix.parts:
            out = self.gpu.allocate(4 * part.rows * k)
            x, z = row_blocks(part.rows * -(-k // 16), 64)
            values = {**self.matrix.values, "n": part.rows, "y_offset": 0, "y_stride": k}
            kernel = decode_rows(self.matrix.format)
            self.gpu.run([Dispatch(kernel, (*self.matrix.buffers(part), out), values, (("one", x), ONE, ("one", z)))])
            found.append(self.gpu.download(out, 4 * part.rows * k).view(np.float32).reshape(part.rows, k))
            out.free()
        return np.concatenate(found)

    def linear(
        self, x: Any, out: Any = None, activations: str | None = None, *, bias: Any = None, residual: Any = None
    ) -> Floats:
        """x @ w.T + bias + residual, as `fb.linear` does it with this tensor.

        Args:
            x: Inputs of (..., k) values.
            out: Float32 array of (..., n) for the result.
            activations: "exact" (the default), or "f16": products in f16, sums in f32.
            bias: Array of (n,).
            residual: Array of (..., n).
        """
        n, k = self.shape
        rows = to_floats(x, "x")
        if rows.ndim == 0 or rows.shape[-1] != k:
            raise ShapeError(f"x must hold rows of {k} values to match w, its shape is {rows.shape}")
        shape = (*rows.shape[:-1], n)
        target = _target(out, shape)
        added = None if bias is None else _shaped(bias, "bias", (n,))
        other = None if residual is None else _shaped(residual, "residual", shape)
        self._check(activations)
        if not target.size:
            return target
        count = prod(shape[:-1])
        if k:
            with self.gpu.lock:
                products = self._multiply(rows.reshape(count, k), activations == "f16", added, other)
        else:
            products = np.zeros((count, n), np.float32)
            products += 0 if added is None else added
            products += 0 if other is None else other.reshape(count, n)
        target[...] = products.reshape(shape)
        return target

    def _check(self, activations: str | None) -> None:
        if activations not in (None, *ACTIVATIONS):
            raise ArgumentError(f"activations must be {' or '.join(ACTIVATIONS)} on WebGPU, not {activations!r}")
        if activations == "f16" and not self.gpu.has_f16:
            raise DeviceError(f"{self.gpu.info.name} has no f16 arithmetic (shader-f16); leave activations out")

    def _multiply(self, rows: Floats, f16: bool, bias: Floats | None, residual: Floats | None) -> Floats:
        gpu, (n, k), count = self.gpu, self.shape, len(rows)
        most = max(1, min(gpu.binding_bytes // (4 * max(n, k) + 16), 32768))
        if count > most:  # rows that no binding holds
            parts = range(0, count, most)
            return np.concatenate(
                [
                    self._multiply(rows[i : i + most], f16, bias, residual.reshape(count, n)[i : i + most])
                    if residual is not None
                    else self._multiply(rows[i : i + most], f16, bias, None)
                    for i in parts
                ]
            )
        k4 = -(-k // 4) * 4
        x = RowsAt(gpu.array(np.pad(rows, ((0, 0), (0, k4 - k)))), k, k4)
        y = RowsAt(gpu.allocate(4 * count * n), n, n)
        step = gpu.array(header({"tokens": count}))
        other = None if residual is None else RowsAt(gpu.array(residual), n, n)
        added = None if bias is None else gpu.array(bias)
        product = Product(
            self.matrix, step, x, y, token_class(count), bias=added, residual=other, f16=f16,
        )  # fmt: skip
        try:
            gpu.submit(gpu.prepare(product.dispatches(gpu)), {"tokens": count})
            return gpu.download(y.memory, 4 * count * n).view(np.float32).reshape(count, n)
        finally:
            for memory in (x.memory, y.memory, step, added, other.memory if other else None):
                if memory is not None:
                    memory.free()

    def __repr__(self) -> str:
        n, k = self.shape
        return f"WebGpuTensor({self.format}, {n}x{k}, {self.nbytes} bytes, {self.gpu.info.name})"

    def __reduce__(self) -> NoReturn:
        raise DtypeError(
            "a WebGpuTensor cannot be pickled or copied, its weights are on a GPU; pickle the QuantTensor it came from"
        )


def to_device(w: QuantTensor, number: int | None = None) -> WebGpuTensor:
    """A copy of packed weights on an adapter."""
    if len(w.shape) != 2:
        shape = "x".join(map(str, w.shape))
        raise ShapeError(f"a matrix can be sent to a GPU, not {shape}; take one of them, as w[0]")
    gpu = open_gpu(number)
    with gpu.lock:
        return WebGpuTensor(gpu, w.format, (w.shape[0], w.shape[1]), send_matrix(gpu, [w]))


def _shaped(values: Any, what: str, shape: tuple[int, ...]) -> Floats:
    array = to_floats(values, what)
    if array.shape != shape:
        raise ShapeError(f"{what} must have shape {shape}, its shape is {array.shape}")
    return array


def _target(out: Any, shape: tuple[int, ...]) -> Floats:
    if out is None:
        return np.empty(shape, np.float32)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != np.float32 or not out.flags.writeable:
        raise LayoutError(f"out must be a writable float32 array of shape {shape}")
    return out
