"""Waiting for what a request needs, until its client disconnects or the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request

from .backend import Asker
from .errors import ApiError, out_of_time, shutting_down
from .state import client_name, state_of

T = TypeVar("T")

GONE = 499  # as nginx says: nobody is left to read it


async def unless_gone(request: Request, call: Awaitable[T], seconds: float | None = None) -> T:
    """What a call gives, unless the client disconnects, time is over or the server ends: then the call is cancelled."""
    task = asyncio.ensure_future(call)
    leaving, ending = asyncio.ensure_future(_gone(request)), asyncio.ensure_future(state_of(request).until_over())
    tasks = {task, leaving, ending}
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if not done:
            raise out_of_time()
        raise shutting_down() if ending in done else ApiError(GONE, "the client disconnected", code="disconnected")
    finally:
        leaving.cancel()
        ending.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def asker_of(request: Request) -> Asker:
    return Asker(state_of(request).text, client_name(request), request.scope.get("fewbit.body_bytes", 0))


async def on_body(request: Request, call: Callable[..., T], *given: Any) -> T:
    """What a call gives that reads a large body, made in a thread."""
    work = state_of(request).text.read(client_name(request), lambda: call(*given))
    return await unless_gone(request, work)
