"""How far a download or a load is, shown when it takes longer than a moment."""

from __future__ import annotations

import sys
import threading
import time
from typing import Protocol

import click

from .output import is_quiet, is_terminal, shown, size_text

PATIENCE = 1.0  # seconds without a word
LINE_SECONDS = 5.0  # between two lines where there is no terminal


class Display(Protocol):
    def update(self, what: str, done: int, total: int | None) -> None: ...

    def stop(self) -> None: ...


class Waiting:
    """While its block runs, and after a second of it, says what is going on: a bar on a terminal, lines elsewhere.

    It can be called as the `progress` of fetching and loading: what, bytes done, bytes in all if that is known.

    >>> with Waiting("loading a model") as waiting:
    ...     waiting("fetching a.gguf", 10, 100)
    """

    def __init__(self, what: str, patience: float = PATIENCE) -> None:
        self._state: tuple[str, int, int | None] = (what, 0, None)
        self._display: Display | None = None
        self._over = is_quiet()
        self._lock = threading.Lock()  # the timer has a thread of its own
        self._timer = threading.Timer(patience, self._show)
        self._timer.daemon = True

    def __call__(self, what: str, done: int, total: int | None) -> None:
        with self._lock:
            self._state = what, done, total
            if self._display:
                self._display.update(what, done, total)

    def __enter__(self) -> Waiting:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._display:
                self._display.stop()

    def _show(self) -> None:
        display = Bar() if is_terminal(sys.stderr) else Lines()
        with self._lock:
            if not self._over:
                self._display = display
                display.update(*self._state)


class Bar:
    """A bar on the terminal; one without an end where nobody knows how much there is to do."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn()
        console = Console(stderr=True)
        self._sizes = Progress(*columns, DownloadColumn(), TimeRemainingColumn(), console=console, transient=True)
        self._plain = Progress(*columns, console=console, transient=True)
        self._bar: Progress | None = None

    def update(self, what: str, done: int, total: int | None) -> None:
        bar = self._sizes if done or total else self._plain
        if bar is not self._bar:
            self.stop()
            self._bar = bar
            bar.start()
        if not bar.tasks:
            bar.add_task("", total=None)
        bar.update(bar.tasks[0].id, description=shown(what, 60), completed=done, total=total)

    def stop(self) -> None:
        if self._bar:
            self._bar.stop()


class Lines:
    """A line now and then."""

    def __init__(self, seconds: float = LINE_SECONDS) -> None:
        self._seconds = seconds
        self._last: tuple[str, float] | None = None

    def update(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._last and self._last[0] == what and now - self._last[1] < self._seconds:
            return
        self._last = what, now
        end = f" of {size_text(total)}" if total else ""
        click.echo(f"fewbit: {shown(what)}" + (f": {size_text(done)}{end}" if done or total else ""), err=True)

    def stop(self) -> None:
        """There is nothing to take away."""
