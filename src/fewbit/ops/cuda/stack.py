"""Matrices of one shape after each other in one packed tensor: those of heads and of experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import ShapeError
from ...tensor import QuantTensor
from .layout import ROWS, padded, tile_layout
from .session import Session
from .tensor import CudaTensor, send_tensor
from .upload import Uploader


@dataclass(frozen=True)
class Stack:
    """`count` matrices of (n, k); each begins `pitch` rows after the one before, so that tiles are of one alone."""

    tensor: CudaTensor
    count: int
    n: int
    pitch: int

    @property
    def k(self) -> int:
        return self.tensor.shape[1]


def stack_pitch(w: QuantTensor) -> int:
    """Rows from one matrix of (count, n, k) to the next on a GPU."""
    return padded(w.shape[1], ROWS) if tile_layout(w.format) else w.shape[1]


def send_stack(device: Session, w: QuantTensor, uploader: Uploader | None = None) -> Stack:
    """A copy of (count, n, k) packed weights on a GPU."""
    if len(w.shape) != 3:
        raise ShapeError(f"a stack of matrices is (count, rows, columns), not {'x'.join(map(str, w.shape))}")
    count, n, k = w.shape
    pitch, data = stack_pitch(w), w.data
    if pitch != n:
        wide = np.zeros((count, pitch, w.format.row_bytes(k)), np.uint8)
        wide[:, :n] = data.reshape(count, n, -1)
        data = wide.reshape(-1)
    rows = QuantTensor(data, (count * pitch, k), w.format)
    return Stack(send_tensor(device, rows, uploader or Uploader(device)), count, n, pitch)
