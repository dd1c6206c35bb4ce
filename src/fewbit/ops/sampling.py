"""Choosing the next token in plain NumPy: slow, obvious, and what every other backend is compared with.

The stages, in this order:

1. Penalties on the logits of tokens seen before: repetition, then presence and frequency. Rounded to float32.
2. Temperature 0: the token with the largest logit, and that is all. Ties go to the lower id, here and below.
3. top_k: the tokens with the largest logits.
4. Softmax of logit / temperature over what is left.
5. top_p: the likeliest tokens, as few as together reach this probability; at least one.
6. min_p: those at least so many times as likely as the likeliest.
7. What is left is walked from the likeliest on, until the sum of the probabilities walked over exceeds `uniform` times
   the sum of all of them.

The log-probability that comes with a token is that of the model's own logits: no penalty, no temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from numbers import Integral, Real
from operator import index
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import to_floats
from ..errors import DataError, DtypeError, FewbitError, ShapeError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Seen = tuple[Ints, Ints]  # token ids, and how often each is in the answer

MOST = 2**31 - 1
_PACK = Struct("7d").pack
_LIMITS = {  # least and most
    "temperature": (0, 1e6),
    "top_k": (0, MOST),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition": (1e-6, 1e6),
    "presence": (-1e6, 1e6),
    "frequency": (-1e6, 1e6),
}


class _Packed:
    __slots__ = ("packed",)
    packed: bytes  # all fields as float64, as the native module wants them; no field itself


@dataclass(frozen=True, slots=True)
class Rule(_Packed):
    """How the next token is chosen.

    >>> Rule(temperature=0)
    Rule(temperature=0.0, top_k=40, top_p=0.95, min_p=0.05, repetition=1.0, presence=0.0, frequency=0.0)
    >>> Rule(top_p=2)
    Traceback (most recent call last):
    fewbit.errors.FewbitError: top_p must be from 0 to 1, 2.0 was given
    """

    temperature: float = 0.8  # 0: the likeliest token
    top_k: int = 40  # 0: all
    top_p: float = 0.95  # 1: all
    min_p: float = 0.05  # 0: all; tokens at least min_p times as likely as the likeliest
    repetition: float = 1.0  # divides positive logits, multiplies negative ones, of tokens in prompt or answer
    presence: float = 0.0  # subtracted from the logit of each token in the answer
    frequency: float = 0.0  # subtracted once for each time a token is in the answer

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            number = _number(name, getattr(self, name))
            if not least <= number <= most:
                raise FewbitError(f"{name} must be from {least:.10g} to {most:.10g}, {number} was given")
            object.__setattr__(self, name, number)
        object.__setattr__(self, "packed", _PACK(*astuple(self)))

    def __reduce__(self) -> tuple[type[Rule], tuple[Any, ...]]:
        return Rule, astuple(self)


def _number(name: str, value: Any) -> float:
    if name == "top_k":
        if not isinstance(value, Integral):
            raise FewbitError(f"{name} must be an integer, not {value!r}")
        return int(value)
    if not isinstance(value, Real):
        raise FewbitError(f"{name} must be a number, not {value!r}")
    return float(value)


def sample(
    logits: Any,
    rules: Sequence[Rule],
    uniforms: Sequence[float] | Doubles,
    seen: Sequence[Seen | None] | None = None,
    *,
    threads: int | None = None,
) -> tuple[Ints, Floats]:
    """Token and its log-probability for each row of logits, (rows, vocab), by the rule of that row.

    `uniforms` holds a number in [0, 1) for each row. `seen` holds for each row None, or distinct token ids and how
    often each is in the answer; 0: in the prompt only. -inf is the logit of a token that cannot be chosen.

    >>> tokens, logprobs = sample([[0, 1, 1], [5, 5, -np.inf]], [Rule(temperature=0), Rule(top_k=0)], [0.9, 0.6])
    >>> tokens.tolist(), [f"{p:.3f}" for p in logprobs]
    ([1, 1], ['-0.862', '-0.693'])
    """
    rows = logit_rows(logits)
    numbers = uniform_array(uniforms, len(rows))
    packed_rules(rules, len(rows))
    tokens, logprobs = np.empty(len(rows), np.int32), np.empty(len(rows), np.float32)
    for r, (row, rule, past) in enumerate(zip(rows, rules, seen_list(seen, len(rows)), strict=True)):
        if not 0 <= numbers[r] < 1:
            raise DataError(f"uniform number of row {r}: {numbers[r]:g} is not at least 0 and less than 1")
        own = _log_softmax(row, r)
        ids, probabilities = distribution(row if past is None else penalized(row, rule, past, r), rule)
        sums = np.cumsum(probabilities)
        place = np.searchsorted(sums, numbers[r] * sums[-1], side="right")
        tokens[r] = ids[min(place, len(ids) - 1)]
        logprobs[r] = own[tokens[r]]
    return tokens, logprobs


def log_probabilities(logits: Any, tokens: Any, *, threads: int | None = None) -> Floats:
    """Log-probability of the given token in each row of logits, (rows, vocab).

    >>> [f"{p:.3f}" for p in log_probabilities([[0, 0], [0, -np.inf]], [1, 0])]
    ['-0.693', '0.000']
    """
    rows = logit_rows(logits)
    ids = int_array(tokens, "tokens")
    refuse_length(ids, len(rows), "tokens")
    out = np.empty(len(rows), np.float32)
    for r, (row, token) in enumerate(zip(rows, ids.tolist(), strict=True)):
        out[r] = _log_softmax(row, r)[_checked_token(token, len(row), f"token of row {r}")]
    return out


def top_tokens(logits: Any, count: int) -> tuple[Ints, Floats]:
    """The likeliest tokens of one row of logits and their log-probabilities, likeliest first.

    >>> ids, logprobs = top_tokens(np.log([1, 4, 4, 1]), 3)
    >>> ids.tolist(), [f"{p:.3f}" for p in logprobs]
    ([1, 2, 0], ['-0.916', '-0.916', '-2.303'])
    """
    row = logit_row(logits)
    most = checked_count(count, len(row))
    own = _log_softmax(row, 0)
    ids = np.argsort(-row, kind="stable")[:most]
    return ids.astype(np.int32), own[ids].astype(np.float32)


def distribution(row: Floats, rule: Rule) -> tuple[Ints, Doubles]:
    """Tokens that may be chosen by penalized logits, likeliest first, and the probability of each.

    >>> ids, probabilities = distribution(np.log([3, 1, 6]), Rule(1, top_k=0, top_p=0.9, min_p=0))
    >>> ids.tolist(), probabilities.round(3).tolist()
    ([2, 0], [0.667, 0.333])
    """
    ids = np.argsort(-row, kind="stable")[: np.isfinite(row).sum()].astype(np.int32)  # -inf is last
    if rule.temperature == 0:
        return ids[:1], np.ones(1)
    if rule.top_k:
        ids = ids[: rule.top_k]
    logits = row[ids].astype(np.float64)
    weights = np.exp((logits - logits[0]) / max(rule.temperature, 1e-30))
    count = len(ids)
    if rule.top_p < 1:
        sums = np.cumsum(weights)
        count = min(count, int(np.searchsorted(sums, rule.top_p * sums[-1])) + 1)
    count = min(count, int((weights >= rule.min_p).sum()))
    return ids[:count], weights[:count] / weights[:count].sum()


def penalized(row: Floats, rule: Rule, seen: Seen, r: int = 0) -> Floats:
    """A row of logits with the penalties for what was seen.

    >>> seen = np.array([0, 1]), np.array([0, 3])
    >>> penalized(np.array([2, -2, 3], np.float32), Rule(repetition=2, presence=0.5), seen)
    array([ 1. , -4.5,  3. ], dtype=float32)
    """
    ids, counts = seen
    for token in ids.tolist():
        _checked_token(token, len(row), f"seen tokens of row {r}")
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"seen tokens of row {r}: a token is given twice")
    if (counts < 0).any():
        raise DataError(f"seen tokens of row {r}: a count is negative")
    logits = row[ids].astype(np.float64)
    logits = np.where(logits > 0, logits / rule.repetition, logits * rule.repetition)
    logits -= rule.presence * (counts > 0) + rule.frequency * counts
    most = float(np.finfo(np.float32).max)
    out = row.copy()
    out[ids] = np.where(np.isneginf(row[ids]), -np.inf, np.clip(logits, -most, most)).astype(np.float32)
    return out


def _log_softmax(row: Floats, r: int) -> Doubles:
    if np.isnan(row).any() or np.isposinf(row).any():
        raise DataError(f"row {r} of the logits holds NaN or +infinity")
    if np.isneginf(row).all():
        raise DataError(f"row {r} of the logits holds no token that can be chosen: all are -infinity")
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _checked_token(token: int, vocab: int, what: str) -> int:
    if not 0 <= token < vocab:
        raise DataError(f"{what}: {token} is not from 0 to {vocab - 1}")
    return token


# What the functions take, for the native ones too.


def logit_rows(logits: Any) -> Floats:
    """Contiguous float32 of (rows, vocab)."""
    fits = type(logits) is np.ndarray and logits.dtype == np.float32 and logits.flags.c_contiguous
    rows: Floats = logits if fits else to_floats(logits, "logits")
    if rows.ndim != 2 or not 0 < rows.shape[1] <= MOST:
        raise ShapeError(f"logits must have shape (rows, vocab), their shape is {rows.shape}")
    return rows


def logit_row(logits: Any) -> Floats:
    """Contiguous float32 of (vocab,)."""
    row = to_floats(logits, "logits")
    if row.ndim != 1 or not 0 < len(row) <= MOST:
        raise ShapeError(f"logits must be one row, (vocab,), their shape is {row.shape}")
    return row


def packed_rules(rules: Sequence[Rule], rows: int) -> bytes:
    """The numbers of all rules, as the native module wants them."""
    refuse_length(rules, rows, "rules")
    try:
        return b"".join([rule.packed for rule in rules])
    except AttributeError:
        raise DtypeError("rules must be Rule objects, one for each row") from None


def uniform_array(uniforms: Sequence[float] | Doubles, rows: int) -> Doubles:
    """One float64 for each row."""
    try:
        numbers = np.ascontiguousarray(uniforms, np.float64)
    except (TypeError, ValueError):
        raise DtypeError("uniforms must be numbers, one for each row") from None
    if numbers.ndim != 1:
        raise ShapeError(f"uniforms must be one number for each row, their shape is {numbers.shape}")
    refuse_length(numbers, rows, "uniforms")
    return numbers


def seen_list(seen: Sequence[Seen | None] | None, rows: int) -> list[Seen | None]:
    """None, or a pair of contiguous int32 arrays of one length, for each row."""
    if seen is None:
        return [None] * rows
    refuse_length(seen, rows, "seen")
    return [None if past is None else _seen_pair(past) for past in seen]


def packed_seen(
    seen: Sequence[Seen | None], rows: int
) -> tuple[Ints, Ints, npt.NDArray[np.int64]] | tuple[None, None, None]:
    """Tokens and counts of all rows, one row after another, and where each row starts; None: there are none."""
    pairs = seen_list(seen, rows)
    given = [past for past in pairs if past is not None]
    if not given:
        return None, None, None
    starts = np.cumsum([0, *(0 if past is None else len(past[0]) for past in pairs)], dtype=np.int64)
    if len(given) == 1:
        return *given[0], starts
    return np.concatenate([ids for ids, _ in given]), np.concatenate([counts for _, counts in given]), starts


def _seen_pair(past: Seen) -> Seen:
    if len(past) != 2:
        raise ShapeError(f"seen must hold token ids and counts, {len(past)} arrays were given")
    ids, counts = int_array(past[0], "seen tokens"), int_array(past[1], "counts of seen tokens")
    if len(ids) != len(counts):
        raise ShapeError(f"seen must hold as many counts as tokens; there are {len(ids)} tokens, {len(counts)} counts")
    return ids, counts


def int_array(values: Any, what: str) -> Ints:
    """Contiguous int32 of one dimension."""
    if type(values) is np.ndarray and values.dtype == np.int32 and values.ndim == 1 and values.flags.c_contiguous:
        return values
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"{what} must be in one row, their shape is {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise DtypeError(f"{what} must be integers, not {array.dtype}")
    if array.size and not -MOST <= int(array.min()) <= int(array.max()) <= MOST:
        raise DataError(f"{what} must fit in 32 bits")
    return np.ascontiguousarray(array, np.int32)


def checked_count(count: Any, vocab: int) -> int:
    """How many tokens are wanted."""
    try:
        number = index(count)
    except TypeError:
        raise DtypeError(f"count must be an integer, not {type(count).__name__}") from None
    if not 0 <= number <= vocab:
        raise DataError(f"count must be from 0 to {vocab}, {number} was given")
    return number


def refuse_length(values: Sequence[Any] | npt.NDArray[Any], rows: int, what: str) -> None:
    if len(values) != rows:
        raise ShapeError(f"{what} must be given for each of {rows} rows, {len(values)} were given")
