"""Log lines: for people, or JSON for programs. Prompts and answers are never in them; why a request was refused is."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_as_json = False


def use_json(on: bool) -> None:
    global _as_json  # noqa: PLW0603 -- one process, one log
    _as_json = on


def log(what: str, **fields: Any) -> None:
    """A line on standard error."""
    line = json.dumps({"time": time.time(), "event": what, **fields}) if _as_json else _plain(what, fields)
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


class UvicornLog(logging.Handler):
    """What uvicorn has to say, in this log."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        fields = {} if error is None else {"traceback": "".join(traceback.format_exception(error))}
        log("uvicorn", reason=record.getMessage().strip(), **fields)


class Seldom:
    """A line that is written once a minute at most, however often there is a reason.

    >>> seldom = Seldom(clock=lambda: 0.0)
    >>> seldom.is_due(), seldom.is_due()
    (True, False)
    """

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last: float | None = None

    def is_due(self) -> bool:
        now = self._clock()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


def _plain(what: str, fields: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S")
    if what != "request":
        return " ".join([clock, what, *(f"{name}={value}" for name, value in fields.items())])
    line = f"{clock} {fields['method']} {_printable(fields['path'])} {fields['status']} {fields['seconds']:.2f} s"
    line += "".join(f" {name}={_printable(fields[name])}" for name in ("id", "key", "reason") if name in fields)
    if "tokens" not in fields:
        return line
    cached = f" ({fields['cached']} cached)" if fields["cached"] else ""
    return f"{line}, {fields['model']}: {fields['prompt']} tokens in{cached}, {fields['tokens']} out"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)
