"""Packed rows sent to a GPU in pieces through pinned memory: one is copied there while the GPU takes the one before."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from ...arrays import Bytes
from .session import Session

PIECE_BYTES = 32 << 20
Taker = Callable[[int, int, int], None]  # pointer to rows on the GPU, the first one's number, how many


class Uploader:
    """Two pieces of pinned memory and two of the GPU's, until it is closed; `progress` is told of bytes sent.

    A closed one can be used again.
    """

    def __init__(
        self, device: Session, progress: Callable[[int], None] | None = None, nbytes: int = PIECE_BYTES
    ) -> None:
        self.device, self._progress, self._size = device, progress, nbytes
        self._pieces: list[_Piece] = []
        self._sent = 0

    def send(self, rows: Bytes, take: Taker) -> None:
        """Rows (n, bytes) in host memory; `take` launches what reads a piece of them. It is not waited for."""
        n, each = rows.shape
        if not n or not each:
            return
        step = max(1, self._size // each)
        for first in range(0, n, step):
            part = rows[first : first + step]
            piece = self._next(max(part.nbytes, min(self._size, rows.nbytes)))
            take(piece.send(part), first, len(part))
            piece.mark()
            if self._progress:
                self._progress(part.nbytes)

    def wait(self) -> None:
        for piece in self._pieces:
            piece.wait()

    def _next(self, nbytes: int) -> _Piece:
        if len(self._pieces) < 2:
            self._pieces.append(_Piece(self.device))
        piece = self._pieces[self._sent % len(self._pieces)]
        self._sent += 1
        piece.reserve(nbytes)
        return piece

    def close(self) -> None:
        self.wait()
        self._pieces = []

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Piece:
    """Pinned memory, and as much of the GPU's."""

    def __init__(self, device: Session) -> None:
        self.device = device
        self._pinned: Bytes = np.zeros(0, np.uint8)
        self._buffer: Any = None
        self._mark: Any = None

    def reserve(self, nbytes: int) -> None:
        self.wait()
        if nbytes > self._pinned.size:
            self._pinned, self._buffer = self.device.pinned(nbytes), self.device.allocate(nbytes)

    def send(self, rows: Bytes) -> int:
        """Copied to pinned memory now, to the GPU in a while."""
        held = self._pinned[: rows.nbytes]
        np.copyto(held.reshape(rows.shape), rows)
        pointer = int(self._buffer.handle)
        self.device.send(held, pointer)
        return pointer

    def mark(self) -> None:
        self._mark = self.device.mark()

    def wait(self) -> None:
        """What was sent has been taken."""
        if self._mark is not None:
            self._mark.sync()
