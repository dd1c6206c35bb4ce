"""A device that runs ahead, made of one that does not: steps are run in order, as late as can be.

A step that was launched waits in a queue. It is run when it, or a later one, is fetched, or when somebody reads or
writes a page of the store; copies of pages wait in the same queue. So whoever counts on a step that was not fetched, or
on a page before its time, gets something else than expected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fewbit.arrays import Floats, Ints
from fewbit.devices.batch import Batch, Executor, Results, Row, RowResult, Sample, lay_out

from .toy import Toy


class LateHandle:
    def __init__(self, late: Late, number: int, batch: Batch) -> None:
        self._late, self._number, self.batch = late, number, batch
        self.results: Results | Exception | None = None

    def fetch(self) -> Results:
        self._late.log.append(("fetch", self._number))
        while self.results is None:
            self._late.run_next()
        if isinstance(self.results, Exception):
            raise self.results
        return self.results

    def values(self) -> Floats:
        raise NotImplementedError


class Late:
    """An executor around another one and the store that it writes to."""

    runs_ahead = True

    def __init__(self, inner: Executor, store: Any) -> None:
        self.inner = inner
        self.vocab, self.place_adapter = inner.vocab, inner.place_adapter
        self.max_batched_tokens, self.max_logits = inner.max_batched_tokens, inner.max_logits
        self.log: list[tuple[str, int]] = []  # launches and fetches, with the number of the step
        self.batches: list[Batch] = []
        self.errors: list[Exception] = []  # to be raised by the next launches
        self._queue: deque[Callable[[], None]] = deque()
        self._last: LateHandle | None = None
        _make_ordered(store, self)

    def launch(self, batch: Batch) -> LateHandle:
        if self.errors:
            raise self.errors.pop()
        if isinstance(self.inner, Toy):
            self.inner.is_late = True
            self.inner.check_pages(batch)
        number = len(self.batches)
        self.log.append(("launch", number))
        self.batches.append(batch)
        handle, before = LateHandle(self, number, batch), self._last
        self._last = handle
        batch = lay_out([_copied(row) for row in batch.rows], batch.view)
        self._queue.append(lambda: self._run(batch, handle, before))
        return handle

    def later(self, action: Callable[[], None]) -> None:
        self._queue.append(action)

    def run_next(self) -> None:
        self._queue.popleft()()

    def run_all(self) -> None:
        while self._queue:
            self.run_next()

    def _run(self, batch: Batch, handle: LateHandle, before: LateHandle | None) -> None:
        known = [] if before is None else _tokens(before.batch, before.results)
        try:
            results = self.inner.launch(lay_out([_known(row, known) for row in batch.rows], batch.view)).fetch()
            handle.results = [_kept(result) for result in results]
        except Exception as error:
            handle.results = error


def _make_ordered(store: Any, late: Late) -> None:
    """Let a store do what it is told in the order of the steps."""
    copy, read, write = store.copy, store.read, store.write

    def copy_later(group: int, pairs: Iterable[tuple[int, int]]) -> None:
        late.later(lambda: copy(group, pairs))

    def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            late.run_all()
            return function(*args)

        return call

    store.copy, store.read, store.write = copy_later, at_once(read), at_once(write)


def _tokens(batch: Batch, results: Results | Exception | None) -> list[int]:
    """What each sample of a step gave; some token where there is none."""
    if not isinstance(results, list):
        return [0] * len(batch.samples)
    tokens = []
    for row, one in zip(batch.rows, results, strict=True):
        kept = [] if isinstance(one, Exception) else [*one.tokens]
        tokens += [*kept, *[0] * len(row.samples)][: len(row.samples)]
    return tokens


def _copied(row: Row) -> Row:
    """What the engine counts on goes on changing."""
    samples = [
        one if one.seen is None else replace(one, seen=(one.seen[0].copy(), one.seen[1].copy())) for one in row.samples
    ]
    return replace(row, tokens=list(row.tokens), samples=samples)


def _kept(result: RowResult | Exception) -> RowResult | Exception:
    """With hidden states that the next step does not overwrite."""
    if isinstance(result, Exception) or result.hidden is None:
        return result
    return result._replace(hidden=result.hidden.copy())


def _known(row: Row, known: list[int]) -> Row:
    """With the tokens of the step before, which count as seen too."""
    tokens = [token if token >= 0 else known[-1 - token] for token in row.tokens]
    return replace(row, tokens=tokens, samples=[_counted(one, known) for one in row.samples])


def _counted(sample: Sample, known: list[int]) -> Sample:
    """With the token of the step before among those seen."""
    if sample.last is None or sample.seen is None:
        return sample
    counts = dict(zip(sample.seen[0].tolist(), sample.seen[1].tolist(), strict=True))
    token = known[sample.last]
    counts[token] = counts.get(token, 0) + 1
    seen: tuple[Ints, Ints] = np.array(list(counts), np.int32), np.array(list(counts.values()), np.int32)
    return replace(sample, seen=seen)
