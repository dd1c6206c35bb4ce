"""How often a download is tried again, and how long is waited before."""

from __future__ import annotations

from time import sleep

from .folder import Progress

TRIES = 5  # that bring nothing new: one that brings bytes starts the count again
PAUSE = 0.5  # seconds before the second try, then twice as long each time
MAX_PAUSE = 8.0


def wait(tries: int, what: str, why: object, progress: Progress) -> None:
    """Wait after so many tries in vain, and say why."""
    seconds = min(PAUSE * 2 ** (tries - 1), MAX_PAUSE)
    progress(f"{what}: {why}; try {tries + 1} of {TRIES} in {seconds:g} s", 0, None)
    sleep(seconds)
