"""How far a prompt is, shown on the terminal when the first token takes longer than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from .output import is_quiet

PATIENCE = 0.7  # seconds without a word
INTERVAL = 0.2

_WHEEL = "|/-\\"


class Prefill:
    """While its block runs, and after a moment of it, a line on the terminal that is wiped at the end.

    `done` tells how much of the prompt was run, from 0 to 1.
    """

    def __init__(self, done: Callable[[], float], out: TextIO | None = None, patience: float = PATIENCE) -> None:
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
            self._print(f"{_WHEEL[count % len(_WHEEL)]} reading the prompt: {100 * self._done():.0f}%")
            wait, count = INTERVAL, count + 1

    def _print(self, text: str) -> None:
        """Over what stands there; spaces wipe it on any terminal."""
        if text or self._width:
            self._out.write(f"\r{text:{self._width}}" + ("" if text else "\r"))
            self._out.flush()
        self._width = len(text)


def after_prefill(texts: Iterable[str], done: Callable[[], float]) -> Iterator[str]:
    """The same texts; until the first comes, the terminal shows how much of the prompt was run."""
    stream = iter(texts)
    with Prefill(done):
        first = next(stream, None)
    if first is not None:
        yield first
        yield from stream
