"""A stage: an executor of some layers of a model, which takes its rows from the stage before it.

All that happens to a stage is a list of tasks, in order: steps, and what the cache copies, reads and writes in its
pages. Tasks go to all stages in the same order, so each sees the same history. To add a way to reach stages (another
process, another machine): a class with `submit`, as `LocalStage` here or `RemoteStage` in `fewbit.cluster`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from ..arrays import Bytes, Floats
from ..cache.store import KVStore
from .batch import Batch, Handle, Results

Reply = tuple[Results | None, Floats | None]  # of the last stage: what its rows gave, or the values themselves


class GivenExecutor(Protocol):
    """An executor whose graph may begin with rows of another one."""

    def launch(self, batch: Batch, given: Floats | None = None) -> Handle: ...


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the model. `wants_values`: logits or hidden states are the reply of the last stage."""

    batch: Batch
    wants_values: bool = False


@dataclass(frozen=True, slots=True)
class CopyPages:
    """Pages of a group to copy, as pairs of source and destination."""

    group: int
    pairs: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ReadPage:
    layer: int
    page: int
    count: int


@dataclass(frozen=True, slots=True)
class WritePage:
    layer: int
    page: int
    parts: Sequence[Bytes]
    first: int


Task = Step | CopyPages | ReadPage | WritePage


class Pending(Protocol):
    """What a task will give."""

    def result(self) -> Any:
        """Wait for it; raises what the task, or one before it, raised."""
        ...


class Stage(Protocol):
    """Where a part of the layers runs."""

    def submit(self, task: Task, rows: Pending | None = None) -> Pending:
        """Do a task after those before it. Rows are those of the stage before, for a step."""
        ...


class StageRunner:
    """Does the tasks of one stage, with its executor and its store."""

    def __init__(self, executor: GivenExecutor, store: KVStore, is_last: bool) -> None:
        self.executor, self.store, self._is_last = executor, store, is_last

    def run(self, task: Task, rows: Floats | None = None) -> Any:
        match task:
            case Step():
                return self._step(task, rows)
            case CopyPages():
                return self.store.copy(task.group, task.pairs)
            case ReadPage():
                return [part.copy() for part in self.store.read(task.layer, task.page, task.count)]
            case WritePage():
                return self.store.write(task.layer, task.page, task.parts, task.first)

    def _step(self, step: Step, rows: Floats | None) -> Floats | Reply:
        if not self._is_last:
            return self.executor.launch(step.batch, rows).values().copy()  # the next step overwrites them
        handle = self.executor.launch(step.batch, rows)
        return (None, handle.values().copy()) if step.wants_values else (handle.fetch(), None)


def inner_batch(batch: Batch) -> Batch:
    """What stages before the last one run: all rows of a batch, and nothing is sampled."""
    every = np.arange(len(batch.tokens), dtype=np.int32)
    return replace(batch, rows=(), logits_indices=every, output="hidden", samples=[])


class InlineStage:
    """Tasks are done at once, by the caller: the first stage, in the thread of the engine."""

    def __init__(self, runner: StageRunner) -> None:
        self.runner = runner

    def submit(self, task: Task, rows: Pending | None = None) -> Pending:
        pending: Future[Any] = Future()
        _fulfil(pending, self.runner, task, rows)
        return pending


class LocalStage:
    """Tasks are done by a thread, which ends with the stage."""

    def __init__(self, runner: StageRunner, name: str) -> None:
        self.runner = runner
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        thread = threading.Thread(target=_serve, args=(self._tasks,), name=name, daemon=True)
        thread.start()
        weakref.finalize(self, self._tasks.put, None)

    def submit(self, task: Task, rows: Pending | None = None) -> Pending:
        pending: Future[Any] = Future()
        runner = self.runner
        self._tasks.put(lambda: _fulfil(pending, runner, task, rows))
        return pending


def _serve(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # so that nothing is held while it waits


def _fulfil(pending: Future[Any], runner: StageRunner, task: Task, rows: Pending | None) -> None:
    try:
        pending.set_result(runner.run(task, None if rows is None else rows.result()))
    except BaseException as error:
        pending.set_exception(error)
