"""Matrices of one shape after each other in one packed tensor: those of heads and of experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import ShapeError
from ...tensor import QuantTensor
from .layout import ROWS, padded, tile_layout
from .tensor import CudaTensor, to_device


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


def stack_to_device(w: QuantTensor, ordinal: int = 0) -> Stack:
    """A copy of (count, n, k) packed weights on a GPU."""
    if len(w.shape) != 3:
        raise ShapeError(f"a stack of matrices is (count, rows, columns), not {'x'.join(map(str, w.shape))}")
    count, n, k = w.shape
    pitch, data = stack_pitch(w), w.data
    if pitch != n:
        rows = np.zeros((count, pitch, w.format.row_bytes(k)), np.uint8)
        rows[:, :n] = data.reshape(count, n, -1)
        data = rows.reshape(-1)
    return Stack(to_device(QuantTensor(data, (count * pitch, k), w.format), ordinal), count, n, pitch)
