"""Sampling and scoring in host memory, for every device whose logits lie there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ..arrays import Floats, Ints, Words
from ..errors import DataError
from ..ops.sampler_chain import ChainStep, sample_chain
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
        token = None if row.sample is None else next(found)
        if isinstance(token, Exception):
            results.append(token)
        elif not row.needs_values:
            results.append(_NOTHING if token is None else RowResult((token[0],)))
        else:
            assert values is not None
            try:
                results.append(_result(row, values[:end], first, token, sampler, threads))
            except DataError as error:
                results.append(error)
    return results


def _result(
    row: Row, values: Floats, first: int, token: tuple[int, float] | None, sampler: Sampler, threads: int | None
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
    if row.sample is not None and row.sample.chain is not None:
        token = _chain_sample(row.sample, values[-1], sampler, threads)
    if token is not None and row.sample is not None and row.sample.num_logprobs is not None:
        logprobs = [Logprobs(token[1], *sampler.top_tokens(values[-1], row.sample.num_logprobs))]
    return RowResult(() if token is None else (token[0],), logprobs, scores, tops)


def _chain_sample(one: Sample, logits: Floats, sampler: Sampler, threads: int | None) -> tuple[int, float]:
    assert one.chain is not None
    mask = one.mask.result() if isinstance(one.mask, Future) else one.mask
    step = ChainStep(one.params, one.chain, one.seen)
    token = sample_chain(logits, step, one.uniform, bias=one.bias, mask=mask, top_tokens=sampler.top_tokens)
    if one.num_logprobs is None:
        return token, 0.0  # nobody reads it
    return token, float(sampler.log_probabilities(logits[None], [token], threads=threads)[0])


def _given(values: list[Any]) -> list[Any] | None:
    return values if any(value is not None for value in values) else None
