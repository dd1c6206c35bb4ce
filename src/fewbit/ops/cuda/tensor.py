"""CudaTensor: packed weights in a GPU's memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import DtypeError, FormatError, ShapeError
from ...formats.spec import Format, Integers
from ...tensor import QuantTensor
from . import kernels
from .device import shared_session
from .layout import TileLayout, padded, row_fields, tile_columns, tile_layout
from .memory import DeviceArray
from .session import Session
from .upload import Uploader


class CudaTensor:
    """A format, a shape, and bytes on a GPU: in tiles (`layout` "tiles"), or as in files ("rows")."""

    __slots__ = ("buffer", "device", "format", "gain", "is_exact", "largest", "layout", "planes", "shape", "tiles")

    def __init__(self, device: Session, fmt: Format, shape: tuple[int, int]) -> None:
        self.device, self.format, self.shape = device, fmt, shape
        n, k = shape
        self.tiles: TileLayout | None = tile_layout(fmt)
        self.layout = "tiles" if self.tiles else "rows"
        sizes = self.tiles.sizes(n, k) if self.tiles else (n * fmt.row_bytes(k), 0, 0, 0)
        places = [padded(size, 256) for size in sizes]
        self.buffer = device.allocate(sum(places))
        first = int(self.buffer.handle)
        self.planes = tuple(first + sum(places[:i]) for i in range(4))
        self.gain = 1.0
        self.largest = math.inf  # no weight is larger; in tiles a bound from their scales, in rows the maximum
        self.is_exact = False  # rows of f32 that are multiplied in f32, however many tokens there are

    @property
    def nbytes(self) -> int:
        n, k = self.shape
        return sum(self.tiles.sizes(n, k)) if self.tiles else n * self.format.row_bytes(k)

    @property
    def columns(self) -> int:
        return tile_columns(self.shape[1])

    def dequantize(self, dtype: str = "f32") -> DeviceArray:
        """The values, with the bits that the CPU's decoder has (rounded to `dtype`: "f32", "f16" or "bf16")."""
        with self.device.lock:
            out = self.device.empty(self.shape, dtype)
            self.decode_into(out.pointer, self.shape[1], dtype)
            return out

    def decode_into(self, pointer: int, width: int, dtype: str, launch: Any = None, rows: range | None = None) -> None:
        """Rows of `width` values, k of them real, the others finite; `launch` is that of a step, or of the device.

        Only `rows`, if given, which begin at a multiple of 16.
        """
        k, launch = self.shape[1], launch or self.device.launch
        rows = range(self.shape[0]) if rows is None else rows
        if len(rows) == 0 or width == 0:
            return
        n = len(rows)
        if self.tiles:
            entry = kernels.decode_tiles(self.format, dtype)
            before = self.tiles.sizes(rows.start, k)
            planes = [plane + size for plane, size in zip(self.planes, before, strict=True)]
            tiles = -(-n // 8), -(-self.columns // 4)
            launch(entry, tiles, 128, *planes, pointer, n, width, self.columns)
            return
        entry = kernels.decode_rows(self.format, dtype)
        launch(entry, -(-n * width // 256), 256, *self.in_rows(rows.start), pointer, n, k, width)

    def in_rows(self, first: int = 0) -> tuple[int, ...]:
        """Rows as in files, as kernels take them: the bytes from a row on, its fields, values that share a scale."""
        k = self.shape[1]
        data = self.planes[0] + first * self.format.row_bytes(k)
        return data, *row_fields(self.format, k), self.format.group or max(k, 1)

    def linear(self, x: Any, out: Any = None, **options: Any) -> Any:
        """x @ w.T, as `fb.linear` does it with this tensor."""
        from .matrices import linear  # which imports this module

        return linear(x, self, out, **options)

    def linear_backward(self, grad: Any, out: Any = None) -> Any:
        """grad @ w, as `fb.linear_backward` does it with this tensor."""
        from .backward import linear_backward  # which imports this module

        return linear_backward(grad, self, out)

    def __repr__(self) -> str:
        n, k = self.shape
        return f"CudaTensor({self.format}, {n}x{k}, {self.nbytes} bytes, {self.layout}, cuda:{self.device.ordinal})"

    def __reduce__(self) -> NoReturn:
        raise DtypeError(
            "a CudaTensor cannot be pickled or copied, its weights are on a GPU; pickle the QuantTensor it came from"
        )


def to_device(w: QuantTensor, ordinal: int = 0) -> CudaTensor:
    """A copy of packed weights on a GPU, repacked there for its kernels."""
    device = shared_session(ordinal)
    with device.lock, Uploader(device) as uploader:
        return send_tensor(device, w, uploader)


def send_tensor(device: Session, w: QuantTensor, uploader: Uploader) -> CudaTensor:
    """The same in a session."""
    out = CudaTensor(device, w.format, matrix_shape(w))
    fill(out, [(w, 0, 1)], uploader)
    return out


def matrix_shape(w: QuantTensor) -> tuple[int, int]:
    if len(w.shape) != 2:
        raise ShapeError(f"a matrix can be sent to a GPU, not {'x'.join(map(str, w.shape))}; take one of them, as w[0]")
    n, k = w.shape
    return n, k


def fill(out: CudaTensor, parts: Sequence[tuple[QuantTensor, int, int]], uploader: Uploader) -> None:
    """Send matrices to their places in a tensor: the first row tile of each, and every which tile it takes.

    Tensors that stay as in files have one part.
    """
    device, k = out.device, out.shape[1]
    range_pointer = _begin(device, out)
    for w, tile, step in parts:
        data = w.data.reshape(w.shape[0], -1) if w.nbytes else np.zeros((w.shape[0], 0), np.uint8)

        def take(pointer: int, first: int, rows: int, tile: int = tile, step: int = step) -> None:
            if out.tiles:
                _repack(out, pointer, rows, (first, tile, step), range_pointer)
                return
            each = out.format.row_bytes(k)
            device.copy(pointer, out.planes[0] + first * each, rows * each)

        uploader.send(data, take)
    uploader.wait()
    if not out.tiles:
        _find_largest(out, range_pointer)
    _take_range(out, range_pointer)


def from_rows(device: Session, fmt: Format, shape: tuple[int, int], pointer: int) -> CudaTensor:
    """The same of rows that are on the device already."""
    out = CudaTensor(device, fmt, shape)
    if out.tiles:
        range_pointer = _begin(device, out)
        if out.nbytes and shape[0]:
            _repack(out, pointer, shape[0], (0, 0, 1), range_pointer)
        _take_range(out, range_pointer)
    elif out.nbytes:
        device.copy(pointer, out.planes[0], out.nbytes)
        device.sync()
    return out


def _begin(device: Session, out: CudaTensor) -> int:
    """Zeros everywhere: padding has a scale of 0. Returns where the largest weight is written."""
    device.fill(out.planes[0], 0, out.buffer.size)
    pointer = device.scratch("limits", 16)
    device.fill(pointer, 0, 4)
    return pointer


def _repack(out: CudaTensor, pointer: int, rows: int, to: tuple[int, int, int], range_pointer: int) -> None:
    """Rows to their first row, first tile and step between tiles."""
    k = out.shape[1]
    args = (pointer, *out.planes, *row_fields(out.format, k), *to, rows, k, out.columns, range_pointer)
    blocks = -(-rows * out.columns * 4 // 128)
    out.device.launch(kernels.repack(out.format), blocks, 128, *args)


def _find_largest(out: CudaTensor, range_pointer: int) -> None:
    n, k = out.shape
    if n and k:
        out.device.launch(kernels.find_largest(out.format), n, 256, *out.in_rows(), range_pointer, k)


def _take_range(out: CudaTensor, range_pointer: int) -> None:
    """The largest weight, and of tiles the power of two that brings it near 2^10, to the middle of f16. It waits:
    products may prefetch weights before the kernel before them has ended."""
    most = float(out.device.download(range_pointer, np.zeros(1, np.float32))[0])
    out.largest = most
    if most and out.tiles and out.tiles.per:  # else a row's scale comes after the product
        out.gain = 2.0 ** max(-100, min(100, 10 - math.ceil(math.log2(most))))


def quantizable(fmt: Format) -> None:
    known = isinstance(fmt.codes, Integers) and fmt.name.partition(":")[0] in ("q4_0", "q8_0", "int8", "int4_group")
    if not known or fmt.per_tensor:
        raise FormatError(f"GPUs quantize to q4_0, q8_0, int8 and int4_group, not to {fmt}; fb.quantize does")
