"""Choosing tokens with native code: what `ops.sampling` does, fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import DataError
from ..sampling import (
    Floats,
    Ints,
    Rule,
    Seen,
    checked_count,
    int_array,
    logit_row,
    logit_rows,
    packed_rules,
    packed_seen,
    refuse_length,
    uniform_array,
)
from .machine import checked_threads


def sample(
    logits: Any,
    rules: Sequence[Rule],
    uniforms: Sequence[float] | npt.NDArray[np.float64],
    seen: Sequence[Seen | None] | None = None,
    *,
    threads: int | None = None,
) -> tuple[Ints, Floats]:
    """As in `ops.sampling`, natively: rows at the same time, and no row is sorted as a whole."""
    if seen is None:
        done = _plain_sample(logits, rules, uniforms, threads)
        if done is not None:
            return done
    rows = logit_rows(logits)
    count = len(rows)
    tokens, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
    packed, numbers = packed_rules(rules, count), uniform_array(uniforms, count)
    ids, counts, starts = (None, None, None) if seen is None else packed_seen(seen, count)
    try:
        _native.sample(rows, packed, numbers, ids, counts, starts, tokens, logprobs, checked_threads(threads))
    except ValueError as error:
        raise DataError(str(error)) from None
    return tokens, logprobs


def _plain_sample(logits: Any, rules: Sequence[Rule], uniforms: Any, threads: int | None) -> tuple[Ints, Floats] | None:
    """The usual case with as little Python as can be; None: something is wrong, and the long way says what."""
    try:
        count = len(rules)
        tokens, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
        packed = rules[0].packed if count == 1 else b"".join([rule.packed for rule in rules])
        numbers = np.array(uniforms, np.float64)
        _native.sample(logits, packed, numbers, None, None, None, tokens, logprobs, checked_threads(threads))
    except (TypeError, ValueError, AttributeError):
        return None
    return tokens, logprobs


def log_probabilities(logits: Any, tokens: Any, *, threads: int | None = None) -> Floats:
    """As in `ops.sampling`, natively."""
    rows = logit_rows(logits)
    ids = int_array(tokens, "tokens")
    refuse_length(ids, len(rows), "tokens")
    out = np.empty(len(rows), np.float32)
    try:
        _native.log_probabilities(rows, ids, out, checked_threads(threads))
    except ValueError as error:
        raise DataError(str(error)) from None
    return out


def top_tokens(logits: Any, count: int) -> tuple[Ints, Floats]:
    """As in `ops.sampling`, natively."""
    row = logit_row(logits)
    most = checked_count(count, len(row))
    tokens, logprobs = np.empty(most, np.int32), np.empty(most, np.float32)
    try:
        _native.top_tokens(row, tokens, logprobs)
    except ValueError as error:
        raise DataError(str(error)) from None
    return tokens, logprobs
