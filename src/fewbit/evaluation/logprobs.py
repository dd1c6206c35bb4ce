"""Log-probabilities of rows of logits, and how much two models differ in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Doubles, Floats, Ints

BLOCK_VALUES = 4 << 20  # logits that are looked at together
CODES = 65535  # steps of a log-probability in 16 bits
RANGE = 24.0  # nats below the likeliest token that the codes reach


class TopLogprobs(NamedTuple):
    """The likeliest tokens of rows, best first, and the probability of all others together."""

    tokens: Ints  # (rows, k)
    logprobs: Floats  # (rows, k)
    rest: Floats  # (rows,): the log of what the other tokens sum up to
    targets: Floats  # (rows,): log-probabilities of the tokens that came

    def part(self, begin: int, end: int) -> TopLogprobs:
        """Some of the rows."""
        return TopLogprobs(
            self.tokens[begin:end], self.logprobs[begin:end], self.rest[begin:end], self.targets[begin:end]
        )


def joined(parts: Sequence[TopLogprobs]) -> TopLogprobs:
    """All rows of several parts."""
    return TopLogprobs(
        np.concatenate([part.tokens for part in parts]), np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.rest for part in parts]), np.concatenate([part.targets for part in parts]),
    )  # fmt: skip


class Compared(NamedTuple):
    """Rows of a model beside those of a reference."""

    divergence: Doubles  # KL(reference || model), in nats
    agrees: np.ndarray[tuple[int], np.dtype[np.bool_]]  # both find the same token likeliest
    targets: Floats  # the reference's log-probabilities of the tokens that came


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities, row by row.

    >>> np.exp(log_softmax(np.zeros((1, 4), np.float32))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(shifted - np.log(total).astype(np.float32), np.float32)


def of_targets(logprobs: Floats, targets: Ints) -> Floats:
    """The log-probability of one token of each row."""
    return np.take_along_axis(logprobs, targets[:, None], axis=1)[:, 0]


def compare(logprobs: Floats, reference: Floats, targets: Ints) -> Compared:
    """Rows of a model beside all log-probabilities of a reference."""
    p = np.exp(reference)
    with np.errstate(invalid="ignore"):
        terms = np.where(p > 0, p * (reference - logprobs), 0)
    divergence = np.maximum(terms.sum(axis=1, dtype=np.float64), 0)
    agrees = logprobs.argmax(axis=1) == reference.argmax(axis=1)
    return Compared(divergence, agrees, of_targets(reference, targets))


def compare_top(logprobs: Floats, reference: TopLogprobs) -> Compared:
    """The same where only the likeliest tokens of the reference are known. The others count as one token, so the
    divergence is at most the true one."""
    own = np.take_along_axis(logprobs, reference.tokens, axis=1).astype(np.float64)
    other = np.log(np.maximum(-np.expm1(_log_sum(own)), np.finfo(np.float64).tiny))
    known, rest = reference.logprobs.astype(np.float64), reference.rest.astype(np.float64)
    with np.errstate(invalid="ignore"):
        tail = np.where(np.isfinite(rest), np.exp(rest) * (rest - other), 0)
    divergence = np.maximum((np.exp(known) * (known - own)).sum(axis=1) + tail, 0)
    return Compared(divergence, logprobs.argmax(axis=1) == reference.tokens[:, 0], reference.targets)


def top_logprobs(logprobs: Floats, targets: Ints, count: int) -> TopLogprobs:
    """The `count` likeliest tokens of each row."""
    rows, vocab = logprobs.shape
    k = min(count, vocab)
    found = np.argpartition(-logprobs, k - 1, axis=1)[:, :k] if k < vocab else np.tile(np.arange(vocab), (rows, 1))
    values = np.take_along_axis(logprobs, found, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    tokens, values = np.take_along_axis(found, order, axis=1), np.take_along_axis(values, order, axis=1)
    return TopLogprobs(tokens.astype(np.int32), values, _rest(logprobs, tokens), of_targets(logprobs, targets))


def _rest(logprobs: Floats, tokens: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Floats:
    """The log of the probability of all tokens but those that are given."""
    others = logprobs.copy()
    np.put_along_axis(others, tokens, -np.inf, axis=1)
    return _log_sum(others.astype(np.float64)).astype(np.float32)


def _log_sum(logprobs: Doubles) -> Doubles:
    """The log of the sum of probabilities, at most 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(np.log(np.exp(logprobs).sum(axis=1)), -np.finfo(np.float64).eps))
