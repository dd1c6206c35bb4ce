"""Experts whose matrices stay in host memory: their rows come to the CPU, and what it makes of them goes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from ...arrays import Floats
from . import row_maths
from .session import Session
from .values import Collector, Launcher, Rows, StepInputs

Compute = Callable[[Floats, Floats], None]  # of rows with the scores behind them, into rows


@dataclass
class HostRows:
    """Pinned memory that rows go through, which grows."""

    device: Session
    held: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def floats(self, name: str, *shape: int) -> Floats:
        nbytes = 4 * prod(shape)
        if name not in self.held or len(self.held[name]) < nbytes:
            self.held[name] = self.device.pinned(nbytes + nbytes // 4)
        return self.held[name][:nbytes].view(np.float32).reshape(shape)


@dataclass(frozen=True)
class HostExperts:
    """The layers whose experts run on the CPU, by the `id` of their matrices `up`, and memory for their rows."""

    rows: HostRows | None = None
    layers: Mapping[int, Compute] = field(default_factory=dict)


def experts_on_host(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, scores: Rows, *, tokens: int, rows: HostRows, compute: Compute
) -> None:
    """Waits for the rows, and for the CPU."""
    width = x.width + scores.width
    both = Rows(run.scratch("host_experts", 4 * tokens * width), width, width)
    made = Rows(run.scratch("host_experts_made", 4 * tokens * out.width), out.width, out.width)
    row_maths.join(run, step, both, x, scores, tokens=tokens, heads=1)
    if not isinstance(run, Collector):
        given, result = rows.floats("given", tokens, width), rows.floats("made", tokens, out.width)
        run.device.fetch(both.pointer, given)
        run.device.sync()
        compute(given, result)
        run.device.send(result, made.pointer)
        run.is_first = True  # behind a copy
    row_maths.columns(run, step, out, made, tokens=tokens, start=0, width=out.width)
