"""Sampling and scoring in host memory, for every device whose logits lie there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ..arrays import Floats, Ints, Words
from ..errors import DataError
from ..ops.sampler_chain import ChainState, ChainStep
from ..ops.sampling import SamplingParams
from .batch import Batch, Logprobs, Results, Row, RowResult, Sample, Top, resolve_masks

Sampled = tuple[int, float] | Exception  # a token and its log-probability, or why there is none
_NOTHING = RowResult()  # of a row that wants nothing
_LATER = (0, 0.0)  # a sample of a chain: `decode` makes it


class Sampler(Protocol):
    """A module that samples tokens: `fewbit.ops.cpu`, or `fewbit.ops.sampling`, the slow reference."""

    def sample(
        self,
        logits: Floats,
        params: Sequence[SamplingParams],
        uniforms: Sequence[float],
        seen: Sequence[tuple[Ints, Ints] | None] | None = None,
        *,
        bias: Sequence[tuple[Ints, Floats] | None] | None = None,
        masks: Sequence[Words | None] | None = None,
        threads: int | None = None,
    ) -> tuple[Ints, Floats]: ...

    def log_probabilities(self, logits: Floats, tokens: Sequence[int], *, threads: int | None = None) -> Floats: ...

    def top_tokens(self, logits: Floats, count: int) -> tuple[Ints, Floats]: ...

    def sample_chain(
        self,
        logits: Floats,
        step: ChainStep,
        uniform: float,
        *,
        bias: tuple[Ints, Floats] | None = None,
        mask: Words | None = None,
    ) -> int: ...


class HostHandle:
    """A step whose logits or hidden states are in host memory already."""

    __slots__ = ("_batch", "_sampler", "_threads", "_values")

    def __init__(self, batch: Batch, values: Floats, sampler: Sampler, threads: int | None = None) -> None:
        self._batch, self._values, self._sampler, self._threads = batch, values, sampler, threads

    def values(self) -> Floats:
        return self._values

    def fetch(self) -> Results:
        samples, errors = resolve_masks(self._batch.samples)
        plain = [number for number, (_, one) in enumerate(samples) if one.chain is None]
        sampled: list[Sampled] = [_LATER] * len(samples)
        for number, result in zip(plain, self._sample_each([samples[number] for number in plain]), strict=True):
            sampled[number] = result
        for number, error in errors.items():
            sampled[number] = error
        return decode(self._batch, self._values, sampled, self._sampler, self._threads)

    def _sample_each(self, samples: Sequence[tuple[int, Sample]]) -> list[Sampled]:
        if not samples:
            return []
        try:
            return self._sample(samples)
        except DataError as error:
            if len(samples) == 1:
                return [error]
        return [result for one in samples for result in self._sample_each([one])]  # so that a bad row ends alone

    def _sample(self, samples: Sequence[tuple[int, Sample]]) -> list[Sampled]:
        indices, wanted = [index for index, _ in samples], [one for _, one in samples]
        first, end = indices[0], indices[0] + len(indices)
        logits = self._values[first:end]
        if indices != [*range(first, end)]:  # several from the same logits, some between that are scored, or both
            logits = self._values[indices]
        tokens, logprobs = self._sampler.sample(
            logits,
            [one.params for one in wanted],
            [one.uniform for one in wanted],
            _given([one.seen for one in wanted]),
            bias=_given([one.bias for one in wanted]),
            masks=_given([one.mask for one in wanted]),
            threads=self._threads,
        )
        return [*zip(tokens.tolist(), logprobs.tolist(), strict=True)]


def decode(
    batch: Batch, values: Floats | None, sampled: Iterable[Sampled], sampler: Sampler, threads: int | None = None
) -> Results:
    """The results of a batch's rows.

    Args:
        batch: What was run.
        values: Logits or hidden states, one for each of `logits_indices`; None if no row wants more than a token.
        sampled: What each of `batch.samples` gave.
        sampler: What computes log-probabilities.
        threads: Its threads.
    """
    found, end = iter(sampled), 0
    results: Results = []
    for row in batch.rows:
        first, end = end, end + row.num_logits
        kept = _accepted(row, [next(found) for _ in row.samples])
        if isinstance(kept, Exception):
            results.append(kept)
        elif not row.needs_values:
            results.append(RowResult(tuple(token for token, _ in kept)) if kept else _NOTHING)
        else:
            assert values is not None
            try:
                results.append(_result(row, values[:end], first, kept, sampler, threads))
            except DataError as error:
                results.append(error)
    return results


def _accepted(row: Row, sampled: Sequence[Sampled]) -> list[tuple[int, float]] | Exception:
    """The samples up to the first that is not the draft in its place; an error if there is none."""
    kept = list[tuple[int, float]]()
    for result, draft in zip(sampled, [*row.drafts, None], strict=False):
        if isinstance(result, Exception):
            return kept or result
        kept.append(result)
        if result[0] != draft:
            break
    return kept


def _result(
    row: Row, values: Floats, first: int, kept: list[tuple[int, float]], sampler: Sampler, threads: int | None
) -> RowResult:
    """That of a row whose values are those from `first` on; a row without any of its own sampled from the last."""
    if row.hidden:
        return RowResult(hidden=values[first:])
    scores, tops, logprobs = None, [], []
    if row.score is not None:
        scored = values[first : first + len(row.score.targets)]
        scores = sampler.log_probabilities(scored, row.score.targets, threads=threads)
        if row.score.num_logprobs is not None:
            tops = [Top(*sampler.top_tokens(logits, row.score.num_logprobs)) for logits in scored]
    if row.samples and row.samples[0].chain is not None:  # such a row has no drafts
        kept = [_chain_sample(row.samples[0], row.samples[0].chain, values[-1], sampler, threads)]
    for (_, logprob), one, logits in zip(kept, row.samples, values[len(values) - len(row.samples) :], strict=False):
        if one.num_logprobs is not None:
            logprobs.append(Logprobs(logprob, *sampler.top_tokens(logits, one.num_logprobs)))
    return RowResult(tuple(token for token, _ in kept), logprobs, scores, tops)


def _chain_sample(
    one: Sample, chain: ChainState, logits: Floats, sampler: Sampler, threads: int | None
) -> tuple[int, float]:
    mask = one.mask.result() if isinstance(one.mask, Future) else one.mask
    step = ChainStep(one.params, chain, one.seen)
    token = sampler.sample_chain(logits, step, one.uniform, bias=one.bias, mask=mask)
    if one.num_logprobs is None:
        return token, 0.0  # nobody reads it
    return token, float(sampler.log_probabilities(logits[None], [token], threads=threads)[0])


def _given(values: list[Any]) -> list[Any] | None:
    return values if any(value is not None for value in values) else None
