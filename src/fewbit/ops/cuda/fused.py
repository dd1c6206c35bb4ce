"""Fused: several matrices that take the same rows, as one product on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...arrays import Floats
from ...errors import ArgumentError, ShapeError
from ...tensor import QuantTensor
from ..shape_rules import FUSED_GATES
from .layout import ROWS, padded, tile_layout
from .memory import DeviceArray
from .session import Session
from .tensor import CudaTensor, fill, matrix_shape
from .upload import Uploader


class Fused:
    """Matrices of one k. Their products lie beside each other, each at its offset and of its size.

    Those of one format are one tensor, each padded to 16 rows. With `gate`, the name of a function, they are a gate and
    what it multiplies, and the result is function(gate) * up; if their format is the same, their rows take turns by
    tiles of 8 (`is_interleaved`).
    """

    __slots__ = (
        "_biases",
        "bias",
        "firsts",
        "gate",
        "is_interleaved",
        "k",
        "offsets",
        "product_width",
        "sizes",
        "tensors",
        "width",
    )

    def __init__(
        self,
        tensors: Sequence[CudaTensor],
        firsts: Sequence[int],
        offsets: Sequence[int],
        sizes: Sequence[int],
        gate: str | None = None,
        is_interleaved: bool = False,
    ) -> None:
        self.tensors, self.firsts = tuple(tensors), tuple(firsts)  # with the column where the products of each begin
        self.offsets, self.sizes = tuple(offsets), tuple(sizes)
        self.gate, self.is_interleaved = gate, is_interleaved
        self.k = self.tensors[0].shape[1]
        self.product_width = max(first + t.shape[0] for t, first in zip(self.tensors, self.firsts, strict=True))
        self.width = self.sizes[0] if gate else self.product_width  # columns of the result
        self.bias = 0  # a pointer to a row of the result; 0: none
        self._biases: DeviceArray | None = None

    @classmethod
    def of(cls, w: CudaTensor | Fused) -> Fused:
        return w if isinstance(w, Fused) else cls([w], [0], [0], [w.shape[0]])

    @classmethod
    def make(
        cls,
        device: Session,
        matrices: Sequence[QuantTensor],
        biases: Sequence[Floats | None] | None = None,
        uploader: Uploader | None = None,
        exact: Collection[int] = (),
    ) -> Fused:
        """Sent to the GPU from host memory, straight to their places; with a bias for each, or None.

        `exact`: which of them, all of f32, are multiplied in f32.
        """
        if len({matrix_shape(w)[1] for w in matrices}) != 1:
            raise ShapeError(f"matrices of {[w.shape for w in matrices]} cannot be one product")
        made = cls._beside(device, matrices, None, uploader or Uploader(device), exact)
        if biases and any(bias is not None for bias in biases):
            made._biases = device.array(made.place(biases))
            made.bias = made._biases.pointer
        return made

    @classmethod
    def gated(
        cls, device: Session, gate: QuantTensor, up: QuantTensor, kind: str, uploader: Uploader | None = None
    ) -> Fused:
        """The same of a gate and of what it multiplies, for the product kind(gate) * up."""
        if kind not in FUSED_GATES:
            raise ArgumentError(f"products are gated by {', '.join(FUSED_GATES)}, not by {kind!r}")
        if matrix_shape(gate) != matrix_shape(up):
            raise ShapeError(f"matrices of {[gate.shape, up.shape]} cannot be one gated product")
        sender = uploader or Uploader(device)
        if gate.format == up.format and tile_layout(gate.format):
            return cls._interleaved(device, [gate, up], kind, sender)
        return cls._beside(device, [gate, up], kind, sender)

    @classmethod
    def _interleaved(cls, device: Session, weights: Sequence[QuantTensor], gate: str, uploader: Uploader) -> Fused:
        n, k = matrix_shape(weights[0])
        out = CudaTensor(device, weights[0].format, (2 * padded(n, 8), k))
        fill(out, [(w, i, 2) for i, w in enumerate(weights)], uploader)
        return cls([out], [0], [0], [n], gate, is_interleaved=True)

    @classmethod
    def _beside(
        cls, device: Session, weights: Sequence[QuantTensor], gate: str | None, uploader: Uploader,
        exact: Collection[int] = (),
    ) -> Fused:  # fmt: skip
        groups: dict[object, list[int]] = {}
        for i, w in enumerate(weights):
            groups.setdefault(w.format if tile_layout(w.format) else i, []).append(i)
        tensors, firsts, columns, column = [], [], [0] * len(weights), 0
        for group in groups.values():
            firsts.append(column)
            places = []
            for i in group:
                columns[i] = column
                places.append((weights[i], (column - firsts[-1]) // 8, 1))
                column += padded(weights[i].shape[0], ROWS)
            first = weights[group[0]]
            rows = first.shape[0] if len(group) == 1 else column - firsts[-1]
            tensors.append(CudaTensor(device, first.format, (rows, first.shape[1])))
            tensors[-1].is_exact = group[0] in exact
            fill(tensors[-1], places, uploader)
        return cls(tensors, firsts, columns, [w.shape[0] for w in weights], gate)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def place(self, values: Sequence[Floats | None]) -> Floats:
        """What is added to each part (a bias, or None) as one row of the result."""
        row = np.zeros(self.product_width, np.float32)
        for column, n, value in zip(self.offsets, self.sizes, values, strict=True):
            if value is not None:
                row[column : column + n] = value
        return row
