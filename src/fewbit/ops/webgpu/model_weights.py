"""Weights of a model on an adapter: each is sent once, however many operations use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Floats
from ...errors import OutOfMemory
from ...tensor import QuantTensor
from ..graph import Rope
from .decoders import decoder, device_format, row_stride
from .device import Gpu, Memory
from .weights import Matrix, RowPart, device_rows, send_matrix, send_pairs, sources_of, table_memory

Progress = Callable[[int], None]  # bytes of weights that were sent
NEAR = 256  # positions of the second table of angles


class Segment(NamedTuple):
    """Matrices of one format that are one product, and the column where its results begin."""

    matrix: Matrix
    first: int
    bias: Memory | None


class Joined(NamedTuple):
    """Products of the same rows, beside each other: where the results of each begin, and how wide all are."""

    segments: tuple[Segment, ...]
    offsets: tuple[int, ...]
    width: int


class Angles(NamedTuple):
    """Cosines and sines of positions: of multiples of 256, then of 0 to 255."""

    memory: Memory
    high_rows: int


class ModelWeights:
    """What was sent, by the arrays that it came from."""

    def __init__(self, gpu: Gpu, progress: Progress | None = None) -> None:
        self.gpu, self._progress = gpu, progress
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # the host's arrays stay, so that no id comes twice
        self.sources: dict[int, list[tuple[int, Any]]] = {}  # by the buffer's id: where its bytes come from

    def floats(self, values: Floats, name: str = "") -> Memory:
        made: Memory = self._once((id(values),), values, lambda: self._array(np.asarray(values, np.float32)))
        return made

    def joined_floats(self, parts: Sequence[Floats]) -> Memory:
        """Several vectors behind each other."""
        key = ("floats", *map(id, parts))
        made: Memory = self._once(key, parts, lambda: self._array(np.concatenate([np.ravel(p) for p in parts])))
        return made

    def matrix(self, w: QuantTensor) -> Matrix:
        key = ("matrix", w.stored.ctypes.data, w.shape, w.format.name)  # files make a tensor anew each time
        return self._sent(key, [w], lambda: send_matrix(self.gpu, [w], "weights"))

    def stack(self, w: QuantTensor) -> Matrix:
        """Matrices of experts, or of heads: whole ones in each buffer."""
        return self._sent(("stack", id(w)), [w], lambda: _send_stack(self.gpu, w))

    def pairs(self, gate: QuantTensor, up: QuantTensor) -> Matrix:
        return self._sent(("pairs", id(gate), id(up)), [gate, up], lambda: send_pairs(self.gpu, gate, up, "weights"))

    def joined(self, terms: Sequence[tuple[QuantTensor, Floats | None]]) -> Joined:
        """Matrices that take the same rows, with their biases."""
        key = ("joined", *(id(part) for term in terms for part in term if part is not None))
        made: Joined = self._once(key, list(terms), lambda: self._join(terms))
        return made

    def _join(self, terms: Sequence[tuple[QuantTensor, Floats | None]]) -> Joined:
        """Neighbours of one format are one matrix, if results of each begin at whole vectors of four."""
        groups: list[list[tuple[QuantTensor, Floats | None]]] = []
        for term in terms:
            fits = groups and groups[-1][-1][0].format == term[0].format and groups[-1][-1][0].shape[0] % 4 == 0
            if fits:
                groups[-1].append(term)
            else:
                groups.append([term])
        segments, offsets, column = [], [], 0
        for group in groups:
            column = -(-column // 4) * 4
            weights, first = [w for w, _ in group], column
            for w in weights:
                offsets.append(column)
                column += w.shape[0]
            matrix = self._rows(weights)
            segments.append(Segment(matrix, first, self._bias(group)))
        return Joined(tuple(segments), tuple(offsets), column)

    def _rows(self, weights: Sequence[QuantTensor]) -> Matrix:
        if len(weights) == 1:
            return self.matrix(weights[0])
        return self._sent(("rows", *map(id, weights)), weights, lambda: send_matrix(self.gpu, weights, "weights"))

    def _bias(self, group: Sequence[tuple[QuantTensor, Floats | None]]) -> Memory | None:
        if all(bias is None for _, bias in group):
            return None
        parts = [np.zeros(w.shape[0], np.float32) if bias is None else bias for w, bias in group]
        return self._array(np.concatenate(parts).astype(np.float32))

    def angles(self, rope: Rope, ctx: int) -> Angles:
        made: Angles = self._once(("angles", id(rope), ctx), rope, lambda: self._angles(rope, ctx))
        return made

    def _angles(self, rope: Rope, ctx: int) -> Angles:
        high = ctx // NEAR + 1
        positions = np.concatenate([np.arange(high) * NEAR, np.arange(NEAR)])
        angles = positions[:, None] * rope.inv_freq.astype(np.float64)
        table = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
        return Angles(self._array(table), high)

    def _array(self, values: Floats) -> Memory:
        memory = self.gpu.array(values, "floats")
        self.sources[id(memory)] = [(0, values)]
        return memory

    def _sent(self, key: tuple[Any, ...], parts: Sequence[QuantTensor], make: Callable[[], Matrix]) -> Matrix:
        is_new = key not in self._kept
        made: Matrix = self._once(key, parts, make)
        if is_new:
            self.sources |= {id(part.memory): list(part.sources) for part in made.parts}
            self.sources |= {id(table): [(0, decoder(made.format).table)] for table in made.tables}
            if self._progress is not None:
                self._progress(sum(w.nbytes for w in parts))
        return made

    def _once(self, key: tuple[Any, ...], parts: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = parts, make()
        return self._kept[key][1]


def _send_stack(gpu: Gpu, w: QuantTensor) -> Matrix:
    count, n, k = w.shape
    fmt = device_format(w.format)
    each = n * row_stride(fmt, k)
    most = (min(gpu.binding_bytes, gpu.info.buffer_bytes) - 16) // max(each, 1)
    if most < 1:
        raise OutOfMemory(f"a matrix of {each} bytes does not fit into a buffer of {gpu.info.name}")
    rows, parts = device_rows(w) if gpu.keeps_bytes else None, []
    for first in range(0, count, most):
        held = min(most, count - first)
        memory = gpu.allocate(held * each + 4, "weights")
        if rows is not None:
            gpu.upload(rows[first * n : (first + held) * n], memory)
        parts.append(RowPart(memory, first * n, held * n, sources_of([w], first * n, (first + held) * n)))
    return Matrix(fmt, count * n, k, parts, table_memory(gpu, fmt))
