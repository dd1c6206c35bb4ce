"""The rate of one thread as the mean over the cores, for benchmarks that compare it with several threads.

A neighbour on the same physical core can slow one of our cores down and not another. A thread alone runs where the
system finds it best off; several threads run everywhere, the slow core included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import mean


def rate_of_one(rate: Callable[[], float], cores: int) -> float:
    """`rate()`, in one thread, on each of some cores in turn.

    >>> rate_of_one(lambda: 3.0, 2)
    3.0
    """
    if not hasattr(os, "sched_setaffinity"):
        return rate()
    usable, rates = os.sched_getaffinity(0), []
    try:
        for core in sorted(usable)[:cores]:
            os.sched_setaffinity(0, {core})
            rates.append(rate())
    finally:
        os.sched_setaffinity(0, usable)
    return mean(rates)
