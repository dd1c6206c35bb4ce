"""Sampling the next token in plain NumPy: slow, obvious, and what every other backend is compared with.

The stages, in this order:

1. Bias is added to the logits of its tokens; tokens that the mask leaves out get -inf. Rounded to float32.
2. Penalties on the logits of tokens seen before: repetition, then presence and frequency. Rounded to float32.
3. Temperature 0: the token with the largest logit, and that is all. Ties go to the lower id, here and below.
4. top_k: the tokens with the largest logits.
5. Softmax of logit / temperature over what is left.
6. top_p: the likeliest tokens, as few as together reach this probability; at least one.
7. min_p: those at least so many times as likely as the likeliest.
8. What is left is walked from the likeliest on, until the sum of the probabilities walked over exceeds `uniform` times
   the sum of all of them.

The log-probability that comes with a token is that of the model's own logits: no bias, mask, penalty or temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from numbers import Integral, Real
from struct import Struct
from typing import Any

import numpy as np

from ..arrays import Doubles, Floats, Ints
from ..errors import ArgumentError, DataError, DtypeError
from .sampling_arrays import (
    BAD_LOGITS,
    MASK_BITS,
    MAX_INT,
    NO_LOGITS,
    NOTHING_ALLOWED,
    Bias,
    Mask,
    Seen,
    bias_list,
    expect_length,
    int_array,
    logit_row,
    logit_rows,
    logits_error,
    mask_list,
    seen_list,
    to_count,
    uniform_array,
)

_MAX_LOGIT = float(np.finfo(np.float32).max)
_PACK = Struct("7d").pack
_LIMITS = {  # least and most
    "temperature": (0, 1e6),
    "top_k": (0, MAX_INT),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 1e6),
    "presence_penalty": (-1e6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
}


class _Packed:
    __slots__ = ("packed",)
    packed: bytes  # all fields as float64, as the native module wants them; no field itself


@dataclass(frozen=True, slots=True)
class SamplingParams(_Packed):
    """How the next token is sampled.

    >>> SamplingParams(temperature=0, repetition_penalty=1.1).top_k
    40
    >>> SamplingParams(top_p=2)
    Traceback (most recent call last):
    fewbit.errors.ArgumentError: top_p must be from 0 to 1, got 2.0

    Args:
        temperature: Divides the logits. 0: the likeliest token.
        top_k: Sample from this many of the likeliest tokens. 0: from all.
        top_p: Sample from the fewest tokens that together have this probability. 1: from all.
        min_p: Sample from tokens at least this many times as likely as the likeliest. 0: from all.
        repetition_penalty: Divides positive logits, and multiplies negative ones, of tokens in prompt or output.
        presence_penalty: Subtracted from the logit of each token in the output.
        frequency_penalty: Subtracted from the logit of a token for each time that it is in the output.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            number = _number(name, getattr(self, name))
            if not least <= number <= most:
                raise ArgumentError(f"{name} must be from {least:.10g} to {most:.10g}, got {number}")
            object.__setattr__(self, name, number)
        object.__setattr__(self, "packed", _PACK(*astuple(self)))

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def max_candidates(self) -> int:
        """The number of largest logits that a token is sampled from. 0: all of them."""
        return 1 if self.temperature == 0 else self.top_k

    def __reduce__(self) -> tuple[type[SamplingParams], tuple[Any, ...]]:
        return SamplingParams, astuple(self)


def _number(name: str, value: Any) -> float:
    if name == "top_k":
        if not isinstance(value, Integral):
            raise DtypeError(f"{name} must be an integer, not {value!r}")
        return int(value)
    if not isinstance(value, Real):
        raise DtypeError(f"{name} must be a number, not {value!r}")
    return float(value)


