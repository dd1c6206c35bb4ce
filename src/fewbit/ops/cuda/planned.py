"""A GPU that only notes which kernels it would run: steps are planned on it while weights are still in their file.

It has no memory: what is allocated has an address that nobody reads, what is sent goes nowhere. So it needs no card
either, only the facts about one that kernels depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from threading import RLock
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...arrays import Bytes
from ...errors import RequestError
from .device import Gpu
from .kernels import Entry
from .launch import LaunchList
from .session import MIN_BYTES, Session
from .upload import Taker, Uploader
from .weights import Weights

ALIGN = 256  # bytes
LARGEST = 1.0  # that every matrix is taken to have: products may then be in f16
UNLIMITED = 1 << 60  # bytes of memory


class Card(NamedTuple):
    """What kernels depend on, as cuda-core calls it."""

    multiprocessor_count: int
    max_shared_memory_per_block_optin: int
    max_shared_memory_per_multiprocessor: int


# The largest card of each architecture.
CARDS = {
    "sm_80": Card(108, 166912, 167936),
    "sm_86": Card(84, 101376, 102400),
    "sm_89": Card(142, 101376, 102400),
    "sm_90": Card(132, 232448, 233472),
    "sm_100": Card(148, 232448, 233472),
    "sm_120": Card(188, 101376, 102400),
}


def card_of(arch: str) -> Card:
    """
    >>> card_of("sm_90").multiprocessor_count
    132
    >>> card_of("sm_91")
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: kernels are compiled for sm_80, sm_86, sm_89, sm_90, sm_100 or sm_120, got 'sm_91'
    """
    if arch not in CARDS:
        *names, last = CARDS
        raise RequestError(f"kernels are compiled for {', '.join(names)} or {last}, got {arch!r}")
    return CARDS[arch]


class PlannedGpu(Gpu):
    """A card of an architecture, by the facts about it."""

    compiles_ahead = False
    takes_panels = True  # it is tried on the card itself

    def __init__(self, arch: str, card: Any) -> None:
        self.ordinal, self.arch = 0, arch
        self.device = SimpleNamespace(arch=arch.removeprefix("sm_"), properties=card)
        self._find_features()
        self.lock = RLock()

    def session(self) -> PlannedSession:
        return PlannedSession(self)

    def use(self) -> None:
        """There is nothing to use."""

    def current(self) -> Any:
        return nullcontext()

    def free_bytes(self) -> int:
        return UNLIMITED


class PlannedSession(Session):
    """Notes kernels, in the order in which they would be needed."""

    def _open(self) -> None:
        self.stream = SimpleNamespace(handle=0)
        self.entries: dict[Entry, None] = {}
        self._next = ALIGN

    def compile(self, entries: Sequence[Entry]) -> None:
        self.entries.update(dict.fromkeys(entries))

    def launch(self, entry: Entry, *_args: Any, **_options: Any) -> None:
        self.entries[entry] = None

    def launch_list(self, launches: LaunchList, stream: Any = None, begin: int = 0, end: int | None = None) -> None:
        """Products of cuBLAS need no kernels of ours."""

    def allocate(self, nbytes: int) -> Any:
        place = self._next
        self._next += -(-max(nbytes, MIN_BYTES) // ALIGN) * ALIGN
        return SimpleNamespace(handle=place, size=max(nbytes, MIN_BYTES))

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        """There is no memory."""

    def send(self, data: npt.NDArray[Any], pointer: int) -> None:
        """The same."""

    def copy(self, source: int, destination: int, nbytes: int) -> None:
        """The same."""

    def sync(self) -> None:
        """Nothing runs."""

    def upload(self, data: npt.NDArray[Any], pointer: int) -> None:
        """There is no memory."""

    def download(self, pointer: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out[...] = LARGEST  # all that is asked for while weights are sent
        return out

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.empty(nbytes, np.uint8)


class PlannedUploader(Uploader):
    """Reads no weights."""

    def send(self, rows: Bytes, take: Taker) -> None:
        if rows.size:
            take(0, 0, len(rows))


def planned_weights(device: PlannedSession) -> Weights:
    """Weights that are sent nowhere."""
    return Weights(device, uploader=PlannedUploader(device))
