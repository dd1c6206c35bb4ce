"""What the KV cache takes: numbers and tokens that are checked, with a sentence for what is wrong."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import index

from ..errors import DataError, DtypeError, PositionError, ShapeError


def to_integer(value: int, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise DtypeError(f"{what} is an integer, not {type(value).__name__}") from None


def to_count(tokens: int) -> int:
    number = to_integer(tokens, "a number of tokens")
    if number < 0:
        raise PositionError(f"a number of tokens is not negative, {number} was given")
    return number


def to_size(value: int, what: str, least: int = 0) -> int:
    number = to_integer(value, what)
    if number < least:
        raise ShapeError(f"{what} must be at least {least}, {number} was given")
    return number


def to_tokens(tokens: Iterable[int]) -> array[int]:
    """Tokens as an array of 32-bit numbers.

    >>> to_tokens(range(3))
    array('I', [0, 1, 2])
    """
    if isinstance(tokens, bytes | bytearray):  # an array would take four of them as one token
        raise DtypeError(f"tokens are integers, not {type(tokens).__name__}")
    try:
        return array("I", tokens.tolist() if hasattr(tokens, "tolist") else tokens)  # fast for NumPy's arrays
    except (TypeError, ValueError) as error:
        raise DtypeError(f"tokens are integers: {error}") from None
    except OverflowError:
        raise DataError("a token is a number from 0 to 2**32 - 1") from None
