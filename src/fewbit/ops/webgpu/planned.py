"""An adapter that runs elsewhere: plans are made for its limits, and no memory is taken here."""

from __future__ import annotations

from threading import RLock
from typing import Any

import numpy.typing as npt

from .adapters import AdapterInfo
from .device import Counters, Gpu, Memory
from .wgsl import F16, SUBGROUPS

LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 36  # of a binding and of a buffer


class PlannedGpu(Gpu):
    """What plans ask of a `Gpu`: sizes and features. Nothing is sent to it, and it runs nothing."""

    keeps_bytes = False

    def __init__(self, binding_bytes: int, buffer_bytes: int, subgroups: bool = False, f16: bool = False) -> None:
        self.info = AdapterInfo(0, "the browser's adapter", "browser", "Unknown", (), binding_bytes, buffer_bytes)
        self.lock, self.counters = RLock(), Counters()
        names = [name for name, has in ((F16, f16), (SUBGROUPS, subgroups)) if has]
        self.extensions = frozenset(names)
        self.has_subgroups, self.has_f16 = subgroups, f16
        self.is_lost, self.binding_bytes, self.allocated_bytes = False, binding_bytes, 0
        self.tables: dict[str, Memory] = {}

    def allocate(self, nbytes: int, name: str = "") -> Memory:
        return Memory(None, self._checked_size(nbytes), name, self)

    def upload(self, data: npt.NDArray[Any], memory: Memory, offset: int = 0) -> None:
        """Nothing: a plan says where the bytes are."""
