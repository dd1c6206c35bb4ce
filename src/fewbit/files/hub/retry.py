"""How often a download is tried, and the pauses between."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import TypeVar

from .folder import Progress

TRIES = 5  # without progress: a try that brings bytes resets the count
PAUSE = 0.5  # seconds before the second try, then twice as long each time
MAX_PAUSE = 8.0

T = TypeVar("T")


def attempt(
    call: Callable[[], T],
    what: str,
    progress: Progress,
    may_pass: Callable[[Exception], bool],
    describe: Callable[[Exception], object] = str,
) -> T:
    """Call until there is a result, or an error that a further try cannot help, at most `TRIES` times."""
    for tries in range(1, TRIES):
        try:
            return call()
        except Exception as error:
            if not may_pass(error):
                raise
            wait(tries, what, describe(error), progress)
    return call()


def wait(tries: int, what: str, why: object, progress: Progress) -> None:
    """Pause after so many tries, and report why."""
    seconds = min(PAUSE * 2 ** (tries - 1), MAX_PAUSE)
    progress(f"{what}: {why}; try {tries + 1} of {TRIES} in {seconds:g} s", 0, None)
    sleep(seconds)
