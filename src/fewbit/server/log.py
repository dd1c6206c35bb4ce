"""Log lines: for people, or JSON for programs. What was asked and answered is never in them."""

from __future__ import annotations

import json
import sys
import time
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


def _plain(what: str, fields: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S")
    if what != "request":
        return " ".join([clock, what, *(f"{name}={value}" for name, value in fields.items())])
    line = f"{clock} {fields['method']} {_printable(fields['path'])} {fields['status']} {fields['seconds']:.2f} s"
    if "tokens" not in fields:
        return line
    cached = f" ({fields['cached']} cached)" if fields["cached"] else ""
    return f"{line}, {fields['model']}: {fields['prompt']} tokens in{cached}, {fields['tokens']} out"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)
