"""What a plan is: the launches of a step in their order, in segments that are recorded and launched by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from .host_experts import HostExperts
from .steps import StepLists
from .values import Collector, Launcher, Rows, StepInputs

Launch = Callable[[Launcher, StepInputs], None]


@dataclass(frozen=True)
class Segment:
    """Kernels that are launched behind each other, or an operation in which the host takes part."""

    launches: tuple[Launch, ...]
    has_host: bool = False
    recorded: StepLists = field(default_factory=StepLists)

    def launch(self, run: Launcher, step: StepInputs) -> None:
        """All of them. Those of sizes that came before are launched by one call."""
        if self.has_host or isinstance(run, Collector):
            self._launch_each(run, step)
        else:
            self.recorded.launch(run, step, self._launch_each)

    def _launch_each(self, run: Launcher, step: StepInputs) -> None:
        for one in self.launches:
            one(run, step)


@dataclass(frozen=True)
class Plan:
    """The kernels of a step, in their order, and where its result is."""

    segments: tuple[Segment, ...]
    labels: tuple[str, ...]  # of the launches: what they are, for those who measure them
    result: Rows
    given: Rows | None  # rows that another device made, if it begins with them
    buffers: tuple[Any, ...]  # memory of the rows

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(one for segment in self.segments for one in segment.launches)

    def launch(self, run: Launcher, step: StepInputs) -> None:
        """All kernels of a step."""
        for segment in self.segments:
            segment.launch(run, step)


@dataclass(frozen=True)
class PlanOptions:
    max_tokens: int  # of a step
    max_logits: int
    ctx: int  # tokens of the longest sequence
    int16: bool = False  # one token is taken in 16 bits, not in 8
    batch_invariant: bool = False
    precise: bool = False  # many rows are taken in f16 wherever the weights allow it
    host_experts: HostExperts = field(default_factory=HostExperts)


def segmented(launches: Sequence[Launch], hosted: Sequence[bool]) -> tuple[Segment, ...]:
    """`hosted`: the operations in which the host takes part."""
    pairs = groupby(zip(hosted, launches, strict=True), key=lambda pair: pair[0])
    return tuple(Segment(tuple(launch for _, launch in group), has_host) for has_host, group in pairs)
