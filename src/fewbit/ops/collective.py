"""Where ranks meet that share the work of a model: the reference of what every device does."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier, BrokenBarrierError
from typing import Protocol

import numpy as np

from ..arrays import Floats
from ..errors import FewbitError

FAILED = "another part of the model has failed"  # what ranks say that did not fail themselves


class Group(Protocol):
    """The meeting place of all ranks. Operations take what their device made."""

    def abort(self) -> None:
        """Whoever waits for others, or will, gets an error: a rank has failed."""
        ...

    def reset(self) -> None:
        """Begin anew, once nobody waits."""
        ...


class ThreadGroup:
    """Ranks in threads of one process, for the NumPy backend. All make the same calls in the same order."""

    def __init__(self, ranks: int) -> None:
        self._parts: list[Floats | None] = [None] * ranks
        self._barrier = Barrier(ranks)

    def all_reduce(self, rank: int, part: Floats) -> Floats:
        """The sum of all parts, added in the order of ranks."""
        first, *others = self._exchange(rank, part)
        total = first.copy()
        for other in others:
            total += other
        return total

    def all_gather(self, rank: int, part: Floats) -> Floats:
        """The columns of all parts side by side."""
        return np.concatenate(self._exchange(rank, part), axis=1)

    def abort(self) -> None:
        self._barrier.abort()

    def reset(self) -> None:
        self._barrier.reset()

    def _exchange(self, rank: int, part: Floats) -> Sequence[Floats]:
        self._parts[rank] = part
        self._meet()
        parts = [one for one in self._parts if one is not None]
        self._meet()
        return parts

    def _meet(self) -> None:
        try:
            self._barrier.wait()
        except BrokenBarrierError:
            raise FewbitError(FAILED) from None
