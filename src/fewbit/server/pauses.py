"""How long the event loop could not do anything: the longest pause since the start, and of late."""

from __future__ import annotations

import asyncio

INTERVAL = 0.01  # seconds
USUAL = 0.05  # seconds that a pause may take on a machine that is not overloaded
LENIENCE = 20  # of what is more: a machine that lets this server wait makes its clients wait too
MAX_LENIENCE = 5.0  # seconds
DECAY = 0.995  # of what counts as late, in each interval: half of it is forgotten in 1.4 s


class PauseWatch:
    """Sleeps again and again, and sees how late it wakes up."""

    def __init__(self) -> None:
        self.longest = 0.0  # seconds
        self._recent = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def lenience(self) -> float:
        """Seconds that clients get beside their time, on a machine that is overloaded."""
        return min(LENIENCE * max(self._recent - USUAL, 0.0), MAX_LENIENCE)

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
            late = clock() - begun - INTERVAL
            self.longest, self._recent = max(self.longest, late), max(self._recent * DECAY, late)
