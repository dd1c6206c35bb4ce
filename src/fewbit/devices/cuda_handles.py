"""Steps that run, or have run, on an NVIDIA GPU, and the host memory that their inputs and results go through."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from ..ops.cuda.plan_segments import Plan
from ..ops.cuda.sampling import Packed, decoded
from ..ops.cuda.session import Mark, Session
from ..ops.cuda.values import Launcher, Rows, StepInputs
from .batch import Batch, Results
from .host import decode

PIECE = 4  # operations that a step in slices gives to the GPU at once: milliseconds of a large image


@dataclass
class StagingMemory:
    """Host memory of a step in flight; it is used again when the step is over."""

    inputs: npt.NDArray[np.uint8]
    samples: npt.NDArray[np.uint8]
    results: npt.NDArray[np.uint8]
    event: Any = None

    def wait(self) -> None:
        if self.event is not None:
            self.event.sync()


class CudaHandle:
    """A step that runs, or has run, on a GPU."""

    __slots__ = ("_batch", "_device", "_event", "_packed", "_result", "_stage", "_values")

    def __init__(
        self,
        device: Session,
        batch: Batch,
        result: Rows,
        packed: Packed | None,
        stage: StagingMemory,
        values: Floats | None,
    ) -> None:
        self._device, self._batch, self._result, self._packed = device, batch, result, packed
        self._stage, self._values = stage, values
        self._event = stage.event

    def values(self) -> Floats:
        if self._values is None:
            self._values = fetch_rows(self._device, self._result, len(self._batch.logits_indices))
            self._device.mark().sync()
        self._event.sync()
        return self._values

    def fetch(self) -> Results:
        from ..ops import cpu

        self._event.sync()
        sampled: list[Any] = []
        if self._packed is not None:
            results = self._stage.results.view(np.int32).reshape(3, -1)
            sampled = decoded(results, len(self._batch.samples), self._packed.errors)
        return decode(self._batch, self._values, sampled, cpu)


class CudaStep:
    """A step that runs in slices: some operations are launched while those before them run."""

    def __init__(self, device: Session, plan: Plan, inputs: StepInputs, count: int) -> None:
        self._device, self._inputs, self._count = device, inputs, count
        self._launches, self._result, self._next = plan.launches, plan.result, 0

    def run(self, seconds: float) -> bool:
        """Go on for about so long. Whether it is done. When it returns, the GPU is, too."""
        end, marks = perf_counter() + seconds, deque[Mark]()
        while self._next < len(self._launches):
            run = Launcher(self._device, self._device.stream)
            for launch in self._launches[self._next : self._next + PIECE]:
                launch(run, self._inputs)
            self._next += PIECE
            marks.append(self._device.mark())
            if len(marks) > 1:
                marks.popleft().sync()
            if perf_counter() >= end:
                break
        for mark in marks:
            mark.sync()
        return self._next >= len(self._launches)

    def values(self) -> Floats:
        rows = fetch_rows(self._device, self._result, self._count)
        self._device.mark().sync()
        return rows


def fetch_rows(device: Session, rows: Rows, count: int) -> Floats:
    """The first rows of a result, in host memory once the stream has come so far."""
    out = np.empty(count * rows.stride, np.float32)
    device.fetch(rows.pointer, out)
    return out.reshape(count, rows.stride)[:, : rows.width]
