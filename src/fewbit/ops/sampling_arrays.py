"""What the sampling functions take, as arrays: for the reference and for native code alike."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arrays import Doubles, Floats, Ints, Longs, to_floats
from ..errors import DataError, DtypeError, LogitsError, ShapeError

Mask = npt.NDArray[np.uint32]  # bit i % 32 of word i // 32: token i may be sampled
Seen = tuple[Ints, Ints]  # token ids, and how often each is in the output
Bias = tuple[Ints, Floats]  # token ids, and what is added to the logit of each

MAX_INT = 2**31 - 1
MASK_BITS = 32

# Why nothing can be sampled from a row; csrc/sample.h has the same numbers.
BAD_LOGITS, NO_LOGITS, NOTHING_ALLOWED = 1, 2, 3
_REASONS = {
    BAD_LOGITS: "row {} of the logits holds NaN or +infinity",
    NO_LOGITS: "row {} of the logits holds no token that can be sampled: all are -infinity",
    NOTHING_ALLOWED: "bias and mask of row {} leave no token that can be sampled",
}
_MAX_REASONS = 3

_Number = TypeVar("_Number", bound=np.generic)


def logit_rows(logits: Any) -> Floats:
    """Contiguous float32 of (rows, vocab)."""
    fits = type(logits) is np.ndarray and logits.dtype == np.float32 and logits.flags.c_contiguous
    rows: Floats = logits if fits else to_floats(logits, "logits")
    if rows.ndim != 2 or not 0 < rows.shape[1] <= MAX_INT:
        raise ShapeError(f"logits must have shape (rows, vocab), their shape is {rows.shape}")
    return rows


def logit_row(logits: Any) -> Floats:
    """Contiguous float32 of (vocab,)."""
    row = to_floats(logits, "logits")
    if row.ndim != 1 or not 0 < len(row) <= MAX_INT:
        raise ShapeError(f"logits must be one row, (vocab,), their shape is {row.shape}")
    return row


def uniform_array(uniforms: Sequence[float] | Doubles, rows: int) -> Doubles:
    """One float64 for each row."""
    try:
        numbers = np.ascontiguousarray(uniforms, np.float64)
    except (TypeError, ValueError):
        raise DtypeError("uniforms must be numbers, one for each row") from None
    if numbers.ndim != 1:
        raise ShapeError(f"uniforms must be one number for each row, their shape is {numbers.shape}")
    expect_length(numbers, rows, "uniforms")
    return numbers


def seen_list(seen: Sequence[Seen | None] | None, rows: int) -> list[Seen | None]:
    """None, or a pair of contiguous arrays of one length, for each row."""
    if seen is None:
        return [None] * rows
    expect_length(seen, rows, "seen")
    return [None if past is None else _seen_pair(past) for past in seen]


def _seen_pair(past: Seen) -> Seen:
    if len(past) != 2:
        raise ShapeError(f"seen must hold token ids and counts, {len(past)} arrays were given")
    ids, counts = int_array(past[0], "seen tokens"), int_array(past[1], "counts of seen tokens")
    if len(ids) != len(counts):
        raise ShapeError(f"seen must hold as many counts as tokens; there are {len(ids)} tokens, {len(counts)} counts")
    return ids, counts


def bias_list(bias: Sequence[Bias | None] | None, rows: int) -> list[Bias | None]:
    """None, or a pair of contiguous arrays of one length, for each row."""
    if bias is None:
        return [None] * rows
    expect_length(bias, rows, "bias")
    return [None if one is None else _bias_pair(one) for one in bias]


def _bias_pair(bias: Bias) -> Bias:
    if len(bias) != 2:
        raise ShapeError(f"bias must hold token ids and values, {len(bias)} arrays were given")
    ids, values = int_array(bias[0], "tokens of the bias"), to_floats(bias[1], "values of the bias")
    if values.shape != ids.shape:
        raise ShapeError(f"bias must hold a value for each of {len(ids)} tokens, their shape is {values.shape}")
    return ids, values


def mask_list(masks: Sequence[Mask | None] | None, rows: int, vocab: int) -> list[Mask | None]:
    """None, or the words of a mask, for each row."""
    if masks is None:
        return [None] * rows
    expect_length(masks, rows, "masks")
    return [None if mask is None else _mask(mask, vocab, r) for r, mask in enumerate(masks)]


def _mask(mask: Any, vocab: int, r: int) -> Mask:
    array = np.asarray(mask)
    length = -(-vocab // MASK_BITS)
    if array.dtype != np.uint32:
        raise DtypeError(f"mask of row {r} must be uint32, not {array.dtype}")
    if array.shape != (length,):
        raise ShapeError(f"mask of row {r} must hold {length} words of 32 tokens, its shape is {array.shape}")
    return array


def packed_pairs(
    pairs: Sequence[tuple[Ints, npt.NDArray[_Number]] | None],
) -> tuple[Ints, npt.NDArray[_Number], Longs] | tuple[None, None, None]:
    """Tokens and numbers of all rows, one row after another, and where each row starts; None: there are none."""
    given = [pair for pair in pairs if pair is not None]
    if not given:
        return None, None, None
    starts = np.cumsum([0, *(0 if pair is None else len(pair[0]) for pair in pairs)], dtype=np.int64)
    ids, numbers = zip(*given, strict=True)
    if len(given) == 1:
        return ids[0], numbers[0], starts
    return np.concatenate(ids), np.concatenate(numbers), starts


def packed_masks(masks: Sequence[Mask | None]) -> tuple[Mask, Ints] | tuple[None, None]:
    """The masks that there are, and for each row which one is its own, or -1; None: there are none."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None, None
    has = np.array([mask is not None for mask in masks])
    return np.stack(given), np.where(has, np.cumsum(has) - 1, -1).astype(np.int32)


def int_array(values: Any, what: str) -> Ints:
    """Contiguous int32 of one dimension."""
    if type(values) is np.ndarray and values.dtype == np.int32 and values.ndim == 1 and values.flags.c_contiguous:
        return values
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"{what} must be in one row, their shape is {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise DtypeError(f"{what} must be integers, not {array.dtype}")
    if array.size and not -MAX_INT <= int(array.min()) <= int(array.max()) <= MAX_INT:
        raise DataError(f"{what} must fit in 32 bits")
    return np.ascontiguousarray(array, np.int32)


def to_count(count: Any, vocab: int) -> int:
    """How many tokens are asked for."""
    try:
        number = index(count)
    except TypeError:
        raise DtypeError(f"count must be an integer, not {type(count).__name__}") from None
    if not 0 <= number <= vocab:
        raise DataError(f"count must be from 0 to {vocab}, got {number}")
    return number


def expect_length(values: Sequence[Any] | npt.NDArray[Any], rows: int, what: str) -> None:
    if len(values) != rows:
        raise ShapeError(f"{what} must be given for each of {rows} rows, {len(values)} were given")


def logits_error(bad: Sequence[tuple[int, int]]) -> LogitsError:
    """What is wrong with which rows.

    >>> logits_error([(2, NOTHING_ALLOWED)])
    LogitsError('bias and mask of row 2 leave no token that can be sampled')
    """
    texts = [_REASONS[reason].format(row) for row, reason in bad]
    if len(texts) > _MAX_REASONS:
        texts[_MAX_REASONS:] = [f"and {len(texts) - _MAX_REASONS} more rows"]
    return LogitsError("; ".join(texts), [row for row, _ in bad])
