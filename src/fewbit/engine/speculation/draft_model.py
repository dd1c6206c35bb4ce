"""Guesses by a smaller model with the same tokens, which runs ahead of the large one in a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from weakref import WeakKeyDictionary

from ...cache.cache import Cache
from ...devices.batch import Batch, Executor, Row, RowResult, Sample
from ...devices.forward import make_batch
from ...errors import OutOfPages, RequestError
from ..request import Generation
from .drafter import Prospect

KIND = "draft model"
MAX_TOKENS = 4  # of a draft, unless an option says otherwise
WEIGHT = 0.1  # of the newest time of a round


@dataclass(slots=True, eq=False)
class _Drafted:
    """The sequence of a request in the small model's cache, and the tokens in it."""

    sequence: int
    tokens: list[int]


class ModelDrafter:
    """Lets a small model write what comes next, sampled with the numbers that the large one will sample with.

    Args:
        executor: What runs the small model.
        cache: The executor's KV cache.
        vocab: Tokens of the large model; a few more may be in the small one's vocabulary.
        max_tokens: Most tokens of a draft.
    """

    def __init__(self, executor: Executor, cache: Cache, vocab: int, max_tokens: int = MAX_TOKENS) -> None:
        if cache.wants_page_ends:
            raise RequestError("a draft model must not have recurrent layers: it takes guesses back")
        self.executor, self.cache, self.max_tokens = executor, cache, max_tokens
        self._vocab = vocab
        self._drafted: WeakKeyDictionary[Generation, _Drafted] = WeakKeyDictionary()
        self._round_seconds = 0.0

    def prospect(self, request: Generation) -> Prospect:
        room = self.cache.max_length - len(request.tokens)
        return Prospect(max(0, min(self.max_tokens, room)), KIND)

    def seconds(self, length: int) -> float:
        return length * self._round_seconds

    def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        drafts: dict[Generation, list[int]] = {request: [] for request in requests}
        try:
            writing = {one: length for one, length in zip(requests, lengths, strict=True) if self._catch_up(one)}
            for place in range(max(writing.values(), default=0)):
                round_ = [one for one, length in writing.items() if len(drafts[one]) == place < length]
                begin = perf_counter()
                self._run_round(round_, drafts)
                self._record(perf_counter() - begin)
        except OutOfPages:
            for request in [*self._drafted]:  # all begin anew
                self.finish(request)
        return [*drafts.values()]

    def finish(self, request: Generation) -> None:
        if (drafted := self._drafted.pop(request, None)) is not None:
            self.cache.free(drafted.sequence)

    def _catch_up(self, request: Generation) -> bool:
        """Run what the small model lacks of a text, but the last token; a part of it if it is long. Is it there?"""
        drafted = self._begin(request)
        lacking = request.tokens[len(drafted.tokens) : -1]
        if len(lacking) <= self.executor.max_batched_tokens // 2:
            return True
        self._run([Row(drafted.sequence, lacking[: self.executor.max_batched_tokens])])
        drafted.tokens += lacking[: self.executor.max_batched_tokens]
        return len(drafted.tokens) >= len(request.tokens) - 1

    def _begin(self, request: Generation) -> _Drafted:
        """The request's sequence, without what has turned out to be wrong of it."""
        drafted = self._drafted.get(request)
        if drafted is None:
            sequence = self.cache.new(request.tokens[:-1], request.cache_namespace)
            drafted = self._drafted[request] = _Drafted(sequence, request.tokens[: self.cache.length(sequence)])
        known = min(len(drafted.tokens), len(request.tokens) - 1)
        first = max(0, known - 2 * self.max_tokens - 1)  # only guesses can be wrong, and these are the last ones
        while first < known and drafted.tokens[first] == request.tokens[first]:
            first += 1
        if first < len(drafted.tokens):
            self.cache.truncate(drafted.sequence, first)
            del drafted.tokens[first:]
        return drafted

    def _run_round(self, requests: Sequence[Generation], drafts: dict[Generation, list[int]]) -> None:
        """One more guess for each request; those that do not fit in the step get none."""
        rows, room = list[Row](), self.executor.max_batched_tokens
        for request in requests[: self.executor.max_logits]:
            drafted, draft = self._drafted[request], drafts[request]
            tokens = [*request.tokens, *draft][len(drafted.tokens) :]
            room -= len(tokens)
            if room < 0:
                break
            uniform = request.next_uniforms(len(draft) + 1)[-1]
            rows.append(Row(drafted.sequence, tokens, 1, [Sample(request.params, uniform)]))
        for request, row, result in zip(requests, rows, self._run(rows), strict=False):
            self._drafted[request].tokens += row.tokens
            drafts[request] += [token for token in result.tokens if token < self._vocab]

    def _run(self, rows: Sequence[Row]) -> list[RowResult]:
        """Run a step of the small model, and commit it."""
        batch: Batch = make_batch(self.cache, rows)
        try:
            results = self.executor.launch(batch).fetch()
        except BaseException:
            self.cache.rollback(batch.view)
            raise
        for row in rows:
            self.cache.commit(row.sequence, row.tokens)
        return [RowResult() if isinstance(one, Exception) else one for one in results]

    def _record(self, seconds: float) -> None:
        self._round_seconds += (WEIGHT if self._round_seconds else 1.0) * (seconds - self._round_seconds)
