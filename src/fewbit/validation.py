"""Checks of arguments: integers, flags, paths, tokens. Errors say what the argument must be, and what was given."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from operator import index
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import DataError, DtypeError, FewbitError, ShapeError


def to_integer(value: Any, name: str) -> int:
    """An integer, Python's or NumPy's, as Python's.

    >>> to_integer(2.5, "ctx")
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: ctx must be an integer, not float
    """
    try:
        return index(value)
    except TypeError:
        raise DtypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def to_size(
    value: Any, name: str, least: int = 0, most: int | None = None, error: type[FewbitError] = ShapeError
) -> int:
    """An integer from `least` to `most`.

    >>> to_size(65, "n", 1, 64)
    Traceback (most recent call last):
        ...
    fewbit.errors.ShapeError: n must be from 1 to 64, got 65
    """
    number = to_integer(value, name)
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{name} must be {limits}, got {number}")
    return number


def to_number(value: Any, name: str, least: float = -math.inf) -> float:
    """A finite float, at least `least`.

    >>> to_number(-1, "softcap", least=0)
    Traceback (most recent call last):
        ...
    fewbit.errors.DataError: softcap must be finite and at least 0, got -1.0
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DtypeError(f"{name} must be a number, not {type(value).__name__}") from None
    if not math.isfinite(number) or number < least:
        limit = f" and at least {least}" if math.isfinite(least) else ""
        raise DataError(f"{name} must be finite{limit}, got {number}")
    return number


def to_flag(value: Any, name: str) -> bool:
    """True or False, Python's or NumPy's.

    >>> to_flag("yes", "repack")
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: repack must be True or False, not 'yes'
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise DtypeError(f"{name} must be True or False, not {value!r}")


def to_path(path: Any, name: str = "path") -> Path:
    """A str or a path as a Path.

    >>> to_path(None)
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: path must be a str or a Path, not NoneType
    """
    try:
        return Path(path)
    except TypeError:
        raise DtypeError(f"{name} must be a str or a Path, not {type(path).__name__}") from None


def to_tokens(tokens: Iterable[int]) -> array[int]:
    """Token ids as an array of 32-bit integers.

    >>> to_tokens(range(3))
    array('I', [0, 1, 2])
    """
    if isinstance(tokens, bytes | bytearray):  # `array` would read four bytes as one token
        raise DtypeError(f"tokens must be integers, not {type(tokens).__name__}")
    try:
        return array("I", tokens.tolist() if hasattr(tokens, "tolist") else tokens)  # fast for NumPy's arrays
    except (TypeError, ValueError) as error:
        raise DtypeError(f"tokens must be integers: {error}") from None
    except OverflowError:
        raise DataError("tokens must be from 0 to 2**32 - 1") from None


def check_type(value: object, kind: type | tuple[type, ...], name: str) -> None:
    """Refuse a value of another type.

    >>> check_type(5, str, "namespace")
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: namespace must be str, not int
    """
    if not isinstance(value, kind):
        names = [one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,))]
        raise DtypeError(f"{name} must be {' or '.join(names)}, not {type(value).__name__}")


def check_shape(array: Any, shape: tuple[int, ...], name: str) -> None:
    """Refuse an array of another shape.

    >>> check_shape(np.zeros(3), (4,), "bias")
    Traceback (most recent call last):
        ...
    fewbit.errors.ShapeError: bias must have shape (4,), not (3,)
    """
    if array.shape != shape:
        raise ShapeError(f"{name} must have shape {shape}, not {array.shape}")


def refuse_pickle(what: str, instead: str) -> NoReturn:
    """Refuse to pickle or copy an object, with what to do instead. Called by its `__reduce__`."""
    raise DtypeError(f"{what} cannot be pickled, copied or sent to another process: {instead}")
