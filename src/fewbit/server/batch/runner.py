"""Many lines in flight: as soon as one is answered, the next one begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from itertools import islice

from .lines import InputLine, Record

Answer = Callable[[InputLine], Awaitable[Record]]


async def in_flight(lines: Iterable[InputLine], answer: Answer, most: int) -> AsyncGenerator[Record, None]:
    """The records of lines in the order in which they are done, with at most so many at a time."""
    source = iter(lines)
    running = {_begin(answer, line) for line in islice(source, most)}
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running |= {_begin(answer, line) for line in islice(source, len(done))}
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


def _begin(answer: Answer, line: InputLine) -> asyncio.Future[Record]:
    return asyncio.ensure_future(answer(line))