def sample(
    logits: Any,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float] | Doubles,
    seen: Sequence[Seen | None] | None = None,
    *,
    bias: Sequence[Bias | None] | None = None,
    masks: Sequence[Mask | None] | None = None,
    threads: int | None = None,
) -> tuple[Ints, Floats]:
    """Token and its log-probability for each row of logits, (rows, vocab), by the params of that row.

    `uniforms` holds a number in [0, 1) for each row. The others hold for each row None, or: `seen`, distinct token ids
    and how often each is in the output (0: in the prompt only); `bias`, distinct token ids and what is added to their
    logits; `masks`, a uint32 for every 32 tokens, bit i % 32 of word i // 32 set where token i may be sampled. -inf is
    the logit of a token that cannot be sampled. Rows that nothing can be sampled from are named by a LogitsError.

    >>> params = [SamplingParams(temperature=0), SamplingParams(top_k=0)]
    >>> tokens, logprobs = sample([[0, 1, 1], [5, 5, -np.inf]], params, [0.9, 0.6])
    >>> tokens.tolist(), [f"{p:.3f}" for p in logprobs]
    ([1, 1], ['-0.862', '-0.693'])
    >>> sample([[0, 1, 1]], params[:1], [0], masks=[np.array([0b101], np.uint32)])[0].tolist()
    [2]
    """
    rows = logit_rows(logits)
    count, vocab = rows.shape
    packed_params(params, count)
    numbers = _checked_uniforms(uniforms, count)
    past, added = _checked_seen(seen, count, vocab), _checked_bias(bias, count, vocab)
    allowed = mask_list(masks, count, vocab)
    tokens, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
    bad = []
    for r, row in enumerate(rows):
        own = masked(biased(row, added[r]), allowed[r])
        reason = _row_error(row) or (NOTHING_ALLOWED if np.isneginf(own).all() else 0)
        if reason:
            bad.append((r, reason))
            continue
        tokens[r] = _walk(penalized(own, params[r], past[r]), params[r], numbers[r])
        logprobs[r] = _log_softmax(row)[tokens[r]]
    if bad:
        raise logits_error(bad)
    return tokens, logprobs


def log_probabilities(logits: Any, tokens: Any, *, threads: int | None = None) -> Floats:
    """Log-probability of the given token in each row of logits, (rows, vocab).

    >>> [f"{p:.3f}" for p in log_probabilities([[0, 0], [0, -np.inf]], [1, 0])]
    ['-0.693', '0.000']
    """
    rows = logit_rows(logits)
    ids = int_array(tokens, "tokens")
    expect_length(ids, len(rows), "tokens")
    for r in range(len(rows)):
        _check_tokens(ids[r : r + 1], rows.shape[1], f"token of row {r}")
    _refuse_bad(rows)
    return np.array([_log_softmax(row)[token] for row, token in zip(rows, ids, strict=True)], np.float32)


def top_tokens(logits: Any, count: int) -> tuple[Ints, Floats]:
    """The likeliest tokens of one row of logits and their log-probabilities, likeliest first.

    >>> ids, logprobs = top_tokens(np.log([1, 4, 4, 1]), 3)
    >>> ids.tolist(), [f"{p:.3f}" for p in logprobs]
    ([1, 2, 0], ['-0.916', '-0.916', '-2.303'])
    """
    row = logit_row(logits)
    most = to_count(count, len(row))
    _refuse_bad(row[None])
    ids = np.argsort(-row, kind="stable")[:most]
    return ids.astype(np.int32), _log_softmax(row)[ids].astype(np.float32)


def biased(row: Floats, bias: Bias | None) -> Floats:
    """A row of logits with its bias; what is -inf stays so.

    >>> biased(np.array([1, 2, -np.inf], np.float32), (np.array([0, 2]), np.array([0.5, 9], np.float32)))
    array([ 1.5,  2. , -inf], dtype=float32)
    """
    if bias is None:
        return row
    ids, values = bias
    out = row.copy()
    sums = row[ids].astype(np.float64) + values
    out[ids] = np.where(np.isneginf(sums), -np.inf, np.clip(sums, -_MAX_LOGIT, _MAX_LOGIT)).astype(np.float32)
    return out


