"""Integers that callers give, checked once and for all: what is wrong with one is said in a sentence."""

from __future__ import annotations

from operator import index
from typing import Any

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


def to_size(
    value: Any, what: str, least: int = 0, most: int | None = None, error: type[FewbitError] = ShapeError
) -> int:
    """An integer from `least` to `most`.

    >>> to_size(65, "n", 1, 64)
    Traceback (most recent call last):
        ...
    fewbit.errors.ShapeError: n must be from 1 to 64, 65 was given
    """
    number = to_integer(value, what)
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{what} must be {limits}, {number} was given")
    return number
