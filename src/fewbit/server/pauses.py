"""How long the event loop could not do anything: the longest pause since the start."""

from __future__ import annotations

import asyncio

INTERVAL = 0.01  # seconds


class PauseWatch:
    """Sleeps again and again, and sees how late it wakes up."""

    def __init__(self) -> None:
        self.longest = 0.0  # seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            begun = clock()
            await asyncio.sleep(INTERVAL)
            self.longest = max(self.longest, clock() - begun - INTERVAL)
