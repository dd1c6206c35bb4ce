"""QuantTensor: packed weights with their format and shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index as to_index
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Bytes, Floats, to_bytes_view, to_floats
from .errors import ArgumentError, DtypeError, LayoutError, PositionError, ShapeError
from .formats import get
from .formats.spec import Format
from .interleave import ROWS, RowLayout, deinterleave, k_block_bytes

# Loads the module with the operations of a device. The package fills it: this module imports no backend.
BACKENDS: dict[str, Callable[[], Any]] = {}


class PackedArray:
    """The array protocol of packed weights: their sizes, and `np.matmul` as the operator `@`."""

    __slots__ = ()
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Called by NumPy for `array @ w`, and for other functions, which need decoded weights."""
        out = options.pop("out", None)
        if ufunc is not np.matmul or method != "__call__" or options:
            detail = f" with {', '.join(options)}" if ufunc is np.matmul and options else ""
            raise DtypeError(
                f"np.{ufunc.__name__}{detail} does not take packed weights; fb.linear(x, w) and x @ w.T multiply them, "
                "np.asarray(w) decodes them"
            )
        left, right = inputs
        product = right.__rmatmul__(left) if isinstance(right, QuantTensor | Transposed) else left.__matmul__(right)
        if out is None:
            return product
        np.copyto(out[0], product)
        return out[0]


