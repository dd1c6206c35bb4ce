"""Timing calls on a shared machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

PAUSE = 0.05  # seconds


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def paired(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, pause: float = PAUSE, warm: float = 0.0
) -> tuple[float, float]:
    """The median time of `ours`, and the median over the rounds of its time over that of `theirs`.

    They alternate, so that what slows the machine down slows both. The first round is not counted.
    """
    times = [(settled(ours, pause, warm), settled(theirs, pause, warm)) for _ in range(rounds + 1)][1:]
    return median(a for a, _ in times), median(a / b for a, b in times)


def settled(call: Callable[[], object], pause: float, warm: float, calls: int = 5) -> float:
    """The median time of a few calls. Before them a pause, since threads of a BLAS spin for a while when their work is
    done, and `warm` seconds of calls, since a core that has been idle is slow at first."""
    time.sleep(pause)
    started = time.perf_counter()
    while time.perf_counter() - started < warm:
        call()
    return median(seconds(call) for _ in range(calls))
