"""Metadata values in Python as bytes of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataError, DtypeError, ShapeError
from ..shown import short
from .values import ARRAY, DTYPES, MAX_DEPTH, STRING, StringArray

NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
SEQUENCES = (list, tuple, np.ndarray, StringArray)


def encode_value(value: Any, what: str) -> tuple[int, bytes]:
    """A metadata value as its type's number and its bytes.

    >>> encode_value(np.uint16(3), "three")
    (2, b'\\x03\\x00')
    """
    if isinstance(value, str):
        return STRING, encode_text(value, what)
    if isinstance(value, StringArray | list | tuple | np.ndarray):
        return ARRAY, _array(value, what, 1)
    number = _typed(value, what)
    return NUMBERS[number.dtype], number.tobytes()


def _array(values: Any, what: str, depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise DataError(f"{what}: arrays in arrays are at most {MAX_DEPTH} deep")
    if isinstance(values, list | tuple):
        if not values:
            raise DataError(f"{what}: an empty list has no type; give an empty NumPy array")
        if all(isinstance(v, SEQUENCES) for v in values):
            return u32(ARRAY) + u64(len(values)) + b"".join(_array(v, what, depth + 1) for v in values)
        values = _packed(values, what) if all(isinstance(v, str) for v in values) else _common(values, what)
    if isinstance(values, StringArray):
        return u32(STRING) + u64(len(values)) + values.data
    numbers = _checked(values, what)
    if numbers.ndim != 1:
        raise ShapeError(f"{what}: arrays must have one dimension, got {numbers.ndim}; use lists of arrays")
    return u32(NUMBERS[numbers.dtype]) + u64(numbers.size) + numbers.tobytes()


def _common(values: list[Any] | tuple[Any, ...], what: str) -> npt.NDArray[Any]:
    """Numbers of a list as an array: NumPy scalars keep their type, plain numbers get the usual one."""
    if all(isinstance(v, bool | np.generic) for v in values) and len({type(v) for v in values}) == 1:
        return np.array(values)
    if all(type(v) is int for v in values):
        return np.array(values, _smallest(min(values), max(values), ("<i4", "<i8", "<u8"), what))
    if all(type(v) in (int, float) for v in values):
        return np.array([_float(v, what) for v in values])
    names = ", ".join(sorted({type(v).__name__ for v in values}))
    raise DtypeError(f"{what}: a list holds numbers, or str, or bool, or lists, all of one kind, not {names}")


def _typed(value: Any, what: str) -> Any:
    if isinstance(value, bool | np.generic):
        return _checked(np.asarray(value), what)
    if isinstance(value, float):
        return np.asarray(_float(value, what))
    if not isinstance(value, int):
        raise DtypeError(f"{what}: a {type(value).__name__} cannot be written; bool, int, float, str and arrays can")
    return np.asarray(value, _smallest(value, value, ("<u4", "<i4", "<u8", "<i8"), what))


def _checked(numbers: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """The same in little-endian, if there is a type for it."""
    little = numbers.dtype.newbyteorder("<")
    if little not in NUMBERS:
        raise DtypeError(f"{what}: {numbers.dtype} cannot be written; whole numbers, float32, float64 and bool can")
    return numbers.astype(little, copy=False)


def _smallest(low: int, high: int, kinds: tuple[str, ...], what: str) -> str:
    """The first of the types that holds both."""
    for kind in kinds:
        limits = np.iinfo(kind)
        if int(limits.min) <= low and high <= int(limits.max):
            return kind
    raise DataError(f"{what}: numbers of {max(abs(low), abs(high)).bit_length()} bits do not fit a 64-bit type")


def _float(value: float, what: str) -> np.float32 | np.float64:
    """A float32, or a float64 if it is too large for that."""
    try:
        large = np.float64(value)
    except OverflowError:
        raise DataError(f"{what}: {short(value)} is too large for a float") from None
    with np.errstate(over="ignore"):
        small = np.float32(large)
    return large if np.isinf(small) and np.isfinite(large) else small


def _packed(strings: list[str] | tuple[str, ...], what: str) -> StringArray:
    try:
        return StringArray.pack(strings)
    except UnicodeEncodeError as error:
        raise DataError(f"{what}: {short(error.object)} is not UTF-8 text") from None


def encode_text(text: str, what: str) -> bytes:
    return _packed([text], what).data


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")
