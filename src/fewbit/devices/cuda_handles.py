"""Steps that run, or have run, on an NVIDIA GPU, and the host memory that their inputs and results go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from ..ops.cuda.sampling import Packed, decoded
from ..ops.cuda.session import Session
from ..ops.cuda.values import Rows
from .batch import Batch, Results
from .host import decode


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


def fetch_rows(device: Session, rows: Rows, count: int) -> Floats:
    """The first rows of a result, in host memory once the stream has come so far."""
    out = np.empty(count * rows.stride, np.float32)
    device.fetch(rows.pointer, out)
    return out.reshape(count, rows.stride)[:, : rows.width]
