"""The replicas of a model that a frontend knows, and the backend that runs jobs on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from ..arrays import Floats
from ..errors import RequestError
from ..server.backend import Asker, Backend, Counts, ModelFacts
from ..server.errors import ApiError, Interrupted
from ..server.jobs import Job, RunEvent, Started
from .link import EngineClient, Link
from .prefixes import Key, PrefixIndex, choose, prompt_key

T = TypeVar("T")

RETRY_SECONDS = 0.5  # between two tries to reach a replica
WAIT_SECONDS = 30.0  # for a replica, where there is none
MAX_TRIES = 3  # of a job whose replicas end

Connect = Callable[[str], EngineClient | None]


class Replicas:
    """Links to the replicas that are there.

    Args:
        connect: The engine of a replica by its name; None: it is not there any more.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect, self._index = connect, PrefixIndex()
        self.facts: ModelFacts | None = None  # of the replica that came last
        self._names: set[str] = set()
        self._links: dict[str, Link] = {}
        self._leaving: set[Link] = set()  # that get no new jobs
        self._changed = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None

    @property
    def links(self) -> list[Link]:
        return [*self._links.values()]

    def update(self, names: Iterable[str]) -> None:
        """From now on these are there. Jobs of others go on to their end."""
        self._names = set(names)
        for name in self._links.keys() - self._names:
            self._leaving.add(self._links.pop(name))
            self._index.drop(name)
        self._changed.set()
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())

    async def find(self, key: Key = ()) -> Link:
        """The replica that is to run what has this key."""
        if not self._links:
            await self._until_one()
        loads = {name: link.load for name, link in self._links.items()}
        name = choose(key, loads, self._index)
        self._index.add(name, key)
        return self._links[name]

    def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        for link in [*self._links.values(), *self._leaving]:
            link.close()

    async def _until_one(self) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._links:
                    await asyncio.sleep(RETRY_SECONDS / 10)
        except TimeoutError:
            raise ApiError(503, "no replica of the model is there; try again later", "model", "model_loading",
                           retry_after=10) from None  # fmt: skip

    async def _tend(self) -> None:
        """Have a link to each replica that is there."""
        while True:
            self._changed.clear()
            for name in self._names - self._links.keys():
                await self._join(name)
            self._leaving = {link for link in self._leaving if not self._is_idle(link)}
            is_whole = self._links.keys() == self._names and not self._leaving
            try:
                async with asyncio.timeout(None if is_whole else RETRY_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _join(self, name: str) -> None:
        """Have a link to a replica, once it tells the facts: those of an update differ."""
        engine = await asyncio.to_thread(self._connect, name)
        if engine is None:
            return
        link = Link(name, engine, self._lost)
        try:
            facts = await link.facts()
        except Interrupted:
            return
        if name in self._names:
            self._links[name], self.facts = link, facts
        else:
            link.close()

    def _is_idle(self, link: Link) -> bool:
        """Whether a replica that leaves has no job of this frontend; then its link is closed."""
        if link.load == link.others:
            link.close()
        return link.is_lost

    def _lost(self, link: Link) -> None:
        if self._links.get(link.name) is link:
            del self._links[link.name]
            self._index.drop(link.name)
        self._changed.set()


class ReplicaBackend(Backend):
    """Runs jobs on replicas: each on the one that has most of its prompt in its cache, bounded by load.

    Args:
        replicas: Those of the model.
        facts: What they told of it first.
    """

    def __init__(self, replicas: Replicas, facts: ModelFacts) -> None:
        self._replicas, self._facts = replicas, facts

    @property
    def facts(self) -> ModelFacts:
        facts = self._replicas.facts or self._facts
        return replace(facts, max_seqs=facts.max_seqs * max(1, len(self._replicas.links)))

    async def run(self, job: Job, asker: Asker) -> AsyncGenerator[RunEvent, None]:
        """Its events. While it has begun no output, it is moved to another replica if its own ends."""
        key, started = prompt_key(job), False
        for tries_left in reversed(range(MAX_TRIES)):
            link, has_output = await self._replicas.find(key), False
            try:
                async with aclosing(link.run(job, asker)) as events:
                    async for event in events:
                        if not isinstance(event, Started):
                            has_output = True
                        if has_output or not started:
                            started = True
                            yield event
                return
            except Interrupted:
                if has_output or not tries_left:
                    raise

    async def work(self, asker: Asker, call: Callable[..., T], *given: Any) -> T:
        result: T = await self._anywhere(lambda link: link.work(asker, call, given))
        return result

    async def embed(self, prompts: list[list[int]], pooling: str | None = None, adapter: str | None = None) -> Floats:
        if adapter is not None:
            raise RequestError("replicas take no adapters")
        rows: Floats = await self._anywhere(lambda link: link.embed(prompts, pooling))
        return rows

    async def counts(self) -> dict[str, Counts]:
        links = self._replicas.links
        found = await asyncio.gather(*(link.counts() for link in links), return_exceptions=True)
        return {link.name: one for link, one in zip(links, found, strict=True) if isinstance(one, Counts)}

    def close(self) -> None:
        self._replicas.close()

    async def _anywhere(self, call: Callable[[Link], Any]) -> Any:
        """What a replica gives, or another one if it ends."""
        for _ in range(MAX_TRIES - 1):
            try:
                return await call(await self._replicas.find())
            except Interrupted:
                continue
        return await call(await self._replicas.find())