def masked(row: Floats, mask: Mask | None) -> Floats:
    """A row of logits, -inf where the mask has no bit.

    >>> masked(np.array([1, 2, 3], np.float32), np.array([0b110], np.uint32))
    array([-inf,   2.,   3.], dtype=float32)
    """
    if mask is None:
        return row
    at = np.arange(len(row))
    return np.where(mask[at // MASK_BITS] >> (at % MASK_BITS).astype(np.uint32) & 1, row, np.float32(-np.inf))


def penalized(row: Floats, params: SamplingParams, seen: Seen | None) -> Floats:
    """A row of logits with the penalties for what was seen.

    >>> seen = np.array([0, 1]), np.array([0, 3])
    >>> penalized(np.array([2, -2, 3], np.float32), SamplingParams(repetition_penalty=2, presence_penalty=0.5), seen)
    array([ 1. , -4.5,  3. ], dtype=float32)
    """
    if seen is None:
        return row
    out = row.copy()
    out[seen[0]] = penalized_logits(row[seen[0]], params, seen[1])
    return out


def penalized_logits(before: Floats, params: SamplingParams, counts: Ints) -> Floats:
    """Logits of tokens that were seen, with the penalties for them."""
    logits = before.astype(np.float64)
    by = params.repetition_penalty
    logits = np.where(logits > 0, logits / by, logits * by)
    logits -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    found = np.where(np.isneginf(before), -np.inf, np.clip(logits, -_MAX_LOGIT, _MAX_LOGIT))
    return np.asarray(found, np.float32)


def distribution(row: Floats, params: SamplingParams) -> tuple[Ints, Doubles]:
    """Tokens that may be sampled by penalized logits, likeliest first, and the probability of each.

    >>> ids, probabilities = distribution(np.log([3, 1, 6]), SamplingParams(1, top_k=0, top_p=0.9, min_p=0))
    >>> ids.tolist(), probabilities.round(3).tolist()
    ([2, 0], [0.667, 0.333])
    """
    ids = np.argsort(-row, kind="stable")[: np.isfinite(row).sum()].astype(np.int32)  # -inf is last
    if params.temperature == 0:
        return ids[:1], np.ones(1)
    if params.top_k:
        ids = ids[: params.top_k]
    logits = row[ids].astype(np.float64)
    weights = np.exp((logits - logits[0]) / max(params.temperature, 1e-30))
    count = len(ids)
    if params.top_p < 1:
        sums = np.cumsum(weights)
        count = min(count, int(np.searchsorted(sums, params.top_p * sums[-1])) + 1)
    count = min(count, int((weights >= params.min_p).sum()))
    return ids[:count], weights[:count] / weights[:count].sum()


def _walk(row: Floats, params: SamplingParams, uniform: float) -> int:
    ids, probabilities = distribution(row, params)
    sums = np.cumsum(probabilities)
    return int(ids[min(np.searchsorted(sums, uniform * sums[-1], side="right"), len(ids) - 1)])


def _row_error(row: Floats) -> int:
    if np.isnan(row).any() or np.isposinf(row).any():
        return BAD_LOGITS
    return NO_LOGITS if np.isneginf(row).all() else 0


def _refuse_bad(rows: Floats) -> None:
    bad = [(r, reason) for r, row in enumerate(rows) if (reason := _row_error(row))]
    if bad:
        raise logits_error(bad)


def _log_softmax(row: Floats) -> Doubles:
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def packed_params(params: Sequence[SamplingParams], rows: int) -> bytes:
    """The numbers of all params, as the native module wants them."""
    expect_length(params, rows, "params")
    try:
        return b"".join([one.packed for one in params])
    except AttributeError:
        raise DtypeError("params must be SamplingParams, one for each row") from None


def _checked_uniforms(uniforms: Sequence[float] | Doubles, rows: int) -> Doubles:
    numbers = uniform_array(uniforms, rows)
    for r, number in enumerate(numbers.tolist()):
        if not 0 <= number < 1:
            raise DataError(f"uniform number of row {r}: {number:g} is not at least 0 and less than 1")
    return numbers


def _checked_seen(seen: Sequence[Seen | None] | None, rows: int, vocab: int) -> list[Seen | None]:
    pairs = seen_list(seen, rows)
    for r, pair in enumerate(pairs):
        if pair is not None:
            _check_tokens(pair[0], vocab, f"seen tokens of row {r}")
            if (pair[1] < 0).any():
                raise DataError(f"seen tokens of row {r}: a count is negative")
    return pairs


def _checked_bias(bias: Sequence[Bias | None] | None, rows: int, vocab: int) -> list[Bias | None]:
    pairs = bias_list(bias, rows)
    for r, pair in enumerate(pairs):
        if pair is not None:
            _check_tokens(pair[0], vocab, f"bias of row {r}")
            if np.isnan(pair[1]).any() or np.isposinf(pair[1]).any():
                raise DataError(f"bias of row {r}: a value is NaN or +infinity")
    return pairs


def _check_tokens(ids: Ints, vocab: int, what: str) -> None:
    for token in ids.tolist():
        if not 0 <= token < vocab:
            raise DataError(f"{what}: {token} is not from 0 to {vocab - 1}")
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"{what}: a token is given twice")
