"""The samplers of a chain in NumPy, one function each: they drop candidates, or change their logits.

To add one: a function here, its name in `SAMPLERS`, and its parameters in `SamplerChain` (sampler_chain.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Doubles, Floats, Ints
from ..errors import DataError
from .sampling import penalized_logits

if TYPE_CHECKING:
    from .sampler_chain import ChainStep

COLDEST = 1e-30  # temperature; what is colder changes nothing
TopTokens = Callable[[Any, int], tuple[Ints, Floats]]


class CandidateLogits:
    """Logits of the tokens that are left: a row of the whole vocabulary, or a few tokens, likeliest first.

    Samplers take the form that they need.

    >>> candidates = CandidateLogits(np.array([1, 3, 2, -np.inf], np.float32))
    >>> candidates.ranked()[0].tolist(), candidates.ranked(2)[0].tolist(), candidates.row().tolist()
    ([1, 2, 0], [1, 2], [-inf, 3.0, 2.0, -inf])
    """

    def __init__(self, row: Floats, top_tokens: TopTokens | None = None) -> None:
        self._row: Floats | None = row
        self._least = -np.inf  # logits of a row below it are dropped
        self._vocab, self._top_tokens = len(row), top_tokens
        self._ids, self._logits = np.empty(0, np.int32), np.empty(0)

    @property
    def is_ranked(self) -> bool:
        return self._row is None

    def row(self) -> Floats:
        """Logits of the whole vocabulary, -inf for what was dropped. It may be changed in place."""
        if self._row is None:
            self._row = np.full(self._vocab, -np.inf, np.float32)
            self._row[self._ids] = self._logits
        elif self._least > -np.inf:
            self._row[self._row < self._least] = -np.inf
        self._least = -np.inf
        return self._row

    def floor(self, least: float) -> None:
        """Drop logits below a number: from a row when it is looked at or ranked."""
        self.row()
        self._least = least

    def ranked(self, most: int | None = None) -> tuple[Ints, Doubles]:
        """The likeliest tokens and their logits, at most so many. Ties go to the lower id."""
        if self._row is not None:
            self._ids, self._logits = self._rank(self._row, most)
            self._row = None
            if self._least > -np.inf:
                self.keep(slice(int((self._logits >= self._least).sum())))
                self._least = -np.inf
        if most is not None:
            self.keep(slice(most))
        return self._ids, self._logits

    def keep(self, chosen: Any) -> None:
        """Drop all ranked tokens but those that an index of arrays selects."""
        self._ids, self._logits = self._ids[chosen], self._logits[chosen]

    def scale(self, factor: float) -> None:
        """Multiply the logits that are left."""
        if self._row is not None:
            self.row()
            self._row *= np.float32(factor)
        else:
            self._logits = self._logits * factor

    def _rank(self, row: Floats, most: int | None) -> tuple[Ints, Doubles]:
        if most is not None and most < len(row) and self._top_tokens is not None:
            ids = self._top_tokens(row, most)[0]
        else:
            ids = ranked_ids(row)[:most]
        logits = row[ids].astype(np.float64)
        count = len(ids) if np.isfinite(logits[-1]) else int(np.isfinite(logits).sum())  # -inf is last
        return ids[:count], logits[:count]


def ranked_ids(row: Floats) -> Ints:
    """The ids of a row's tokens, likeliest first: one sort of integers that hold logit and id.

    >>> ranked_ids(np.array([1, -2, 3, 1, -np.inf], np.float32)).tolist()
    [2, 0, 3, 1, 4]
    """
    bits = (row + np.float32(0)).view(np.uint32)  # -0 becomes 0
    ordered = bits ^ np.where(bits >> np.uint32(31), np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    keys = ordered.astype(np.uint64) << np.uint64(32) | ~np.arange(len(row), dtype=np.uint32)
    keys.sort()
    return np.asarray(~keys[::-1].astype(np.uint32), np.int32)


def softmax(logits: Doubles) -> Doubles:
    weights = np.exp(logits - logits[0])  # the largest is first
    return np.asarray(weights / weights.sum())


def penalties(candidates: CandidateLogits, step: ChainStep) -> None:
    """Repetition, presence and frequency penalties, as without a chain."""
    if step.seen is not None:
        ids, counts = step.seen
        row = candidates.row()
        row[ids] = penalized_logits(row[ids], step.params, counts)


def dry(candidates: CandidateLogits, step: ChainStep) -> None:
    """Subtract the penalties of tokens that would extend a repetition."""
    if step.state.dry is not None:
        ids, amounts = step.state.dry
        candidates.row()[ids] -= amounts


def top_n_sigma(candidates: CandidateLogits, step: ChainStep) -> None:
    """Keep logits that are at most so many standard deviations below the largest."""
    if step.chain.top_n_sigma > 0:
        row = candidates.row()
        finite = row if np.isfinite(row.min()) else row[np.isfinite(row)]
        largest = finite.max()
        below = finite - largest  # small numbers, whose squares lose little
        with np.errstate(over="ignore"):  # all stay where the deviation is beyond f32
            mean = float(np.dot(below, np.ones_like(below))) / len(below)
            variance = float(np.dot(below, below)) / len(below) - mean * mean
        candidates.floor(float(largest) - step.chain.top_n_sigma * max(variance, 0.0) ** 0.5)


def top_k(candidates: CandidateLogits, step: ChainStep) -> None:
    """Keep the tokens with the largest logits."""
    if step.params.top_k:
        candidates.ranked(step.params.top_k)


def typical_p(candidates: CandidateLogits, step: ChainStep) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, as few as together reach the probability."""
    if step.chain.typical_p < 1:
        p = softmax(candidates.ranked()[1])
        surprise = -np.log(np.maximum(p, 1e-300))
        nearest = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
        count = int(np.searchsorted(np.cumsum(p[nearest]), step.chain.typical_p)) + 1
        candidates.keep(np.sort(nearest[:count]))


