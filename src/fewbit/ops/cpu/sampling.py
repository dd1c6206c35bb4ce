"""Sampling with native code: what `ops.sampling` does, fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import _native
from ...arrays import Doubles, Floats, Ints
from ...errors import DataError
from ..sampling import SamplingParams, packed_params
from ..sampling_arrays import (
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
    packed_masks,
    packed_pairs,
    seen_list,
    to_count,
    uniform_array,
)
from .machine import checked_threads

_NO_PAIRS = (None, None, None)


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
    """As in `ops.sampling`, natively: rows at the same time, and no row is sorted as a whole."""
    if seen is None and bias is None and masks is None:
        done = _plain_sample(logits, params, uniforms, threads)
        if done is not None:
            return done
    rows = logit_rows(logits)
    count, vocab = rows.shape
    tokens, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
    packed, numbers = packed_params(params, count), uniform_array(uniforms, count)
    seen_ids, counts, seen_starts = _NO_PAIRS if seen is None else packed_pairs(seen_list(seen, count))
    bias_ids, values, bias_starts = _NO_PAIRS if bias is None else packed_pairs(bias_list(bias, count))
    mask_bits, mask_rows = (None, None) if masks is None else packed_masks(mask_list(masks, count, vocab))
    try:
        bad = _native.sample(
            rows, packed, numbers, seen_ids, counts, seen_starts, bias_ids, values, bias_starts, mask_bits, mask_rows,
            tokens, logprobs, checked_threads(threads),
        )  # fmt: skip
    except ValueError as error:
        raise DataError(str(error)) from None
    if bad:
        raise logits_error(bad)
    return tokens, logprobs


def _plain_sample(
    logits: Any, params: Sequence[SamplingParams], uniforms: Any, threads: int | None
) -> tuple[Ints, Floats] | None:
    """The usual case with as little Python as can be; None: something is wrong, and the long way says what."""
    try:
        count = len(params)
        tokens, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
        packed = params[0].packed if count == 1 else b"".join([one.packed for one in params])
        numbers = np.array(uniforms, np.float64)
        bad = _native.sample(
            logits, packed, numbers, None, None, None, None, None, None, None, None, tokens, logprobs,
            checked_threads(threads),
        )  # fmt: skip
    except (TypeError, ValueError, AttributeError):
        return None
    return None if bad else (tokens, logprobs)


def log_probabilities(logits: Any, tokens: Any, *, threads: int | None = None) -> Floats:
    """As in `ops.sampling`, natively."""
    rows = logit_rows(logits)
    ids = int_array(tokens, "tokens")
    expect_length(ids, len(rows), "tokens")
    out = np.empty(len(rows), np.float32)
    try:
        bad = _native.log_probabilities(rows, ids, out, checked_threads(threads))
    except ValueError as error:
        raise DataError(str(error)) from None
    if bad:
        raise logits_error(bad)
    return out


def top_tokens(logits: Any, count: int) -> tuple[Ints, Floats]:
    """As in `ops.sampling`, natively."""
    row = logit_row(logits)
    most = to_count(count, len(row))
    tokens, logprobs = np.empty(most, np.int32), np.empty(most, np.float32)
    try:
        bad = _native.top_tokens(row, tokens, logprobs)
    except ValueError as error:
        raise DataError(str(error)) from None
    if bad:
        raise logits_error(bad)
    return tokens, logprobs
