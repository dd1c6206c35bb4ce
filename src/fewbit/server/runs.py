"""A job of one request: who may begin, what it counts, and how it ends when its client goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from starlette.requests import Request

from ..errors import FewbitError, FileChanged
from .adapted import AdaptedBackend
from .backend import Backend
from .errors import ApiError, Interrupted, from_fewbit, shutting_down
from .ignored import note_ignored
from .images import allow_urls
from .jobs import Finished, Job, OutputDelta, RunEvent, Started, Usage
from .log import log
from .pool import ServedModel
from .settings import Settings
from .sse import EventStream
from .state import State, charge, client_name, state_of
from .waiting import asker_of, unless_gone

T = TypeVar("T")

MAX_RESTARTS = 2  # of a job whose replica ended


class Run:
    """The events of a job after `started`. It must be closed: by `stream`, `collect` or `aclose`."""

    def __init__(self, request: Request, model: str, backend: Backend, job: Job, stack: AsyncExitStack) -> None:
        self.model, self.backend, self.job = model, backend, job
        self.created = int(time.time())
        self.started = Started([])
        self._request, self._state, self._stack = request, state_of(request), stack
        self._begun = asyncio.get_running_loop().time()
        self._events: AsyncGenerator[RunEvent, None] = backend.run(job, asker_of(request))
        self._last_token: dict[int, float] = {}  # when each output got its last
        self._num_open, self._reason, self._is_over = 0, "cancelled", False  # outputs, and how they would end
        self._reader: asyncio.Task[Any] | None = None  # that waits for the next event
        self._state.runs.add(self)
        stack.callback(self._leave)
        stack.push_async_callback(self._close_events)

    async def start(self) -> None:
        first = await self._next()
        assert isinstance(first, Started)
        self.started, self._num_open = first, self.job.num_outputs
        charge(self._request, sum(map(len, first.prompts)))
        metrics = self._state.metrics
        metrics.batch.labels(self.model).observe(first.active + self.job.num_outputs)

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> OutputDelta | Finished | Usage:
        found = await self._next()
        assert not isinstance(found, Started)
        self._count(found)
        return found

    async def collect(self) -> tuple[list[list[OutputDelta]], list[Finished], Usage]:
        """All of it: the deltas of each output, how each ended, and usage. A client that goes ends it."""
        try:
            return await unless_gone(self._request, self._collect())
        finally:
            await self.aclose()

    async def _collect(self) -> tuple[list[list[OutputDelta]], list[Finished], Usage]:
        """All of it. Nobody has seen any of it before it is complete, so what was interrupted is run again."""
        for _ in range(MAX_RESTARTS):
            try:
                return await self._collect_once()
            except Interrupted:
                await self._restart()
        return await self._collect_once()

    async def _restart(self) -> None:
        await self._events.aclose()
        self._events = self.backend.run(self.job, asker_of(self._request))
        self._last_token, self._num_open = {}, self.job.num_outputs
        assert isinstance(await self._next(), Started)

    def stream(self, parts: AsyncGenerator[bytes, None], media_type: str | None = None) -> EventStream:
        """A response that streams `parts`, made of these events, and closes this."""
        limits = self._state.settings
        return EventStream(
            self._closing(parts), ping_seconds=limits.ping_seconds, write_seconds=limits.write_seconds,
            media_type=media_type, **({} if media_type is None else {"ping": None}),
        )  # fmt: skip

    def end(self) -> None:
        """End it with an error, wherever it is."""
        self._is_over = True
        if self._reader is not None:
            self._reader.cancel()

    async def aclose(self) -> None:
        await self._stack.aclose()

    async def _close_events(self) -> None:
        await self._events.aclose()

    def _leave(self) -> None:
        self._state.runs.discard(self)
        if self._num_open:
            self._state.metrics.finished.labels(self.model, self._reason).inc(self._num_open)

    async def _closing(self, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        try:
            async for part in parts:
                yield part
        finally:
            await parts.aclose()
            await self.aclose()

    async def _next(self) -> RunEvent:
        if self._is_over:
            raise shutting_down()
        self._reader = asyncio.current_task()
        try:
            return await anext(self._events)
        except asyncio.CancelledError:
            if not self._is_over or self._reader is None or self._reader.uncancel():
                raise
            raise shutting_down() from None
        except FewbitError as error:
            self._reason = "error"
            raise failed(self._state, self.model, self.backend, error) from error
        except RecursionError:
            raise ApiError(400, "the request is nested too deeply", code="invalid_request") from None
        finally:
            self._reader = None

    async def _collect_once(self) -> tuple[list[list[OutputDelta]], list[Finished], Usage]:
        deltas: list[list[OutputDelta]] = [[] for _ in range(self.job.num_outputs)]
        finished: dict[int, Finished] = {}
        usage = Usage(0, 0, 0)
        async for one in self:
            if isinstance(one, OutputDelta):
                deltas[one.index].append(one)
            elif isinstance(one, Finished):
                finished[one.index] = one
            else:
                usage = one
        return deltas, [finished[index] for index in range(len(deltas))], usage

    def _count(self, found: OutputDelta | Finished | Usage) -> None:
        metrics = self._state.metrics
        if isinstance(found, OutputDelta) and found.tokens:
            charge(self._request, len(found.tokens))
            self._count_tokens(found, asyncio.get_running_loop().time())
        elif isinstance(found, Finished):
            self._num_open -= 1
            reason = "invalid" if found.is_invalid else found.completion.finish_reason
            metrics.finished.labels(self.model, reason).inc()
            if found.completion.index == 0:  # of one prompt it is the same for all
                share = found.completion.cached_tokens / max(1, found.completion.prompt_tokens)
                metrics.cached_share.labels(self.model).observe(share)
        elif isinstance(found, Usage):
            metrics.prompt_tokens.labels(self.model).inc(found.prompt_tokens)
            self._request.scope["fewbit.usage"] = (self.model, found)  # for the log

    def _count_tokens(self, found: OutputDelta, now: float) -> None:
        """Tokens that came together share the time since the last ones, or since the request began to run."""
        metrics, last = self._state.metrics, self._last_token.get(found.index)
        share = (now - (self._begun if last is None else last)) / len(found.tokens)
        if last is None:
            metrics.first_token.labels(self.model).observe(share)
        for _ in found.tokens[last is None :]:
            metrics.between.labels(self.model).observe(share)
        self._last_token[found.index] = now


async def begin(request: Request, model: str | None, job: Job, is_held: bool = False) -> Run:
    """Load the model, check the job and put it in the queue; what cannot be done is refused here. `is_held`: the
    caller has the model already."""
    state = state_of(request)
    entry = state.pool.find(model)
    _limit(job, state.settings)
    allow_urls(job.messages, state.settings.allow_image_urls)
    job.client = client_name(request, job.client)
    job.priority = min(job.priority, request.scope.get("fewbit.max_priority", job.priority))
    stack = AsyncExitStack()
    try:
        enter(state, entry, job, stack)
        backend = await held(request, model, stack, is_held)
        name = f"{entry.name}:{backend.adapter}" if isinstance(backend, AdaptedBackend) else entry.name
        run = Run(request, name, backend, job, stack)
        await unless_gone(request, run.start(), state.settings.request_seconds)
        note_ignored(request, run.started.ignored)
    except BaseException:
        await stack.aclose()
        raise
    return run


async def held(request: Request, model: str | None, stack: AsyncExitStack, is_held: bool = False) -> Backend:
    """A model, until the stack is closed; who must wait for it may disconnect."""
    pool = state_of(request).pool
    is_ready = pool.find(model).is_ready
    using = stack.enter_async_context(pool.use(model, is_held))
    return await (using if is_ready else unless_gone(request, using))


def failed(state: State, model: str, backend: Backend, error: FewbitError) -> ApiError:
    """An error of a model as a client is told it. A model whose file changed is put away, and loaded anew."""
    if isinstance(error, FileChanged):
        log("model failed", model=model, reason=str(error))
        state.pool.drop(backend)
    return from_fewbit(error)


def prompt_rules(settings: Settings) -> dict[str, Any]:
    """The rules of a server for prompts, as `ChatInput` takes them."""
    return {"policy": settings.tools_without_template, "keeps_volatile": settings.keeps_volatile_lines}


def rules_of(request: Request) -> dict[str, Any]:
    return prompt_rules(state_of(request).settings)


def namespace(request: Request, salt: str | None) -> str:
    """Where the prefixes of a client are kept: apart for each key, and for each salt."""
    key = getattr(request.state, "key_id", "")
    return f"{key}\0{salt or ''}" if key or salt else ""


def _limit(job: Job, limits: Settings) -> None:
    """Hold a job to the limits of this server."""
    if job.num_outputs > limits.max_outputs:
        raise ApiError(400, f"{job.num_outputs} outputs are too many for one request: at most {limits.max_outputs}",
                       "n", "too_many_outputs")  # fmt: skip
    job.max_prompt_tokens, job.rules = limits.max_prompt_tokens, prompt_rules(limits)
    job.options["deadline"] = limits.request_seconds
    most, max_tokens = limits.max_output_tokens, job.options.get("max_tokens")
    if most is not None and max_tokens is not None and max_tokens > most:
        raise ApiError(
            400, f"max_tokens is at most {most} here, {max_tokens} was given", "max_tokens", "too_many_tokens"
        )
    if max_tokens is None:
        usual = [one for one in (most, job.default_tokens) if one is not None]
        job.options["max_tokens"] = min(usual, default=None)


def enter(state: State, entry: ServedModel, job: Job, stack: AsyncExitStack) -> None:
    """Take a place in the queue, until the stack is closed."""
    state.check_open()
    seqs = 0 if entry.backend is None else entry.backend.facts.max_seqs
    if entry.outputs and entry.outputs + job.num_outputs > seqs + state.settings.max_queue:
        raise ApiError(429, f"{entry.outputs} outputs run or wait already; try again later", code="queue_full",
                       retry_after=2)  # fmt: skip
    entry.outputs += job.num_outputs
    state.open_runs += 1

    def leave() -> None:
        entry.outputs -= job.num_outputs
        state.open_runs -= 1

    stack.callback(leave)
