"""The models of a server: loaded when they are asked for, the least recently used put away when there is no room.

Where all that may be loaded are in use, one of them gives way to a model that is waited for: new requests for it wait
until the other one had its turn.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf

from ..errors import FetchError, FewbitError, OutOfMemory, RequestError
from ..llm import LLM
from .adapted import AdaptedBackend
from .backend import Backend
from .errors import ApiError
from .local import LocalBackend
from .log import log
from .text_work import in_daemon

RETRY_SECONDS = 5.0  # before a model that failed to load is tried again

Load = Callable[[str], LLM]

ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("allowed models", default=None)  # of the request's key


@dataclass(slots=True, eq=False)
class ServedModel:
    """A model by its name, and whether it is there."""

    name: str
    source: str  # what `LLM` takes
    created: int
    backend: Backend | None = None
    users: int = 0
    outputs: int = 0  # that run or wait
    last_used: float = 0.0
    keep_seconds: float | None = None  # that it stays loaded unused; inf: as long as it can; None: nobody said
    expires: float | None = None  # when that is over, by `time.time`
    timer: asyncio.TimerHandle | None = None
    loading: asyncio.Task[Backend] | None = None
    loaded_at: float = 0.0
    gives_way: asyncio.Event | None = None  # it is to be put away, and new requests wait
    failed: tuple[float, ApiError] | None = None
    aliases: set[str] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether nobody has to wait for it."""
        return self.backend is not None and self.gives_way is None


