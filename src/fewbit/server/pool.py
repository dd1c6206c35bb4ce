"""The models of a server: loaded when they are asked for, the least recently used put away when there is no room."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf

from ..errors import FewbitError, OutOfMemory
from ..llm import LLM
from .errors import ApiError

RETRY_SECONDS = 5.0  # before a model that failed to load is tried again

Load = Callable[[str], LLM]


@dataclass(slots=True, eq=False)
class Entry:
    """A model by its name, and whether it is there."""

    name: str
    source: str  # what `LLM` takes
    created: int
    llm: LLM | None = None
    users: int = 0
    outputs: int = 0  # that run or wait
    last_used: float = 0.0
    keep_seconds: float | None = None  # that it stays loaded unused; inf: as long as it can; None: nobody said
    expires: float | None = None  # when that is over, by `time.time`
    timer: asyncio.TimerHandle | None = None
    loading: asyncio.Task[LLM] | None = None
    failed: tuple[float, ApiError] | None = None
    aliases: set[str] = field(default_factory=set)


class Pool:
    """Models by name. `load` makes one, in a thread; one that fails disturbs no other.

        pool = Pool({"tiny": "tiny.gguf"}, LLM)
        async with pool.use("tiny") as llm:
            ...

    `pinned` models are never put away. `max_models` bounds how many are loaded; when memory is short, idle ones go.
    `keep` says how long a model stays that nobody uses.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        load: Load,
        *,
        pinned: Iterable[str] = (),
        max_models: int | None = None,
        load_seconds: float = 600.0,
    ) -> None:
        now = int(time.time())
        self.entries = {name: Entry(name, source, now) for name, source in models.items()}
        self.default = next(iter(self.entries), None)
        self._load, self._pinned, self._max = load, frozenset(pinned), max_models
        self._load_seconds = load_seconds
        self._freed = asyncio.Condition()
        self._bounded = asyncio.Lock()  # one load at a time where their number is bounded
        self._leaving: set[asyncio.Task[None]] = set()  # models that are put away because their time is over

    @classmethod
    def of(cls, *llms: LLM) -> Pool:
        """Models that are loaded already."""
        pool = cls({llm.model_name: llm.model_name for llm in llms}, _never, pinned=[llm.model_name for llm in llms])
        for llm in llms:
            pool.entries[llm.model_name].llm = llm
        return pool

    def find(self, name: str | None) -> Entry:
        """The model that a request names; the first for None."""
        wanted = self.default if name is None else name
        if wanted in self.entries:
            return self.entries[wanted]
        for entry in self.entries.values():
            if wanted in entry.aliases or wanted == f"{entry.name}:latest":
                return entry
        there = ", ".join(self.entries) or "none"
        raise ApiError(404, f"there is no model {str(wanted)[:100]!r}; there are: {there}", "model", "model_not_found")

    def loaded(self) -> list[tuple[str, LLM]]:
        return [(entry.name, entry.llm) for entry in self.entries.values() if entry.llm is not None]

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[LLM]:
        """A model that stays until the end of the block. It is loaded if it is not there."""
        entry = self.find(name)
        entry.users += 1
        _stop_timer(entry)
        try:
            yield entry.llm if entry.llm is not None else await self._wait_for(entry)
        finally:
            entry.users -= 1
            entry.last_used = time.monotonic()
            if not entry.users:
                self._start_timer(entry)
                await asyncio.shield(self._tell())

    def keep(self, name: str | None, seconds: float) -> None:
        """How long a model stays loaded after its last use, from now on; inf: until another needs its room, and it is
        the last to go. A pinned model stays."""
        entry = self.find(name)
        entry.keep_seconds = seconds
        if not entry.users:
            self._start_timer(entry)

    def add(self, name: str, source: str) -> None:
        """Serve one more model. One that is there stays as it is."""
        self.entries.setdefault(name, Entry(name, source, int(time.time())))
        self.default = self.default or name

    async def remove(self, name: str) -> None:
        """Serve a model no more, if nobody uses it and it is not pinned."""
        entry = self.find(name)
        await self.unload(entry.name)
        if entry.llm is not None or entry.users:
            raise ApiError(409, f"the model {entry.name} is in use or pinned, so it stays", "model", "model_in_use")
        del self.entries[entry.name]
        if self.default == entry.name:
            self.default = next(iter(self.entries), None)

    async def unload(self, name: str) -> None:
        """Put a model away now, if nobody uses it and it is not pinned."""
        entry = self.find(name)
        if not entry.users and entry.name not in self._pinned:
            await self._put_away(entry)

    async def close(self) -> None:
        """Close all models."""
        for entry in self.entries.values():
            if entry.loading is not None:
                entry.loading.cancel()
            await self._put_away(entry)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _wait_for(self, entry: Entry) -> LLM:
        if entry.failed is not None:
            when, error = entry.failed
            if time.monotonic() - when < RETRY_SECONDS:
                raise error
            entry.failed = None
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._bring(entry))
            entry.loading.add_done_callback(lambda task: _done(entry, task))
        return await asyncio.shield(entry.loading)  # others may wait for it too

    async def _bring(self, entry: Entry) -> LLM:
        """Load a model; idle ones go if there are too many, or if memory is short."""
        try:
            async with asyncio.timeout(self._load_seconds), self._bounded if self._max else nullcontext():
                while self._max and len(self.loaded()) >= self._max:
                    await self._make_room(wait=True)
                entry.llm = llm = await self._load_fitting(entry.source)
        except TimeoutError:
            raise ApiError(503, f"the model {entry.name} took too long to load; try again", "model", "model_loading",
                           retry_after=10) from None  # fmt: skip
        except (FewbitError, OSError, MemoryError) as error:
            why = str(error) or type(error).__name__
            raise ApiError(503, f"the model {entry.name} could not be loaded: {why}", "model", "model_failed",
                           retry_after=10) from error  # fmt: skip
        return llm

    async def _load_fitting(self, source: str) -> LLM:
        while True:
            try:
                return await asyncio.to_thread(self._load, source)
            except OutOfMemory:
                if not await self._make_room(wait=False):
                    raise

    async def _make_room(self, wait: bool) -> bool:
        """Put away the idle model that was used least recently; if asked to, wait for one."""
        while True:
            idle = [one for one in self.entries.values() if one.llm and not one.users and one.name not in self._pinned]
            if idle:
                await self._put_away(min(idle, key=lambda one: (one.keep_seconds == inf, one.last_used)))
                return True
            if not wait:
                return False
            async with self._freed:
                await self._freed.wait()

    async def _put_away(self, entry: Entry) -> None:
        llm, entry.llm = entry.llm, None
        entry.keep_seconds = None
        _stop_timer(entry)
        if llm is not None:
            await asyncio.to_thread(llm.close)
            del llm
            await asyncio.to_thread(gc.collect)  # its memory is wanted now

    def _start_timer(self, entry: Entry) -> None:
        _stop_timer(entry)
        seconds = entry.keep_seconds
        if entry.llm is None or entry.name in self._pinned or seconds is None or seconds == inf:
            return
        entry.expires = time.time() + seconds
        entry.timer = asyncio.get_running_loop().call_later(seconds, self._expire, entry)

    def _expire(self, entry: Entry) -> None:
        task = asyncio.create_task(self.unload(entry.name))  # unless somebody came meanwhile
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _tell(self) -> None:
        async with self._freed:
            self._freed.notify_all()


def _stop_timer(entry: Entry) -> None:
    if entry.timer is not None:
        entry.timer.cancel()
    entry.timer = entry.expires = None


def _done(entry: Entry, task: asyncio.Task[LLM]) -> None:
    entry.loading = None
    error = None if task.cancelled() else task.exception()
    if isinstance(error, ApiError):
        entry.failed = time.monotonic(), error


def _never(source: str) -> LLM:
    raise FewbitError(f"{source} was closed")
