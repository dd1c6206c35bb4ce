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
from fewbit.devices.batch import Batch, Executor, Outputs, Sample

from .toy import Toy


class LateHandle:
    def __init__(self, of: Late, number: int) -> None:
        self._of, self._number = of, number
        self.outputs: Outputs | Exception | None = None

    def fetch(self) -> Outputs:
        self._of.log.append(("fetch", self._number))
        while self.outputs is None:
            self._of.run_next()
        if isinstance(self.outputs, Exception):
            raise self.outputs
        return self.outputs

    def rows(self) -> Floats:
        raise NotImplementedError


class Late:
    """An executor around another one and the store that it writes to."""

    runs_ahead = True

    def __init__(self, inner: Executor, store: Any) -> None:
        self.inner = inner
        self.vocab, self.adapters = inner.vocab, inner.adapters
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
        handle, before = LateHandle(self, number), self._last
        self._last = handle
        batch = replace(batch, tokens=batch.tokens.copy(), samples=[_copied(one) for one in batch.samples])
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
        known = [] if before is None else _tokens(before.outputs)
        tokens = [token if token >= 0 else known[-1 - token] for token in batch.tokens.tolist()]
        samples = [_counted(one, known) for one in batch.samples]
        try:
            handle.outputs = self.inner.launch(
                replace(batch, tokens=np.array(tokens, np.int32), samples=samples)
            ).fetch()
        except Exception as error:
            handle.outputs = error


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


def _tokens(outputs: Outputs | Exception | None) -> list[int]:
    """Those of a step; some token where there is none."""
    if not isinstance(outputs, Outputs):
        return [0] * 1000
    return [0 if isinstance(one, Exception) else one.token for one in outputs.samples]


def _copied(sample: Sample) -> Sample:
    """What the engine counts on goes on changing."""
    return sample if sample.seen is None else replace(sample, seen=(sample.seen[0].copy(), sample.seen[1].copy()))


def _counted(sample: Sample, known: list[int]) -> Sample:
    """With the token of the step before among those seen."""
    if sample.last is None or sample.seen is None:
        return sample
    counts = dict(zip(sample.seen[0].tolist(), sample.seen[1].tolist(), strict=True))
    token = known[sample.last]
    counts[token] = counts.get(token, 0) + 1
    seen: tuple[Ints, Ints] = np.array(list(counts), np.int32), np.array(list(counts.values()), np.int32)
    return replace(sample, seen=seen)
