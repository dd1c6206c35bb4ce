"""Guesses by the model's own layer that predicts a further token (MTP), applied once for each token of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ...arrays import Floats
from ...cache.view import View
from ...devices.batch import Row, Sample
from ...devices.mtp import MtpExecutor
from ...errors import OutOfPages
from ..request import Generation
from .drafter import Prospect

KIND = "MTP"
WEIGHT = 0.1  # of the newest time of a round


class MtpDrafter:
    """Lets the MTP layer write what comes next, sampled with the numbers that the model will sample with.

    It goes on in the sequences of the model itself, whose tokens are dropped again when the draft is there.

    Args:
        executor: What runs the model.
        max_tokens: Most tokens of a draft.
    """

    def __init__(self, executor: MtpExecutor, max_tokens: int) -> None:
        self.executor, self.max_tokens = executor, max_tokens
        self._round_seconds = 0.0

    def prospect(self, request: Generation) -> Prospect:
        room = self.executor.cache.max_length - len(request.tokens)
        return Prospect(max(0, min(self.max_tokens, room)), KIND)

    def seconds(self, length: int) -> float:
        return length * self._round_seconds

    def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        drafts: dict[Generation, list[int]] = {request: [] for request in requests}
        given = {request: rows for request in requests if (rows := self._first_rows(request)) is not None}
        reserved = list[View]()
        try:
            for place in range(max(lengths)):
                wanting = (one for one, length in zip(requests, lengths, strict=True) if length > place)
                round_ = [one for one in wanting if one in given and len(drafts[one]) == place]
                if round_ := self._fitting(round_, given):
                    begin = perf_counter()
                    reserved.append(self._run_round(round_, drafts, given))
                    self._record(perf_counter() - begin)
        except OutOfPages:
            pass  # there are no more guesses than those made
        finally:
            for view in reversed(reserved):
                self.executor.cache.rollback(view)
        return [*drafts.values()]

    def finish(self, request: Generation) -> None:
        pass

    def _first_rows(self, request: Generation) -> Floats | None:
        """The hidden rows that belong to the tokens that were not run yet."""
        count = len(request.tokens) - self.executor.cache.committed(request.sequence)
        return self.executor.paired_rows(request.sequence, count)

    def _fitting(self, requests: Sequence[Generation], given: dict[Generation, Floats]) -> list[Generation]:
        """The first of the requests, as many as fit in a step."""
        room, fitting = self.executor.max_batched_tokens, list[Generation]()
        for request in requests[: self.executor.max_logits]:
            room -= len(given[request])
            if room < 0:
                break
            fitting.append(request)
        return fitting

    def _run_round(
        self, requests: Sequence[Generation], drafts: dict[Generation, list[int]], given: dict[Generation, Floats]
    ) -> View:
        """One more guess for each request."""
        rows = []
        for request in requests:
            tokens = [*request.tokens, *drafts[request]][-len(given[request]) :]
            uniform = request.next_uniforms(len(drafts[request]) + 1)[-1]
            rows.append(Row(request.sequence, tokens, 1, [Sample(request.params, uniform)]))
        results, own, view = self.executor.draft(rows, [given[request] for request in requests])
        for request, result, row in zip(requests, results, own, strict=True):
            given[request] = row
            drafts[request] += [] if isinstance(result, Exception) else result.tokens
        return view

    def _record(self, seconds: float) -> None:
        self._round_seconds += (WEIGHT if self._round_seconds else 1.0) * (seconds - self._round_seconds)
