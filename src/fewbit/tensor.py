"""QuantTensor: a format, a shape, some bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Bytes, Floats, to_bytes_view
from .errors import ShapeError
from .formats import get
from .formats.spec import Format
from .interleave import Layout, deinterleave, k_block_bytes


class QuantTensor:
    """A matrix (or a stack of them) whose last dimension is kept in blocks of a few bits.

    >>> import numpy as np, fewbit as fb
    >>> w = fb.quantize(np.eye(64, dtype=np.float32), "q8_0")
    >>> w
    QuantTensor(q8_0, 64x64, 4352 bytes, 8.5 bits a weight)
    >>> bool(abs(w.dequantize() - np.eye(64)).max() < 1e-2)
    True
    """

    __slots__ = ("format", "layout", "shape", "stored")

    format: Format
    shape: tuple[int, ...]
    stored: Bytes  # (rows * row bytes,), contiguous, as they lie
    layout: Layout  # of the rows, see `fewbit.repack`

    def __init__(self, data: Bytes, shape: tuple[int, ...], format: Format, layout: Layout = "rows") -> None:
        self.stored = data
        self.shape = shape
        self.format = format
        self.layout = layout

    @classmethod
    def from_bytes(cls, buf: Any, shape: tuple[int, ...], format: str | Format) -> QuantTensor:
        """A tensor over bytes that are packed already; nothing is copied, a memory map stays one.

        >>> QuantTensor.from_bytes(bytes(18), (1, 32), "q4_0").nbytes
        18
        """
        fmt = get(format)
        shape = _checked_shape(shape)
        rows, k = _rows(shape), shape[-1]
        if fmt.placement == "block" and k % fmt.block:
            raise ShapeError(
                f"rows of {fmt} hold a multiple of {fmt.block} values, a row of {k} was given; "
                f"fb.quantize pads rows in memory, packed bytes must be whole blocks"
            )
        data = to_bytes_view(buf)
        wanted = rows * fmt.row_bytes(k)
        if data.size != wanted:
            raise ShapeError(f"a {fmt} tensor of {_text(shape)} takes {wanted} bytes, {data.size} were given")
        return cls(data, shape, fmt)

    def to_bytes(self) -> bytes:
        """The packed bytes, rows after each other; `from_bytes` reads them back.

        >>> QuantTensor.from_bytes(bytes(34), (1, 32), "q8_0").to_bytes() == bytes(34)
        True
        """
        return self.data.tobytes()

    @property
    def data(self) -> Bytes:
        """The packed bytes as a flat uint8 array, rows after each other; copied only where they are interleaved."""
        if self.layout == "rows":
            return self.stored
        return deinterleave(self.stored, self.rows, k_block_bytes(self.format, self.shape[-1]))

    @property
    def nbytes(self) -> int:
        return self.stored.size

    @property
    def rows(self) -> int:
        return _rows(self.shape)

    @property
    def bits_per_weight(self) -> float:
        """Bits that a value really takes, scales and padding counted.

        >>> QuantTensor.from_bytes(bytes(144), (1, 256), "q4_k").bits_per_weight
        4.5
        """
        count = int(np.prod(self.shape, dtype=np.int64))
        return 8 * self.nbytes / count if count else self.format.bits_per_weight

    def dequantize(self) -> Floats:
        """The values as float32.

        >>> QuantTensor.from_bytes(bytes(18), (1, 32), "q4_0").dequantize().shape
        (1, 32)
        """
        from .ops.cpu import decode  # loads native code

        rows = self.data.reshape(self.rows, -1) if self.nbytes else self.stored.reshape(self.rows, 0)
        return decode(self.format, rows, self.shape[-1]).reshape(self.shape)

    def __repr__(self) -> str:
        size = f"{self.nbytes} bytes" if self.nbytes < 1 << 20 else f"{self.nbytes / (1 << 20):.1f} MiB"
        return f"QuantTensor({self.format}, {_text(self.shape)}, {size}, {self.bits_per_weight:.4g} bits a weight)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantTensor):
            return NotImplemented
        same = self.format == other.format and self.shape == other.shape
        return same and bool(np.array_equal(self.data, other.data))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(), self.shape, self.format.name)


def _restore(data: bytes, shape: tuple[int, ...], name: str) -> QuantTensor:
    fmt = get(name)
    rows = _rows(_checked_shape(shape))
    if len(data) != rows * fmt.row_bytes(shape[-1]):
        raise ShapeError(f"a pickled {fmt} tensor of {_text(shape)} has {len(data)} bytes")
    return QuantTensor(np.frombuffer(data, np.uint8), shape, fmt)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        out = tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        raise ShapeError(f"a shape is a tuple of sizes, not {shape!r}") from None
    if not out or any(n < 0 for n in out):
        raise ShapeError(f"a shape has at least one dimension and no negative size, {shape!r} was given")
    if any(n > 1 << 40 for n in out) or _rows(out) * out[-1] > 1 << 48:
        raise ShapeError(f"a shape of {_text(out)} is too large")
    return out


def _rows(shape: tuple[int, ...]) -> int:
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
