"""The process that trains beside a server. It runs when nothing else wants the processor, and ends with the server.

It reads the arguments of `tune_from_feedback` from its standard input, one line of JSON, and writes lines of JSON: how
far it is, and at the end the version or an error.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from threading import Thread
from typing import Any, TextIO

from ..errors import FewbitError
from ..files.adapter_versions import TrainingElsewhere


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what others print is not for the server
    arguments = json.loads(sys.stdin.readline())
    Thread(target=_end_with_server, daemon=True).start()
    give_way()
    _write(out, **_trained(arguments, out))


def give_way() -> None:
    """Leave the processor to all other processes."""
    os.nice(19)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _trained(arguments: dict[str, Any], out: TextIO) -> dict[str, Any]:
    try:
        from ..tuning import tune_from_feedback

        version = tune_from_feedback(
            **arguments, progress=lambda what, done, total: _write(out, what=what, done=done, total=total)
        )
    except TrainingElsewhere:
        return {"elsewhere": True}
    except (FewbitError, OSError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}
    return {"version": asdict(version)}


def _write(out: TextIO, **fields: Any) -> None:
    out.write(json.dumps(fields) + "\n")


def _end_with_server() -> None:
    """The server holds the other end of standard input. What is trained so far is in a checkpoint."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
