"""Packed weights in a GPU's memory: rows as in files, in as many buffers as bindings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...arrays import Bytes
from ...errors import OutOfMemory, ShapeError
from ...formats.decode import decode
from ...formats.spec import Format
from ...tensor import QuantTensor
from .decoders import decoder, device_format, parameters, row_stride
from .device import Gpu, Memory
from .wgsl import blocks

# Where bytes of a buffer come from: the first byte there; address, bytes, bytes of a row and of a row on the device.
Source = tuple[int, tuple[int, int, int, int]]


@dataclass(frozen=True, eq=False)
class RowPart:
    """Consecutive rows of a matrix in one buffer."""

    memory: Memory
    first: int
    rows: int
    sources: tuple[Source, ...] = ()


class Matrix:
    """Rows of packed weights on a device. Of pairs, each part holds rows of a gate, then as many that it multiplies."""

    def __init__(self, fmt: Format, n: int, k: int, parts: Sequence[RowPart], tables: tuple[Memory, ...]) -> None:
        self.format, self.n, self.k, self.parts, self.tables = fmt, n, k, tuple(parts), tables

    @property
    def nbytes(self) -> int:
        return sum(part.memory.nbytes for part in self.parts)

    @property
    def values(self) -> dict[str, int]:
        """Parameters of kernels that decode it."""
        fmt = self.format
        group = fmt.group or max(self.k, 1)
        return {"k": self.k, "row_bytes": row_stride(fmt, self.k), "group": group, **parameters(fmt, self.k)}

    def buffers(self, part: RowPart) -> tuple[Memory, ...]:
        return (part.memory, *self.tables)

    def free(self) -> None:
        for part in self.parts:
            part.memory.free()


def device_rows(w: QuantTensor) -> Bytes:
    """The rows of a tensor as they lie on a device, (rows, bytes)."""
    fmt, k = w.format, w.shape[-1]
    rows = w.data.reshape(w.rows, -1) if w.nbytes else np.zeros((w.rows, 0), np.uint8)
    if device_format(fmt) != fmt:
        return decode(fmt, rows, k).view(np.uint8).reshape(w.rows, -1)
    missing = row_stride(fmt, k) - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def table_memory(gpu: Gpu, fmt: Format) -> tuple[Memory, ...]:
    """The table of a format's decoder; a device has it once."""
    table = decoder(fmt).table
    if table is None:
        return ()
    with gpu.lock:
        if fmt.name not in gpu.tables:
            gpu.tables[fmt.name] = gpu.array(table, f"table of {fmt}")
        return (gpu.tables[fmt.name],)


def send_matrix(gpu: Gpu, tensors: Sequence[QuantTensor], name: str = "") -> Matrix:
    """Matrices of one format and width, one below the other, as one matrix."""
    fmt, k = device_format(tensors[0].format), tensors[0].shape[-1]
    n = sum(w.rows for w in tensors)
    parts, most = [], rows_of_a_part(gpu, fmt, k)
    rows = [_rows_to_send(gpu, w) for w in tensors]
    for first in range(0, n, most):
        end = min(n, first + most)
        memory = _send(gpu, _take(rows, first, end), name)
        parts.append(RowPart(memory, first, end - first, sources_of(tensors, first, end)))
    return Matrix(fmt, n, k, parts, table_memory(gpu, fmt))


def send_pairs(gpu: Gpu, gate: QuantTensor, up: QuantTensor, name: str = "") -> Matrix:
    """A gate and what it multiplies: rows of both in each part."""
    fmt, n, k = device_format(gate.format), gate.rows, gate.shape[-1]
    if gate.shape != up.shape or gate.format != up.format:
        raise ShapeError(f"a gate of {gate.shape} in {gate.format} does not fit {up.shape} in {up.format}")
    most = max(1, rows_of_a_part(gpu, fmt, k) // 2)
    both, parts = [_rows_to_send(gpu, w) for w in (gate, up)], []
    for first in range(0, n, most):
        end = min(n, first + most)
        memory = _send(gpu, [rows[first:end] for rows in both], name)
        sources = [source for w in (gate, up) for source in sources_of([w], first, end)]
        half = row_stride(fmt, k) * (end - first)
        placed = tuple((at + half * (number > 0), source) for number, (at, source) in enumerate(sources))
        parts.append(RowPart(memory, first, end - first, placed))
    return Matrix(fmt, n, k, parts, table_memory(gpu, fmt))


def sources_of(tensors: Sequence[QuantTensor], first: int, end: int) -> tuple[Source, ...]:
    """Where rows `first` to `end` of matrices below each other come from."""
    out, at, place = [], 0, 0
    for w in tensors:
        low, high = max(first - at, 0), min(end - at, w.rows)
        row, stride = w.format.row_bytes(w.shape[-1]), row_stride(device_format(w.format), w.shape[-1])
        if low < high and device_format(w.format) == w.format:
            out.append((place, (w.stored.ctypes.data + low * row, (high - low) * row, row, stride)))
            place += (high - low) * stride
        at += w.rows
    return tuple(out)


def rows_of_a_part(gpu: Gpu, fmt: Format, k: int) -> int:
    """Rows in a buffer: a multiple of four, so that results of all parts begin at whole vectors."""
    stride = max(1, row_stride(fmt, k))
    most = (min(gpu.binding_bytes, gpu.info.buffer_bytes) - 16) // stride
    if most < 1:
        raise OutOfMemory(f"a row of {stride} bytes does not fit into a buffer of {gpu.info.name}")
    return most if most < 4 else most // 4 * 4


def _take(rows: Sequence[Bytes], first: int, end: int) -> list[Bytes]:
    """Rows `first` to `end` of matrices below each other."""
    out, at = [], 0
    for one in rows:
        low, high = max(first - at, 0), min(end - at, len(one))
        if low < high:
            out.append(one[low:high])
        at += len(one)
    return out


def _rows_to_send(gpu: Gpu, w: QuantTensor) -> Bytes:
    """The rows of a tensor; where nothing is sent their shape alone."""
    if gpu.keeps_bytes:
        return device_rows(w)
    return np.broadcast_to(np.uint8(0), (w.rows, row_stride(device_format(w.format), w.shape[-1])))


def _send(gpu: Gpu, rows: Sequence[Bytes], name: str) -> Memory:
    """Rows to a buffer. Decoders may read a word behind the last one."""
    nbytes = sum(one.size for one in rows)
    memory, at = gpu.allocate(nbytes + 4, name), 0
    if not gpu.keeps_bytes:
        return memory
    if all(one.size % 4 == 0 for one in rows[:-1]):
        for one in rows:
            gpu.upload(one, memory, at)
            at += one.size
        return memory
    gpu.upload(np.concatenate([one.reshape(-1) for one in rows]), memory)
    return memory


def row_blocks(rows: int, each: int) -> tuple[int, int]:
    """Workgroups in x and z for so many rows."""
    return blocks(-(-rows // each))
