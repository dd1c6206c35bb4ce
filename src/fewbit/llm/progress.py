"""Progress of a batch: a line on a terminal, a callback, or nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

from ..errors import DtypeError

Progress = bool | Callable[[int, int], object]

BAR = 20  # characters
TERMINAL_SECONDS = 0.1  # between two updates of the line
LOG_SECONDS = 10.0  # between two lines where nothing can be overwritten: in notebooks, files and pipes


class ProgressMeter:
    """Counts what is done of `total`, and reports it after each.

    Args:
        progress: True for a line on standard error, a function that is called with (done, total), or False.
        total: Number of outputs or texts.
        what: What is counted.
    """

    def __init__(self, progress: Progress, total: int, what: str) -> None:
        if not isinstance(progress, bool) and not callable(progress):
            raise DtypeError(f"progress must be True, False or a function of (done, total), got {progress!r}")
        self._done, self._total, self._tokens = 0, total, 0
        self._line = ProgressLine(what) if progress is True else None
        self._call = progress if callable(progress) else None

    def add(self, tokens: int) -> None:
        """One more is done, of so many tokens."""
        self._done += 1
        self._tokens += tokens
        if self._line is not None:
            self._line.update(self._done, self._total, self._tokens)
        if self._call is not None:
            self._call(self._done, self._total)

    def close(self) -> None:
        """End the line, however far it is."""
        if self._line is not None:
            self._line.close()


class ProgressLine:
    """A line that is overwritten; where there is no terminal, a new one now and then.

    Args:
        what: What is counted.
        out: Where to write. Defaults to standard error.
        clock: Gives the time in seconds.
    """

    def __init__(self, what: str, out: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._what, self._clock = what, clock
        self._out = sys.stderr if out is None else out
        self._is_terminal = self._out.isatty()
        self._start = self._clock()
        self._last = self._start if not self._is_terminal else -TERMINAL_SECONDS
        self._is_open = False

    def update(self, done: int, total: int, tokens: int) -> None:
        now = self._clock()
        is_due = now - self._last >= (TERMINAL_SECONDS if self._is_terminal else LOG_SECONDS)
        if not is_due and not (self._is_open and done == total):
            return
        self._last, self._is_open = now, True
        text = progress_text(self._what, done, total, tokens, now - self._start)
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[K{text[:width]}")
        else:
            self._out.write(f"{text}\n")
        self._out.flush()

    def close(self) -> None:
        if self._is_open and self._is_terminal:
            self._out.write("\n")
            self._out.flush()
        self._is_open = False


def progress_text(what: str, done: int, total: int, tokens: int, seconds: float) -> str:
    """
    >>> progress_text("outputs", 16, 64, 4000, 10.0)
    'outputs: 16/64 [#####...............] 400 tokens/s, 0:30 left'
    """
    bar = "#" * (BAR * done // total)
    rate = "" if not tokens else f"{tokens / seconds:.0f} tokens/s, " if seconds > 0 else "- tokens/s, "
    left = round(seconds / done * (total - done))
    time = f"{left // 60}:{left % 60:02} left" if done < total else f"{seconds:.1f} s"
    return f"{what}: {done}/{total} [{bar:.<{BAR}}] {rate}{time}"