class QuantTensor(PackedArray):
    """A matrix (or a stack of them) whose last dimension is kept in blocks of a few bits.

    >>> import numpy as np, fewbit as fb
    >>> w = fb.quantize(np.eye(64, dtype=np.float32), "q8_0")
    >>> w
    QuantTensor(q8_0, 64x64, 4352 bytes, 8.5 bits a weight)
    >>> bool(abs(w.dequantize() - np.eye(64)).max() < 1e-2)
    True

    `x @ w.T` and `w @ x` are `fb.linear(x, w)`, and `np.asarray(w)` decodes it. Rows can be indexed: a slice shares the
    bytes of w, an array of row numbers or a mask copies them.

    >>> w[:2], (np.ones((5, 64), np.float32) @ w.T).shape, np.asarray(w[[3, 5]]).shape
    (QuantTensor(q8_0, 2x64, 136 bytes, 8.5 bits a weight), (5, 64), (2, 64))

    Attributes:
        format: The `Format`.
        shape: Shape of the decoded values.
        stored: The packed bytes in the order of `layout`, a flat uint8 array.
        layout: "rows", or "interleaved16" after `fb.repack`.
    """

    __slots__ = ("format", "layout", "shape", "stored")

    format: Format
    shape: tuple[int, ...]
    stored: Bytes  # (rows * row bytes,), contiguous
    layout: RowLayout  # of the rows, see `fewbit.repack`

    def __init__(self, data: Bytes, shape: tuple[int, ...], format: Format, layout: RowLayout = "rows") -> None:
        self.stored = data
        self.shape = shape
        self.format = format
        self.layout = layout

    @classmethod
    def from_bytes(cls, buf: Any, shape: tuple[int, ...], format: str | Format) -> QuantTensor:
        """A tensor over packed bytes. Nothing is copied: a memory map stays one.

        Args:
            buf: Bytes, a uint8 array or anything with the buffer protocol.
            shape: Shape of the decoded values.
            format: Name of the format, or a `Format`.

        >>> QuantTensor.from_bytes(bytes(18), (1, 32), "q4_0").nbytes
        18
        """
        fmt = get(format)
        shape = _checked_shape(shape)
        rows, k = _rows(shape), shape[-1]
        if fmt.placement == "block" and k % fmt.block:
            raise ShapeError(
                f"rows of {fmt} must hold a multiple of {fmt.block} values, got {k}; "
                f"fb.quantize pads rows in memory, packed bytes must be whole blocks"
            )
        data = to_bytes_view(buf)
        wanted = rows * fmt.row_bytes(k)
        if data.size != wanted:
            raise ShapeError(f"a {fmt} tensor of {_text(shape)} takes {wanted} bytes, got {data.size}")
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
        """Size of the packed bytes."""
        return self.stored.size

    @property
    def rows(self) -> int:
        """Number of rows, of all matrices of a stack."""
        return _rows(self.shape)

    @property
    def bits_per_weight(self) -> float:
        """Bits that a value takes, with scales and padding.

        >>> QuantTensor.from_bytes(bytes(144), (1, 256), "q4_k").bits_per_weight
        4.5
        """
        return 8 * self.nbytes / self.size if self.size else self.format.bits_per_weight

    def dequantize(self) -> Floats:
        """The values as float32.

        >>> QuantTensor.from_bytes(bytes(18), (1, 32), "q4_0").dequantize().shape
        (1, 32)
        """
        rows = self.data.reshape(self.rows, -1) if self.nbytes else self.stored.reshape(self.rows, 0)
        values: Floats = BACKENDS["cpu"]().decode(self.format, rows, self.shape[-1])
        return values.reshape(self.shape)

    def to(self, device: str) -> Any:
        """The tensor on a device. `fb.linear(x, w)` multiplies where w is.

        Args:
            device: "cpu" returns this tensor; "cuda" or "cuda:1" copies it to an NVIDIA GPU (extra `cuda`), "webgpu" or
                "webgpu:1" to any GPU (extra `webgpu`).

        >>> w = QuantTensor.from_bytes(bytes(18), (1, 32), "q4_0")
        >>> w.to("cpu") is w
        True
        """
        kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
        if device == "cpu":
            return self
        if kind not in ("cuda", "webgpu") or (number and not number.isdecimal()) or device.endswith(":"):
            raise ArgumentError(f"device must be 'cpu', 'cuda', 'cuda:1', 'webgpu' or 'webgpu:1', not {device!r}")
        if kind == "webgpu":
            return BACKENDS["webgpu"]().to_device(self, int(number) if number else None)
        return BACKENDS["cuda"]().to_device(self, int(number or 0))

    @property
    def T(self) -> QuantTensor | Transposed:  # noqa: N802
        """The transpose, for products: `x @ w.T` is `fb.linear(x, w)`."""
        if self.ndim > 2:
            raise ShapeError(f"only a matrix can be transposed, not {_text(self.shape)}; take one of them, as w[0].T")
        return Transposed(self) if self.ndim == 2 else self

    def __matmul__(self, x: Any) -> Any:
        """As for arrays, of (k,) or (..., k, m) values: `fb.linear` with x transposed."""
        values, k = to_floats(x, "x"), self.shape[-1]
        if values.ndim < 2:
            return _linear(values, self)
        if values.shape[-2] != k:
            hint = "; x @ w.T would do" if values.shape[-1] == k else ""
            raise ShapeError(f"w @ x needs x of ({k}, ...) to match w of {_text(self.shape)}, not {values.shape}{hint}")
        product = _linear(np.swapaxes(values, -1, -2), self)
        return np.swapaxes(product, -1, -2) if self.ndim > 1 else product

    def __rmatmul__(self, x: Any) -> Any:
        if self.ndim == 1:
            return _linear(x, self)
        raise ShapeError(
            f"x @ w would add up the rows of w, which are packed; x @ w.T multiplies by its {self.shape[-1]} columns, "
            "np.asarray(w) decodes it"
        )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise LayoutError("packed weights cannot be seen as an array without a copy; np.asarray(w) decodes them")
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> QuantTensor:
        """Rows, or matrices of a stack, by an integer, a slice, an array of integers or a mask."""
        if isinstance(index, tuple) or self.ndim == 1:
            raise ShapeError("only whole rows can be taken: w[rows]; np.asarray(w[rows]) has columns")
        n, rest = self.shape[0], self.shape[1:]
        if isinstance(index, slice):
            chosen = _sliced(index, n)
            if chosen.step == 1:
                return self._slice(chosen.start, max(chosen.start, chosen.stop), (len(chosen), *rest))
            numbers = np.arange(chosen.start, chosen.stop, chosen.step)
        else:
            numbers = _row_numbers(index, n)
        if numbers.ndim == 0:
            return self._slice(int(numbers), int(numbers) + 1, rest)
        return self._gather(numbers.reshape(-1), (*numbers.shape, *rest))

    def _slice(self, first: int, last: int, shape: tuple[int, ...]) -> QuantTensor:
        """Consecutive rows, without a copy if they are whole sets of interleaved rows."""
        each = _rows(self.shape[1:]) * self.format.row_bytes(self.shape[-1])
        if self.layout == "rows" or self.ndim > 2:  # matrices of a stack are whole sets
            return QuantTensor(self.stored[first * each : last * each], shape, self.format, self.layout)
        interleaved = self.rows // ROWS * ROWS  # the rows after them are not
        if first >= interleaved:
            return QuantTensor(self.stored[first * each : last * each], shape, self.format)
        if first % ROWS == 0 and (last % ROWS == 0 or last == self.rows):
            return QuantTensor(self.stored[first * each : last * each], shape, self.format, self.layout)
        return self._gather(np.arange(first, last), shape)

    def _gather(self, numbers: npt.NDArray[np.intp], shape: tuple[int, ...]) -> QuantTensor:
        """A copy of rows, by number."""
        n, each = self.shape[0], _rows(self.shape[1:]) * self.format.row_bytes(self.shape[-1])
        if self.layout == "rows" or self.ndim > 2:
            return QuantTensor(self.stored.reshape(n, each)[numbers].reshape(-1), shape, self.format, self.layout)
        interleaved = n // ROWS * ROWS
        sets, which = np.unique(np.minimum(numbers, interleaved) // ROWS, return_inverse=True)
        whole = sets[sets < interleaved // ROWS]
        mixed = self.stored[: interleaved * each].reshape(-1, ROWS * each)[whole].reshape(-1)
        rows = deinterleave(mixed, len(whole) * ROWS, k_block_bytes(self.format, self.shape[-1])).reshape(-1, each)
        rows = np.concatenate([rows, self.stored[interleaved * each :].reshape(-1, each)])
        taken = rows[which * ROWS + numbers - np.minimum(numbers // ROWS * ROWS, interleaved)]
        return QuantTensor(taken.reshape(-1), shape, self.format)

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


class Transposed(PackedArray):
    """The transpose of a packed matrix: the right side of `x @ w.T`."""

    __slots__ = ("T", "shape")

    def __init__(self, w: QuantTensor) -> None:
        self.T, self.shape = w, w.shape[::-1]

    def __matmul__(self, x: Any) -> Any:
        raise ShapeError(
            "w.T @ x would add up the rows of w, which are packed; w @ x and x @ w.T multiply by its columns, "
            "np.asarray(w) decodes it"
        )

    def __rmatmul__(self, x: Any) -> Any:
        return _linear(x, self.T)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        raise ShapeError("the columns of packed weights cannot be taken; np.asarray(w.T) can be indexed")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.T.__array__(dtype, copy).T

    def __repr__(self) -> str:
        return f"{self.T!r}.T"

    def __reduce__(self) -> tuple[Any, ...]:
        return Transposed, (self.T,)


def _linear(x: Any, w: QuantTensor) -> Any:
    linear = BACKENDS["cpu"]().linear
    if len(w.shape) == 1:
        return linear(x, QuantTensor(w.stored, (1, *w.shape), w.format, w.layout))[..., 0]
    return linear(x, w)


def _sliced(index: slice, n: int) -> range:
    try:
        return range(*index.indices(n))
    except (TypeError, ValueError) as error:
        raise DtypeError(f"rows are given by integers: {error}") from None


def _row_numbers(index: Any, n: int) -> npt.NDArray[np.intp]:
    """Row numbers from 0 to n - 1, of any shape."""
    if isinstance(index, bool) or index is None or index is Ellipsis:
        raise DtypeError(f"rows are given by integers, slices, arrays of integers or masks, not by {index}")
    try:
        numbers = np.asarray(to_index(index))
    except TypeError:
        numbers = _to_numbers(index, n)
    if numbers.size and not -n <= numbers.min() <= numbers.max() < n:
        bad = numbers.min() if numbers.min() < -n else numbers.max()
        raise PositionError(f"there is no row {bad}: the tensor has {n}")
    return np.where(numbers < 0, numbers + n, numbers).astype(np.intp)


def _to_numbers(index: Any, n: int) -> npt.NDArray[Any]:
    try:
        numbers = np.asarray(index)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"rows are given by integers, slices, arrays of integers or masks: {error}") from None
    if numbers.dtype == np.bool_:
        if numbers.shape != (n,):
            raise ShapeError(f"a mask of rows must have shape ({n},), its shape is {numbers.shape}")
        return np.flatnonzero(numbers)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise DtypeError(f"rows are given by integers, slices, arrays of integers or masks, not by {numbers.dtype}")
    return numbers if numbers.size else np.zeros(numbers.shape, np.intp)


def _restore(data: bytes, shape: tuple[int, ...], name: str) -> QuantTensor:
    fmt = get(name)
    rows = _rows(_checked_shape(shape))
    if len(data) != rows * fmt.row_bytes(shape[-1]):
        raise ShapeError(f"a pickled {fmt} tensor of {_text(shape)} has {len(data)} bytes")
    return QuantTensor(np.frombuffer(data, np.uint8), shape, fmt)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        out = tuple(to_index(n) for n in shape)
    except TypeError:
        raise ShapeError(f"shape must be a tuple of sizes, not {shape!r}") from None
    if not out or any(n < 0 for n in out):
        raise ShapeError(f"shape must have at least one dimension and no negative size, got {shape!r}")
    if any(n > 1 << 40 for n in out) or _rows(out) * out[-1] > 1 << 48:
        raise ShapeError(f"a shape of {_text(out)} is too large")
    return out


def _rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
