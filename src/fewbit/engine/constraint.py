"""Constraints: what an output must look like, such as a grammar; and the threads that compute their masks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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

    def submit_drafted(
        self, constraint: Constraint, earlier: Sequence[Future[Words | None]], drafts: Sequence[int]
    ) -> list[Future[Words | None]]:
        """The masks after each of some drafts, if it was accepted.

        None for those after a draft that is not allowed, or that ends the output: what is sampled there is thrown away.

        Args:
            constraint: The constraint. It is as before when the last mask is there.
            earlier: Masks that were submitted before; the last one is that of the next token.
            drafts: Tokens that may come next.
        """
        masks = [Future[Words | None]() for _ in drafts]
        self._threads.submit(_draft_masks, constraint, earlier, drafts, masks)
        return masks


def _draft_masks(
    constraint: Constraint,
    earlier: Sequence[Future[Words | None]],
    drafts: Sequence[int],
    masks: Sequence[Future[Words | None]],
) -> None:
    wait(earlier)
    accepted, found = 0, list[Words | None]()
    try:
        allowed = earlier[-1].result()
        for token in drafts:
            if not is_allowed(allowed, token):
                break
            constraint.accept(token)
            accepted += 1
            if constraint.is_finished:
                break
            allowed = constraint.mask()
            found.append(allowed)
    except Exception:  # it is raised again when the tokens are accepted for good
        pass
    try:
        constraint.rollback(accepted)
    finally:
        for place, future in enumerate(masks):
            future.set_result(found[place] if place < len(found) else None)


def is_allowed(mask: Words | None, token: int) -> bool:
    """Whether a mask lets a token come next.

    >>> import numpy as np
    >>> is_allowed(np.array([0b100], np.uint32), 2), is_allowed(np.array([0b100], np.uint32), 32)
    (True, False)
    """
    return mask is None or (token // 32 < len(mask) and bool(mask[token // 32] >> (token % 32) & 1))
