"""Integers, flags and paths that callers give, checked once and for all, with a sentence for what is wrong."""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import DtypeError, FewbitError, ShapeError


def to_integer(value: Any, what: str) -> int:
    """Anything that is an integer, NumPy's ones too, as Python's.

    >>> to_integer(2.5, "ctx")
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: ctx must be an integer, not float
    """
    try:
        return index(value)
    except TypeError:
        raise DtypeError(f"{what} must be an integer, not {type(value).__name__}") from None


def to_path(path: Any, what: str = "a path") -> Path:
    """A str or a path as a Path.

    >>> to_path(None)
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: a path must be a str or a Path, not NoneType
    """
    try:
        return Path(path)
    except TypeError:
        raise DtypeError(f"{what} must be a str or a Path, not {type(path).__name__}") from None


def to_flag(value: Any, what: str) -> bool:
    """True or False, NumPy's too.

    >>> to_flag("yes", "repack")
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: repack must be True or False, not 'yes'
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise DtypeError(f"{what} must be True or False, not {value!r}")


def to_size(
    value: Any, what: str, least: int = 0, most: int | None = None, error: type[FewbitError] = ShapeError
) -> int:
    """An integer from `least` to `most`.

    >>> to_size(65, "n", 1, 64)
    Traceback (most recent call last):
        ...
    fewbit.errors.ShapeError: n must be from 1 to 64, got 65
    """
    number = to_integer(value, what)
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{what} must be {limits}, got {number}")
    return number


def refuse_pickle(what: str, instead: str) -> NoReturn:
    """Refuse to pickle or copy an object, with what to do instead. Called by its `__reduce__`."""
    raise DtypeError(f"{what} cannot be pickled, copied or sent to another process: {instead}")