class Pool:
    """Models by name. `load` makes one, in a thread; one that fails disturbs no other.

        pool = Pool({"tiny": "tiny.gguf"}, LLM)
        async with pool.use("tiny") as backend:
            ...

    `pinned` models are never put away. `max_models` bounds how many are loaded; when memory is short, idle ones go.
    `keep` says how long a model stays that nobody uses. One that is in use gives way to another after `turn_seconds`.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        load: Load,
        *,
        pinned: Iterable[str] = (),
        max_models: int | None = None,
        load_seconds: float = 600.0,
        turn_seconds: float = 10.0,
    ) -> None:
        now = int(time.time())
        self.entries = {name: ServedModel(name, source, now) for name, source in models.items()}
        self.on_load: Callable[[ServedModel, LLM], None] = lambda entry, llm: None  # in the thread that loaded it
        self._load, self._pinned, self._max = load, frozenset(pinned), max_models
        self._load_seconds, self._turn_seconds = load_seconds, turn_seconds
        self._freed = asyncio.Condition()
        self._bounded = asyncio.Lock()  # one load at a time where their number is bounded
        self._leaving: set[asyncio.Task[None]] = set()  # models that are put away because their time is over

    @classmethod
    def of(cls, *llms: LLM) -> Pool:
        """Models that are loaded already."""
        pool = cls({llm.model_name: llm.model_name for llm in llms}, _never, pinned=[llm.model_name for llm in llms])
        for llm in llms:
            pool.entries[llm.model_name].backend = LocalBackend(llm, llm.model_name)
        return pool

    @classmethod
    def of_backends(cls, backends: Mapping[str, Backend]) -> Pool:
        """Models that run elsewhere, by name. They stay."""
        pool = cls({name: name for name in backends}, _never, pinned=backends)
        for name, backend in backends.items():
            pool.entries[name].backend = backend
        return pool

    def find(self, name: str | None) -> ServedModel:
        """The model that a request names; the first for None."""
        return self.resolve(name)[0]

    def resolve(self, name: str | None) -> tuple[ServedModel, str | None]:
        """The model that a request names, and its adapter: "base:adapter", or the adapter's name alone."""
        entries = self.allowed()
        if name is None and entries:
            return entries[0], None
        for entry in entries:
            if name == entry.name or name in entry.aliases or name == f"{entry.name}:latest":
                return entry, None
        for entry in entries:
            adapters = () if entry.backend is None else entry.backend.adapters
            adapter = str(name).removeprefix(f"{entry.name}:")
            is_coming = entry.backend is None and adapter != name  # it may have the adapter when it is loaded
            if adapter in adapters or is_coming:
                return entry, adapter
        there = ", ".join(self.names(entries)) or "none"
        raise ApiError(404, f"there is no model {str(name)[:100]!r}; there are: {there}", "model", "model_not_found")

    @staticmethod
    def names(entries: Iterable[ServedModel]) -> list[str]:
        """The names of models, and of their adapters."""
        found = []
        for entry in entries:
            adapters = () if entry.backend is None else entry.backend.adapters
            found += [entry.name, *(f"{entry.name}:{adapter}" for adapter in adapters)]
        return found

    def allowed(self) -> list[ServedModel]:
        """The models that the key of this request may use."""
        names = ALLOWED.get()
        return [entry for entry in self.entries.values() if names is None or entry.name in names]

    def loaded(self) -> list[tuple[str, Backend]]:
        return [(entry.name, entry.backend) for entry in self.entries.values() if entry.backend is not None]

    @asynccontextmanager
    async def use(self, name: str | None, is_held: bool = False) -> AsyncIterator[Backend]:
        """A model that stays until the end of the block. It is loaded if it is not there.

        Whoever holds it already says so with `is_held`: it does not wait while the model gives way to another.
        """
        entry, adapter = self.resolve(name)
        while entry.gives_way is not None and not is_held:
            await entry.gives_way.wait()
        entry.users += 1
        _stop_timer(entry)
        try:
            backend = entry.backend if entry.backend is not None else await self._wait_for(entry)
            if adapter is None:
                yield backend
            elif adapter in backend.adapters:
                yield AdaptedBackend(backend, adapter)
            else:
                raise ApiError(404, f"the model {entry.name} has no adapter {adapter[:100]!r}", "model",
                               "model_not_found")  # fmt: skip
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
        self.entries.setdefault(name, ServedModel(name, source, int(time.time())))

    async def remove(self, name: str) -> None:
        """Serve a model no more, if nobody uses it and it is not pinned."""
        entry = self.find(name)
        await self.unload(entry.name)
        if entry.backend is not None or entry.users:
            raise ApiError(409, f"the model {entry.name} is in use or pinned, so it stays", "model", "model_in_use")
        del self.entries[entry.name]

    async def unload(self, name: str) -> None:
        """Put a model away now, if nobody uses it and it is not pinned."""
        entry = self.entries[name]
        if not entry.users and entry.name not in self._pinned:
            await self._put_away(entry)

    def drop(self, backend: Backend) -> None:
        """Put a model away that failed: the next request loads it anew. It ends with the last request that has it."""
        inner = backend.inner if isinstance(backend, AdaptedBackend) else backend
        for entry in self.entries.values():
            if entry.backend is inner:
                entry.backend = entry.keep_seconds = None
                _stop_timer(entry)

    async def close(self) -> None:
        """Close all models."""
        for entry in self.entries.values():
            if entry.loading is not None:
                entry.loading.cancel()
            await self._put_away(entry)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _wait_for(self, entry: ServedModel) -> Backend:
        if entry.failed is not None:
            when, error = entry.failed
            if time.monotonic() - when < RETRY_SECONDS:
                raise error
            entry.failed = None
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._bring(entry))
            entry.loading.add_done_callback(lambda task: _done(entry, task))
        return await asyncio.shield(entry.loading)  # others may wait for it too

    async def _bring(self, entry: ServedModel) -> Backend:
        """Load a model; idle ones go if there are too many, or if memory is short."""
        try:
            async with self._bounded if self._max else nullcontext():
                while self._max and len(self.loaded()) >= self._max:
                    await self._make_room(wait=True)
                async with asyncio.timeout(self._load_seconds):  # waiting for room is not its fault
                    entry.backend = backend = await self._load_fitting(entry)
                entry.loaded_at = time.monotonic()
        except TimeoutError:
            raise ApiError(503, f"the model {entry.name} took too long to load; try again", "model", "model_loading",
                           retry_after=10) from None  # fmt: skip
        except (FewbitError, OSError, MemoryError) as error:
            log("model failed", model=entry.name, reason=str(error) or type(error).__name__)  # it may name a path
            raise ApiError(503, f"the model {entry.name} could not be loaded: {_kind(error)}; the server's log says "
                                "more", "model", "model_failed", retry_after=10) from error  # fmt: skip
        return backend

    async def _load_fitting(self, entry: ServedModel) -> Backend:
        while True:
            try:
                return await self._load_in_thread(entry)
            except OutOfMemory:
                if not await self._make_room(wait=False):
                    raise

    async def _load_in_thread(self, entry: ServedModel) -> Backend:
        """Load a model; one that nobody waits for any more when it is there is closed."""
        loading = in_daemon(lambda: self._loaded(entry))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close_late)
            raise

    def _loaded(self, entry: ServedModel) -> LocalBackend:
        llm = self._load(entry.source)
        try:
            self.on_load(entry, llm)
        except BaseException:
            llm.close()
            raise
        return LocalBackend(llm, entry.name)

    async def _make_room(self, wait: bool) -> bool:
        """Put away the idle model that was used least recently; if asked to, wait for one, or have one give way."""
        while True:
            movable = [one for one in self.entries.values() if one.backend and one.name not in self._pinned]
            idle = [one for one in movable if not one.users]
            if idle:
                await self._put_away(min(idle, key=lambda one: (one.keep_seconds == inf, one.last_used)))
                return True
            if not wait:
                return False
            if not movable:
                raise ApiError(503, "there is no room for another model: those that are loaded are pinned", "model",
                               "model_loading", retry_after=60)  # fmt: skip
            seconds = min(self._turn_left(one) for one in movable)
            if seconds <= 0:
                await self._have_give_way(min(movable, key=lambda one: one.loaded_at))
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), self._freed:
                    await self._freed.wait()

    def _turn_left(self, entry: ServedModel) -> float:
        return entry.loaded_at + self._turn_seconds - time.monotonic()

    async def _have_give_way(self, entry: ServedModel) -> None:
        """Put a busy model away when its running requests are done; those that come meanwhile wait."""
        entry.gives_way = asyncio.Event()
        try:
            while entry.users:
                async with self._freed:
                    await self._freed.wait()
            await self._put_away(entry)
        finally:
            gave_way, entry.gives_way = entry.gives_way, None
            gave_way.set()

    async def _put_away(self, entry: ServedModel) -> None:
        backend, entry.backend = entry.backend, None
        entry.keep_seconds = None
        _stop_timer(entry)
        if backend is not None:
            await asyncio.to_thread(backend.close)
            del backend
            await asyncio.to_thread(gc.collect)  # its memory is wanted now

    def _start_timer(self, entry: ServedModel) -> None:
        _stop_timer(entry)
        seconds = entry.keep_seconds
        if entry.backend is None or entry.name in self._pinned or seconds is None or seconds == inf:
            return
        entry.expires = time.time() + seconds
        entry.timer = asyncio.get_running_loop().call_later(seconds, self._expire, entry)

    def _expire(self, entry: ServedModel) -> None:
        task = asyncio.create_task(self.unload(entry.name))  # unless somebody came meanwhile
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _tell(self) -> None:
        async with self._freed:
            self._freed.notify_all()


def _stop_timer(entry: ServedModel) -> None:
    if entry.timer is not None:
        entry.timer.cancel()
    entry.timer = entry.expires = None


def fetch_within(seconds: float) -> Callable[[str, int, int | None], None]:
    """A `progress` for `LLM` that ends it when a model takes longer to fetch."""
    end = time.monotonic() + seconds

    def check(what: str, done: int, total: int | None) -> None:
        if time.monotonic() > end:
            raise FetchError(f"{what} took longer than {seconds:g} s")

    return check


def _close_late(loading: asyncio.Future[LocalBackend]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()


def _kind(error: BaseException) -> str:
    """What is wrong, without names of files."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, FetchError):
        return "it could not be fetched"
    if isinstance(error, RequestError):
        return "the server's options do not fit it"
    return "its file cannot be read" if isinstance(error, OSError) else "its file is damaged or not supported"


def _done(entry: ServedModel, task: asyncio.Task[Backend]) -> None:
    entry.loading = None
    error = None if task.cancelled() else task.exception()
    if isinstance(error, ApiError):
        entry.failed = time.monotonic(), error


def _never(source: str) -> LLM:
    raise FewbitError(f"{source} was closed")
