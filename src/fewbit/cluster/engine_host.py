"""A backend for frontends in other processes: jobs come in, batches of events go out.

A frontend starts jobs and asks for events again and again. An answer has all that came since the last one, of all its
jobs: streams share the cost of a message. Jobs of a frontend that is gone are ended.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress

from ..server.backend import Asker, Backend, Counts, ModelFacts
from ..server.text_work import TextWork
from .messages import Batch, JobEnded, JobEvent, JobRequest, WorkRequest, dumps, loads, portable

WAIT_SECONDS = 5.0  # that a question for events is left open
GONE_SECONDS = 3 * WAIT_SECONDS  # after which a frontend that asked nothing is gone


class EngineHost:
    """Runs the jobs of frontends.

    Args:
        backend: What runs them.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend, self._text = backend, TextWork()
        self._outboxes: dict[str, Outbox] = {}

    async def facts(self) -> ModelFacts:
        return self.backend.facts

    async def counts(self) -> Counts:
        return sum((await self.backend.counts()).values(), Counts())

    async def num_open(self) -> int:
        """The jobs that run."""
        return sum(len(outbox.jobs) for outbox in self._outboxes.values())

    async def start(self, frontend: str, number: int, payload: bytes) -> bytes:
        """Run a job. Its first event comes back, the others are for `events`."""
        request: JobRequest = loads(payload)
        outbox = self._outbox(frontend)
        first: asyncio.Future[JobEvent] = asyncio.get_running_loop().create_future()
        job = asyncio.create_task(self._run(request, first, number, outbox))
        outbox.jobs[number] = job, request.job.num_outputs
        return dumps(await first)

    async def events(self, frontend: str) -> bytes:
        """What is new of a frontend's jobs; nothing, after a while without news."""
        outbox = self._outbox(frontend)
        outbox.is_asked = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await outbox.news.wait()
            await asyncio.sleep(0)  # other jobs of the same step
        finally:
            outbox.is_asked, outbox.last_asked = False, time.monotonic()
            self._end_jobs_of_gone()
        others = sum(one.num_outputs for one in self._outboxes.values()) - outbox.num_outputs
        return dumps(Batch(outbox.take(), others))

    async def cancel(self, frontend: str, number: int) -> None:
        """End a job at once."""
        if number in self._outbox(frontend).jobs:
            self._outbox(frontend).jobs[number][0].cancel()

    async def work(self, payload: bytes) -> bytes:
        request: WorkRequest = loads(payload)
        asker = Asker(self._text, request.client, request.nbytes)
        try:
            return dumps((await self.backend.work(asker, request.call, *request.given), None))
        except Exception as error:
            return dumps((None, portable(error)))

    async def embed(self, payload: bytes) -> bytes:
        try:
            return dumps((await self.backend.embed(*loads(payload)), None))
        except Exception as error:
            return dumps((None, portable(error)))

    async def _run(self, request: JobRequest, first: asyncio.Future[JobEvent], number: int, outbox: Outbox) -> None:
        last = JobEnded()

        def put(event: JobEvent) -> None:
            if first.done():
                outbox.put(number, event)
            else:
                first.set_result(event)

        try:
            asker = Asker(self._text, request.client, request.nbytes)
            async with aclosing(self.backend.run(request.job, asker)) as events:
                async for event in events:
                    put(event)
        except Exception as error:
            last = JobEnded(portable(error))
        finally:
            del outbox.jobs[number]
            put(last)

    def _outbox(self, frontend: str) -> Outbox:
        return self._outboxes.setdefault(frontend, Outbox())

    def _end_jobs_of_gone(self) -> None:
        gone = [name for name, outbox in self._outboxes.items() if outbox.is_gone]
        for name in gone:
            for job, _ in self._outboxes.pop(name).jobs.values():
                job.cancel()


class Outbox:
    """Events that a frontend has not got yet, and its jobs."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[asyncio.Task[None], int]] = {}  # and how many outputs each has
        self.news, self.is_asked, self.last_asked = asyncio.Event(), False, time.monotonic()
        self._events: list[tuple[int, JobEvent]] = []

    @property
    def is_gone(self) -> bool:
        return not self.is_asked and time.monotonic() - self.last_asked > GONE_SECONDS

    @property
    def num_outputs(self) -> int:
        return sum(outputs for _, outputs in self.jobs.values())

    def put(self, number: int, event: JobEvent) -> None:
        self._events.append((number, event))
        self.news.set()

    def take(self) -> list[tuple[int, JobEvent]]:
        events, self._events = self._events, []
        self.news.clear()
        return events
