"""Parts of packed matrices: some of their rows, or of their columns where no block is cut. Nothing is decoded."""

from __future__ import annotations

from math import lcm, prod

import numpy as np

from ..arrays import Bytes
from ..errors import ShapeError
from ..formats.spec import GRANULE, Format
from ..tensor import QuantTensor


def column_step(fmt: Format) -> int:
    """Rows can be cut before each multiple of so many columns.

    >>> from fewbit.formats import get
    >>> column_step(get("q4_k")), column_step(get("q8_0")), column_step(get("bf16"))
    (256, 32, 1)
    """
    return fmt.block if fmt.placement == "block" else lcm(GRANULE, fmt.group or 1)


def take_rows(w: QuantTensor, start: int, stop: int, copies: bool = True) -> QuantTensor:
    """Rows of a matrix, which share its bytes; or of each matrix of a stack, which are copied.

    Without `copies` the result tells sizes alone.
    """
    if (start, stop) == (0, w.shape[-2]):
        return w
    if w.ndim == 2:
        return w[start:stop]
    _expect_rows(w)
    count, rows, columns = w.shape
    taken = w.stored.reshape(count, rows, -1)[:, start:stop]
    return QuantTensor(_flat(taken) if copies else taken, (count, stop - start, columns), w.format)


def take_columns(w: QuantTensor, start: int, stop: int, copies: bool = True) -> QuantTensor:
    """A copy of columns of a matrix, or of all matrices of a stack; see `take_rows`."""
    columns, step = w.shape[-1], column_step(w.format)
    if (start, stop) == (0, columns):
        return w
    if start % step or (stop % step and stop != columns) or not 0 <= start < stop <= columns:
        raise ShapeError(f"columns {start} to {stop} cut blocks of {step} columns of {w.format}")
    _expect_rows(w)
    rows, shape = w.stored.reshape(prod(w.shape[:-1]), w.format.row_bytes(columns)), (*w.shape[:-1], stop - start)
    if not copies:
        return QuantTensor(rows[:, : w.format.row_bytes(stop - start)], shape, w.format)
    parts = [rows[:, first:last] for first, last in _byte_ranges(w.format, columns, start, stop)]
    taken = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return QuantTensor(_flat(taken), shape, w.format)


def _byte_ranges(fmt: Format, columns: int, start: int, stop: int) -> list[tuple[int, int]]:
    """The bytes of some columns in each row."""
    if fmt.placement == "block":
        return [(start // fmt.block * fmt.block_bytes, -(-stop // fmt.block) * fmt.block_bytes)]
    sizes, ranges = fmt.row_fields(stop - start), list[tuple[int, int]]()
    before = fmt.row_fields(start)
    for name, (first, _) in fmt.row_fields(columns).items():
        is_shared = not fmt.group and name not in fmt.code_bits  # one scale for the whole row
        begin = first if is_shared else first + before[name][1]
        ranges.append((begin, begin + sizes[name][1]))
    return ranges


def _expect_rows(w: QuantTensor) -> None:
    if w.layout != "rows":
        raise ShapeError(f"parts are taken of rows as they are in a file, not of {w.layout}")


def _flat(rows: Bytes) -> Bytes:
    return np.ascontiguousarray(rows).reshape(-1)
