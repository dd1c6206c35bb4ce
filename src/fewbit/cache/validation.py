"""What users give to a KV cache: tokens, K, V, q and the options of attention, with a sentence for what is wrong."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Floats, to_floats
from ..errors import DataError, DtypeError, PositionError, ShapeError
from ..formats import Format
from ..validation import to_integer

MAX_TOKENS = (1 << 31) - 1  # a position has 32 bits
FEW = 8192  # values whose squares are summed by one thread, faster than the least and the greatest are found


def to_count(tokens: int) -> int:
    number = tokens if type(tokens) is int else to_integer(tokens, "a number of tokens")
    if not 0 <= number <= MAX_TOKENS:
        limit = "at least 0" if number < 0 else f"at most {MAX_TOKENS}"
        raise PositionError(f"a number of tokens must be {limit}, got {number}")
    return number


def to_requests(requests: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sequences, each with a number of tokens.

    >>> to_requests([3])
    Traceback (most recent call last):
        ...
    fewbit.errors.DtypeError: `reserve` takes pairs of a sequence and a number of tokens, like [(sequence, 32)]
    """
    try:
        return [(sequence, count) for sequence, count in requests]
    except (TypeError, ValueError):
        raise DtypeError("`reserve` takes pairs of a sequence and a number of tokens, like [(sequence, 32)]") from None


def to_path(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.fsdecode(path))
    except TypeError:
        raise DtypeError(f"a path is a str or a Path, not {type(path).__name__}") from None


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


def to_rows(x: Any, what: str, shape: tuple[int, int, int], fmt: Format, max_value: float) -> Floats:
    """K or V that can be packed.

    >>> from fewbit.formats import get
    >>> to_rows([[[1e9]]], "k", (1, 1, 1), get("f16"), 65504.0)
    Traceback (most recent call last):
        ...
    fewbit.errors.DataError: k holds 1e+09; kept in f16, it takes numbers from -65504 to 65504
    """
    rows = to_floats(x, what)
    if rows.shape != shape:
        raise ShapeError(f"{what} must have shape (tokens, kv_heads, dim) = {shape}, its shape is {rows.shape}")
    small = rows.size <= FEW and float(np.vdot(rows, rows)) <= max_value * max_value  # NaN and infinity are not
    if rows.size and not small:
        least, greatest = float(rows.min()), float(rows.max())
        if not (-max_value <= least and greatest <= max_value):  # so that NaN is refused
            wrong = greatest if not greatest <= max_value else least
            limits = f"from {-max_value:g} to {max_value:g}"
            raise DataError(f"{what} holds {wrong:g}; kept in {fmt}, it takes numbers {limits}")
    return rows


def to_queries(q: Any, tokens: int, kv_heads: int, dim: int) -> Floats:
    queries = to_floats(q, "q")
    if queries.ndim == 3 and queries.shape[::2] == (tokens, dim):
        q_heads = queries.shape[1]
        if q_heads and q_heads % kv_heads == 0:
            return queries
    wanted = f"({tokens}, a multiple of {kv_heads}, {dim})"
    raise ShapeError(f"q must have shape (tokens, q_heads, dim) = {wanted}, its shape is {queries.shape}")


def to_sinks(sinks: Any, q_heads: int) -> Floats | None:
    if sinks is None:
        return None
    logits = to_floats(sinks, "sinks")
    if logits.shape != (q_heads,):
        raise ShapeError(f"sinks must hold a logit for each of {q_heads} heads of q, the shape is {logits.shape}")
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise DataError("sinks must be finite, or -inf for a head that has none")
    return logits


def to_number(value: float, what: str, least: float = -math.inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DtypeError(f"{what} is a number, not {type(value).__name__}") from None
    if not math.isfinite(number) or number < least:
        raise DataError(f"{what} must be finite{' and at least 0' if least == 0 else ''}, got {number}")
    return number