def top_p(candidates: CandidateLogits, step: ChainStep) -> None:
    """Keep the likeliest tokens, as few as together reach the probability; at least one."""
    if step.params.top_p < 1:
        sums = np.cumsum(softmax(candidates.ranked()[1]))
        candidates.keep(slice(int(np.searchsorted(sums, step.params.top_p * sums[-1])) + 1))


def min_p(candidates: CandidateLogits, step: ChainStep) -> None:
    """Keep tokens at least so many times as likely as the likeliest."""
    if step.params.min_p > 0:
        logits = candidates.ranked()[1]
        candidates.keep(slice(int((np.exp(logits - logits[0]) >= step.params.min_p).sum())))


def xtc(candidates: CandidateLogits, step: ChainStep) -> None:
    """With some probability, drop all tokens that reach the threshold but the least likely of them."""
    if step.state.xtc_uniform < step.chain.xtc_probability and step.chain.xtc_threshold <= 0.5:
        count = int((softmax(candidates.ranked()[1]) >= step.chain.xtc_threshold).sum())
        candidates.keep(slice(max(count - 1, 0), None))


def temperature(candidates: CandidateLogits, step: ChainStep) -> None:
    """Divide the logits; at 0 keep the likeliest token. With a range, by more the higher the entropy is."""
    chosen = step.params.temperature
    if step.chain.dynatemp_range > 0:
        chosen = dynamic_temperature(
            candidates.ranked()[1], chosen, step.chain.dynatemp_range, step.chain.dynatemp_exponent
        )
    if chosen == 0:
        candidates.ranked(1)
    elif chosen != 1:
        candidates.scale(1 / max(chosen, COLDEST))


def dynamic_temperature(logits: Doubles, middle: float, radius: float, exponent: float) -> float:
    """A temperature from `middle - radius` to `middle + radius` by the entropy, as a share of the largest there can be.

    >>> dynamic_temperature(np.zeros(4), 1, 0.5, 1), dynamic_temperature(np.array([0, -1e9]), 1, 0.5, 1)
    (1.5, 0.5)
    """
    least = max(0.0, middle - radius)
    if len(logits) < 2:
        return least
    p = softmax(logits)
    entropy = -float((p * np.log(np.maximum(p, 1e-300))).sum())
    share = min(max(entropy, 0.0) / float(np.log(len(logits))), 1.0)
    return float(least + (middle + radius - least) * share**exponent)


def mirostat(candidates: CandidateLogits, step: ChainStep) -> None:
    """Keep tokens that are at most `mu` bits of surprise; at least one."""
    p = softmax(candidates.ranked()[1])
    candidates.keep(slice(max(1, int((-np.log2(np.maximum(p, 1e-300)) <= step.state.mu).sum()))))


SAMPLERS: dict[str, Callable[[CandidateLogits, ChainStep], None]] = {
    "penalties": penalties,
    "dry": dry,
    "top_n_sigma": top_n_sigma,
    "top_k": top_k,
    "temperature": temperature,
    "typical_p": typical_p,
    "top_p": top_p,
    "min_p": min_p,
    "xtc": xtc,
}


def custom(candidates: CandidateLogits, function: Callable[[Floats], Any]) -> None:
    """A sampler of the caller: a function of the logits that returns logits."""
    row, name = candidates.row(), getattr(function, "__name__", type(function).__name__)
    try:
        found = np.asarray(function(row.copy()), np.float32)
    except Exception as error:
        raise DataError(f"the sampler {name} failed: {type(error).__name__}: {error}") from error
    if found.shape != row.shape:
        raise DataError(f"the sampler {name} must return {len(row)} logits, the shape of its result is {found.shape}")
    if np.isnan(found).any() or np.isposinf(found).any():
        raise DataError(f"the sampler {name} returned NaN or +infinity")
    row[:] = found
