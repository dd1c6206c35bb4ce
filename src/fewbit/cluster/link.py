"""A frontend's way to one replica's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any, Protocol
from uuid import uuid4

from ..arrays import Floats
from ..server.backend import Asker, Counts, ModelFacts
from ..server.errors import Interrupted
from ..server.jobs import Job, RunEvent
from .messages import Batch, JobEnded, JobEvent, JobRequest, WorkRequest, dumps, loads


class EngineClient(Protocol):
    """Calls methods of an `EngineHost` elsewhere."""

    async def call(self, method: str, *given: Any) -> Any:
        """What the method gives. `Interrupted`: the host is gone."""
        ...


class Link:
    """Runs jobs on a replica's engine. Events of all of them come in batches.

    Args:
        name: The replica's.
        engine: Its engine.
        on_loss: Called when the replica is gone.
    """

    def __init__(self, name: str, engine: EngineClient, on_loss: Callable[[Link], None]) -> None:
        self.name, self.is_lost, self.others = name, False, 0
        self._engine, self._on_loss = engine, on_loss
        self._frontend, self._numbers = uuid4().hex, count()
        self._jobs: dict[int, tuple[asyncio.Queue[JobEvent], int]] = {}  # and how many outputs each has
        self._leaving: set[asyncio.Task[Any]] = set()
        self._receiving = asyncio.create_task(self._receive())

    @property
    def load(self) -> int:
        """Outputs that run or wait there, as far as is known."""
        return self.others + sum(outputs for _, outputs in self._jobs.values())

    async def run(self, job: Job, asker: Asker) -> AsyncGenerator[RunEvent, None]:
        """The events of a job. `Interrupted`: the replica ended first."""
        number, queue = next(self._numbers), asyncio.Queue[JobEvent]()
        self._jobs[number] = queue, job.num_outputs
        has_ended = False
        try:
            payload = dumps(JobRequest(job, asker.client, asker.nbytes))
            event: JobEvent = loads(await self._call("start", self._frontend, number, payload))
            while not isinstance(event, JobEnded):
                yield event
                event = await queue.get()
            has_ended = True
            if event.error is not None:
                raise event.error
        finally:
            del self._jobs[number]
            if not has_ended and not self.is_lost:
                self._cancel(number)

    async def work(self, asker: Asker, call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        request = WorkRequest(call, given, asker.client, asker.nbytes)
        return _result(await self._call("work", dumps(request)))

    async def embed(self, prompts: list[list[int]], pooling: str | None) -> Floats:
        rows: Floats = _result(await self._call("embed", dumps((prompts, pooling))))
        return rows

    async def facts(self) -> ModelFacts:
        facts: ModelFacts = await self._call("facts")
        return facts

    async def counts(self) -> Counts:
        counts: Counts = await self._call("counts")
        return counts

    def close(self) -> None:
        """Its jobs end as if the replica had ended."""
        self._receiving.cancel()
        self._lose()

    async def _call(self, method: str, *given: Any) -> Any:
        if self.is_lost:
            raise Interrupted
        try:
            return await self._engine.call(method, *given)
        except Interrupted:
            self._lose()
            raise

    async def _receive(self) -> None:
        try:
            while not self.is_lost:
                batch: Batch = loads(await self._call("events", self._frontend))
                self.others = batch.others
                for number, event in batch.events:
                    if number in self._jobs:
                        self._jobs[number][0].put_nowait(event)
        except Interrupted:
            pass
        finally:
            self._lose()

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        for queue, _ in self._jobs.values():
            queue.put_nowait(JobEnded(Interrupted()))
        self._on_loss(self)

    def _cancel(self, number: int) -> None:
        task = asyncio.ensure_future(self._engine.call("cancel", self._frontend, number))
        self._leaving.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # the replica may be gone: then the job is too


def _result(payload: bytes) -> Any:
    value, error = loads(payload)
    if error is not None:
        raise error
    return value
