"""How far a download, a load or a prompt is, shown when it takes longer than a moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TextIO

import click

from .output import is_quiet, is_terminal, shown, size_text

PATIENCE = 1.0  # seconds until something is shown
PROMPT_PATIENCE = 0.7  # the same for a prompt
INTERVAL = 0.2  # seconds between two states of a prompt
WHEEL = "|/-\\"
LINE_SECONDS = 5.0  # between two lines where there is no terminal


class Display(Protocol):
    def update(self, what: str, done: int, total: int | None) -> None: ...

    def stop(self) -> None: ...


class Waiting:
    """Shows progress while its block runs, from the second second on: a bar on a terminal, lines elsewhere.

    It is a `progress` of fetching and loading: called with (what, bytes done, bytes in total or None). With a `unit`
    it counts those instead of bytes.

    >>> with Waiting("loading a model") as waiting:
    ...     waiting("fetching a.gguf", 10, 100)
    """

    def __init__(self, what: str, patience: float = PATIENCE, unit: str = "") -> None:
        self._state: tuple[str, int, int | None] = (what, 0, None)
        self._unit = unit
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
        display = Bar(self._unit) if is_terminal(sys.stderr) else Lines(unit=self._unit)
        with self._lock:
            if not self._over:
                self._display = display
                display.update(*self._state)


class Bar:
    """A bar on the terminal, a pulsing one if the total is not known."""

    def __init__(self, unit: str = "") -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = TextColumn("{task.description}", markup=False), BarColumn()
        console = Console(stderr=True)
        done = MofNCompleteColumn() if unit else DownloadColumn()
        self._sizes = Progress(*columns, done, TimeRemainingColumn(), console=console, transient=True)
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
    """A line every few seconds."""

    def __init__(self, seconds: float = LINE_SECONDS, unit: str = "") -> None:
        self._seconds, self._unit = seconds, unit
        self._last: tuple[str, float] | None = None

    def update(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._last and self._last[0] == what and now - self._last[1] < self._seconds:
            return
        self._last = what, now
        end = f" of {self._amount(total)}" if total else ""
        unit = f" {self._unit}" if self._unit else ""
        click.echo(f"fewbit: {shown(what)}" + (f": {self._amount(done)}{end}{unit}" if done or total else ""), err=True)

    def stop(self) -> None:
        """Lines stay."""

    def _amount(self, count: int) -> str:
        return str(count) if self._unit else size_text(count)


class Prefill:
    """Shows on the terminal how much of a prompt has been computed while its block runs.

    Args:
        done: Returns the share of the prompt, from 0 to 1.
        out: The terminal. Defaults to standard error.
        patience: Seconds until something is shown.
    """

    def __init__(self, done: Callable[[], float], out: TextIO | None = None, patience: float = PROMPT_PATIENCE) -> None:
        self._done = done
        self._out = sys.stderr if out is None else out
        self._patience = patience
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._width = 0

    def __enter__(self) -> Prefill:
        if self._out.isatty() and not is_quiet():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._print("")

    def _show(self) -> None:
        wait, count = self._patience, 0
        while not self._over.wait(wait):
            self._print(f"{WHEEL[count % len(WHEEL)]} reading the prompt: {100 * self._done():.0f}%")
            wait, count = INTERVAL, count + 1

    def _print(self, text: str) -> None:
        """Overwrite the line; spaces clear it on any terminal."""
        if text or self._width:
            self._out.write(f"\r{text:{self._width}}" + ("" if text else "\r"))
            self._out.flush()
        self._width = len(text)


def after_prefill(texts: Iterable[str], done: Callable[[], float]) -> Iterator[str]:
    """The same texts, with progress of the prompt on the terminal until the first one."""
    stream = iter(texts)
    with Prefill(done):
        first = next(stream, None)
    if first is not None:
        yield first
        yield from stream
