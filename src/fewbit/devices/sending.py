"""What is shown while weights are sent to a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..load_options import LoadOptions
from ..ops.cut import weights_of
from ..ops.graph import Graph


def num_bytes(graph: Graph) -> int:
    return sum(w.nbytes for w in weights_of(graph).values())


def report_sending(options: LoadOptions, graph: Graph) -> Callable[[int], None] | None:
    """A function that takes the bytes of each weight that was sent and reports them, as those of a download."""
    report, total, sent = options.progress, num_bytes(graph), 0
    if report is None:
        return None

    def advance(nbytes: int) -> None:
        nonlocal sent
        sent = min(sent + nbytes, total)
        report(f"sending {Path(options.model).name} to {options.device}", sent, total)

    return advance
