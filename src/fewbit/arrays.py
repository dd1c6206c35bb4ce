"""Array types, memory for weights, and conversion of foreign arrays to NumPy: strides, f16, bf16, DLPack, buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DtypeError, LayoutError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_EXACT = {"float16", "bfloat16", "float32"}


def to_floats(x: Any, what: str) -> Floats:
    """Anything like an array as contiguous float32; float32 that is contiguous already is not copied.

    >>> to_floats([[1, 2]], "x").dtype
    dtype('float32')
    """
    array = to_array(x, what)
    kind = array.dtype.kind
    if kind not in "fiub" and array.dtype.name not in _EXACT:
        raise DtypeError(f"{what} must be numbers (float32, float16, bfloat16, ...), not {array.dtype}")
    if array.dtype == np.float32 and array.dtype.isnative:
        return np.asarray(array, order="C")
    with np.errstate(over="ignore"):
        return np.asarray(array.astype(np.float32), order="C")


def to_bytes_view(buf: Any) -> Bytes:
    """Anything with contiguous bytes as a flat uint8 array that shares them."""
    if isinstance(buf, np.ndarray):
        if not buf.flags.c_contiguous:
            raise LayoutError("packed bytes must be contiguous, got an array with strides")
        if buf.dtype.hasobject:
            raise DtypeError(f"packed bytes must be bytes or an array of numbers, not of {buf.dtype}")
        return buf.reshape(-1).view(np.uint8)
    try:
        view = memoryview(buf)
    except TypeError:
        array = to_array(buf, "packed bytes")
        return to_bytes_view(array)
    if not view.c_contiguous:
        raise LayoutError("packed bytes must be contiguous")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.zeros(0, np.uint8)


def to_array(x: Any, what: str) -> npt.NDArray[Any]:
    """Anything like an array as a NumPy one, of its own type."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach") and hasattr(x, "numpy"):  # a torch tensor; NumPy has no bfloat16 of its own
        x = x.detach()
        if x.device.type != "cpu":
            raise DtypeError(f"{what} is on {x.device}; fewbit's CPU functions take tensors on the CPU")
        return np.asarray((x.float() if "bfloat16" in str(x.dtype) else x).numpy())
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError) as error:
            raise DtypeError(f"{what}: DLPack tensor cannot be read: {error}") from None
    try:
        array = np.asarray(x)
    except (ValueError, TypeError) as error:
        raise DtypeError(f"{what} must be an array: {error}") from None
    if array.dtype == object:
        raise DtypeError(f"{what} must be an array of numbers, not {type(x).__name__}")
    return array


def bytes_for(size: int) -> Bytes:
    """Uninitialized memory for packed weights, aligned to a cache line; large arrays to huge pages.

    >>> bytes_for(100).size
    100
    """
    huge, line = 1 << 21, 64
    unit = line if size < 2 * huge else huge
    padded = np.empty((size // unit + 2) * unit, np.uint8)  # NumPy asks for huge pages
    start = -padded.ctypes.data % unit
    return padded[start : start + size]


class Arena:
    """Memory for many packed weights, which share huge pages.

    Args:
        size: Bytes.
        place: Called with memory that nobody touched yet, to say where it is to come from.

    >>> arena = Arena(1000)
    >>> arena.take(100).size, arena.take(900).size
    (100, 900)
    """

    def __init__(self, size: int, place: Callable[[Bytes], None] | None = None) -> None:
        self._place = place
        self._free = self._new(size)

    def take(self, size: int) -> Bytes:
        """Memory from the arena, or separate memory if too little is left."""
        if size > self._free.size:
            return self._new(size)
        taken, self._free = self._free[:size], self._free[-(-size // 64) * 64 :]
        return taken

    def _new(self, size: int) -> Bytes:
        memory = bytes_for(size)
        if self._place is not None:
            self._place(memory)
        return memory
