"""Memory that large requests took goes back to the system: the C library would keep it for the next ones."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

LARGE_BYTES = 1 << 20  # of an allocation, or of a request
_M_MMAP_THRESHOLD = -3  # of mallopt
_DELAY = 1.0  # seconds


class Trimmer:
    """Releases free memory some time after a large request, once for all that come meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_planned = False

    def after(self, nbytes: int) -> None:
        """A request of so many bytes is done."""
        if nbytes < LARGE_BYTES:
            return
        with self._lock:
            if self._is_planned:
                return
            self._is_planned = True
        timer = threading.Timer(_DELAY, self._trim)
        timer.daemon = True
        timer.start()

    def _trim(self) -> None:
        with self._lock:
            self._is_planned = False
        trim()


def set_up() -> None:
    """Large allocations are mapped one by one, so that each goes back when it is freed; glibc would stop doing so."""
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def trim() -> bool:
    """Give free memory back. Could the C library do it?"""
    malloc_trim = getattr(_libc(), "malloc_trim", None)
    return malloc_trim is not None and malloc_trim(0) >= 0


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
