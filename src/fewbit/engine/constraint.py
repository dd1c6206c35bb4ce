"""Constraints: what an output must look like, such as a grammar; and the threads that compute their masks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from ..arrays import Words

MAX_THREADS = 8


class Constraint(Protocol):
    """What one output must look like.

    Its methods are never called at the same time, but in different threads: `mask` in one of the mask pool.
    """

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow: the output ends."""
        ...

    def mask(self) -> Words | None:
        """The tokens that may come next: bit i % 32 of word i // 32 is token i. None: all. May take a millisecond."""
        ...

    def accept(self, token: int) -> None:
        """A token of the output, sampled or forced."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, in order; none if there is a choice. They are accepted one by one."""
        ...

    def rollback(self, count: int) -> None:
        """The last tokens were not kept."""
        ...


class MaskPool:
    """Threads that compute masks while the forward pass runs: none before the first, none when the pool is gone."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "fewbit-mask")

    def submit(self, constraint: Constraint) -> Future[Words | None]:
        """The next mask of a constraint, or what it raised."""
        return self._threads.submit(constraint.mask)
