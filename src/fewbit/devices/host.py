"""What is done in host memory with the rows of a step: sampling, scoring. For every device whose rows lie there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..arrays import Floats, Ints, Words
from ..errors import DataError
from ..ops.sampling import SamplingParams
from .batch import Batch, Logprobs, Outputs, Sample, Sampled, Score, Top


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
    """A step whose rows are in host memory already."""

    __slots__ = ("_batch", "_rows", "_sampler", "_threads")

    def __init__(self, batch: Batch, rows: Floats, sampler: Sampler, threads: int | None = None) -> None:
        self._batch, self._rows, self._sampler, self._threads = batch, rows, sampler, threads

    def rows(self) -> Floats:
        return self._rows

    def fetch(self) -> Outputs:
        batch, rows = self._batch, self._rows
        if batch.output == "hidden":
            return Outputs([], [], rows)
        scores, tops = self.scores()
        return Outputs(self._samples(batch.samples), scores, tops=tops)

    def scores(self) -> tuple[list[Floats | Exception], list[list[Top]]]:
        """Log-probabilities of the tokens whose scores are wanted, and the likeliest ones beside them."""
        scores = [self._score(one) for one in self._batch.scores]
        pairs = zip(self._batch.scores, scores, strict=True)
        return scores, [[] if isinstance(of, Exception) else self._top(one) for one, of in pairs]

    def logprobs(self, own: float, row: int, count: int) -> Logprobs:
        """A token's own, and the likeliest ones of its row."""
        return self._logprobs(own, self._rows[row], count)

    def _samples(self, samples: list[Sample]) -> list[Sampled | Exception]:
        if not samples:
            return []
        try:
            return [*self._sample(samples)]
        except DataError as error:
            if len(samples) == 1:
                return [error]
        return [result for one in samples for result in self._samples([one])]  # so that a bad row ends alone

    def _sample(self, samples: list[Sample]) -> list[Sampled]:
        indices = [one.row for one in samples]
        first, count = indices[0], len(indices)
        logits = self._rows[first : first + count]
        if indices != [*range(first, first + count)]:  # several from one row, rows between that are scored, or both
            logits = self._rows[indices]
        tokens, logprobs = self._sampler.sample(
            logits,
            [one.params for one in samples],
            [one.uniform for one in samples],
            _given([one.seen for one in samples]),
            bias=_given([one.bias for one in samples]),
            masks=_given([one.mask for one in samples]),
            threads=self._threads,
        )
        return [
            Sampled(token, None if one.num_logprobs is None else self._logprobs(own, row, one.num_logprobs))
            for one, token, own, row in zip(samples, tokens.tolist(), logprobs.tolist(), logits, strict=True)
        ]

    def _logprobs(self, own: float, row: Floats, count: int) -> Logprobs:
        return Logprobs(own, *self._sampler.top_tokens(row, count))

    def _score(self, score: Score) -> Floats | Exception:
        rows = self._rows[score.row : score.row + len(score.targets)]
        try:
            return self._sampler.log_probabilities(rows, score.targets, threads=self._threads)
        except DataError as error:
            return error

    def _top(self, score: Score) -> list[Top]:
        if score.num_logprobs is None:
            return []
        rows = self._rows[score.row : score.row + len(score.targets)]
        return [Top(*self._sampler.top_tokens(row, score.num_logprobs)) for row in rows]


def _given(values: list[Any]) -> list[Any] | None:
    return values if any(value is not None for value in values) else None
