"""Who waits for the engine: a thread that blocks, or a task of an event loop. The same coroutines serve both.

drive(work(BlockingCaller()))  # in any thread
await work(LoopCaller())       # in an event loop
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from copy import copy
from queue import SimpleQueue
from typing import Any, TypeVar

from ..engine.request import Delta, Request
from ..engine.worker import Worker
from ..errors import FewbitError
from .progress import Meter, Progress

T = TypeVar("T")
R = TypeVar("R", bound=Request)


class BlockingCaller:
    """A thread that waits for the deltas of one call. Its coroutines never suspend, so that `drive` can run them."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Delta] = SimpleQueue()

    def put(self, delta: Delta) -> None:
        """Add a delta. The engine's thread calls this."""
        self._queue.put(delta)

    async def take(self) -> list[Delta]:
        """Wait for deltas."""
        return [self._queue.get()]

    async def compute(self, call: Callable[[], T]) -> T:
        """Call something that takes long, such as a tokenizer."""
        return call()


class LoopCaller:
    """A task of the running event loop. It takes deltas that came while it did not wait together, after one wake-up."""

    def __init__(self) -> None:
        import asyncio  # only callers in an event loop pay for it

        self._loop = asyncio.get_running_loop()
        self._deltas: deque[Delta] = deque()
        self._arrived = asyncio.Event()

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if len(self._deltas) == 1 or self._loop.is_closed():  # else the task was woken already
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def take(self) -> list[Delta]:
        await self._arrived.wait()
        self._arrived.clear()
        deltas = []
        while self._deltas:  # the engine may add to them meanwhile
            deltas.append(self._deltas.popleft())
        return deltas

    async def compute(self, call: Callable[[], T]) -> T:
        import asyncio

        return await asyncio.to_thread(call)


Caller = BlockingCaller | LoopCaller


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine of a BlockingCaller was suspended")


async def run(
    worker: Worker,
    requests: Sequence[R],
    caller: Caller,
    done: Callable[[R], object] = lambda _: None,
    progress: Progress = False,
) -> None:
    """Run requests that have one result each, in one batch. If one fails or the caller stops, the rest is cancelled.

    Args:
        worker: The engine's thread.
        requests: The requests.
        caller: Who waits.
        done: Called with each request that is finished.
        progress: See `Meter`.
    """
    running: dict[Request, R] = {request: request for request in requests}
    with closing(Meter(progress, len(requests), "texts")) as meter:
        try:
            worker.submit_batch([[request] for request in requests], caller.put)
            while running:
                for delta in await caller.take():
                    request = running.pop(delta.request)
                    raise_error(request)
                    done(request)
                    meter.add(request.prompt_tokens)
        finally:
            if running:
                worker.cancel(list(running))


def raise_error(request: Request) -> None:
    """Raise the error that ended a request, if one did: a copy, since several callers may see it."""
    error = request.error
    if isinstance(error, FewbitError):
        raise copy(error) from error
    if error is not None:
        raise FewbitError(f"the model failed: {type(error).__name__}: {error}") from error
