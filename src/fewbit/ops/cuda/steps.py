"""Launch lists of whole steps: recorded once for each size, patched and launched by one call when it comes again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .launch import LaunchList
from .values import Launcher, LaunchRecorder, StepInputs

MAX_LISTS = 128  # of about 100 KB


class StepList(NamedTuple):
    """The launches of a step, and the scratch memory that they use."""

    launches: LaunchList
    held: list[Any]


@dataclass
class StepLists:
    """Those of a plan, by the sizes of the steps."""

    kept: OrderedDict[tuple[Any, ...], StepList] = field(default_factory=OrderedDict)
    generation: int = -1  # of the session's scratch memory

    def launch(self, run: Launcher, step: StepInputs, each: Callable[[Launcher, StepInputs], None]) -> None:
        """Launch a step; `each` launches its kernels one by one, for sizes that are new."""
        step = replace(step, max_length=rounded(step.max_length))
        if self.generation != run.device.generation:
            self.kept.clear()
        known = self.kept.pop(step.sizes, None)
        if known is None:
            known = self._record(run, step, each)
        else:
            known.launches.patch(step.pointers)
            run.device.launch_list(known.launches, run.stream)
        self.kept[step.sizes] = known
        run.held += known.held
        run.is_first = False

    def _record(self, run: Launcher, step: StepInputs, each: Callable[[Launcher, StepInputs], None]) -> StepList:
        recorder = LaunchRecorder(run.device, run.stream)
        each(recorder, step.traced())
        recorder.send()
        self.generation = run.device.generation
        if len(self.kept) == MAX_LISTS:
            self.kept.popitem(last=False)
        return StepList(recorder.launches, recorder.held)


def rounded(length: int) -> int:
    """A length of which there are few: at most an eighth more.

    >>> rounded(100), rounded(1025), rounded(8192)
    (104, 1152, 8192)
    """
    unit = 1 << max(0, (length - 1).bit_length() - 4)
    return -(-length // unit) * unit
