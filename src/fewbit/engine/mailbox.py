"""Events for callers in an event loop. All that a step has to say wakes the loop once."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

from .request import Event, Sink

if TYPE_CHECKING:
    import asyncio


def mailbox() -> tuple[asyncio.Queue[Event], Sink]:
    """A queue of the running event loop, and a sink that fills it from another thread."""
    import asyncio  # only callers in an event loop pay for it

    loop = asyncio.get_running_loop()
    post = _POSTS.get(loop) or _POSTS.setdefault(loop, _Post(loop))
    queue: asyncio.Queue[Event] = asyncio.Queue()
    return queue, lambda event: post.put(queue, event)


class _Post:
    """Carries events into one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._events: deque[tuple[asyncio.Queue[Event], Event]] = deque()
        self._called = False  # and not come yet

    def put(self, queue: asyncio.Queue[Event], event: Event) -> None:
        """Called by the engine's thread; an error if nobody is there any more."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._events.append((queue, event))
        if not self._called:
            self._called = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # first: what is put from now on calls again
        while self._events:
            queue, event = self._events.popleft()
            queue.put_nowait(event)


_POSTS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Post] = weakref.WeakKeyDictionary()
