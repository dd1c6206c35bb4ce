"""Error feedback: what rounding a column changes in a product is made up for by the columns that are not rounded yet.

This is GPTQ's method for block formats. With H, the sum of x x^T over the inputs x of a matrix, its output changes by
(w - q) H (w - q)^T for each row w. U is upper triangular with U^T U = H^-1: after column j is rounded, the others
change by -(w_j - q_j) / U_jj times row j of U. Scales are searched block by block, for values with all changes so far;
codes are then chosen column by column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import Bytes, Floats, Ints
from ..errors import DataError
from ..formats import Format
from ..formats.decode import read_factor, split
from ..formats.pack import book_index, write_ints, write_trits
from ..formats.search import Levels, inverse
from ..formats.spec import Grid, Integers, Trits
from ..ops.cpu import decode, encode

DAMPING = 0.01  # of the mean of the diagonal, added to it
COLUMNS = 32  # whose changes are added to each other at once


def feedback_factor(hessian: Any) -> Floats:
    """U, upper triangular, with U^T U the inverse of a damped Hessian.

    >>> feedback_factor(np.eye(2) * 4).round(3).tolist()
    [[0.498, 0.0], [0.0, 0.498]]
    """
    h = np.array(hessian, np.float64)
    if not np.isfinite(h).all():
        raise DataError("a Hessian holds NaN or infinity")
    diagonal = h.diagonal().copy()
    mean = diagonal.mean() or 1.0
    h[np.diag_indices_from(h)] = np.where(diagonal > 0, diagonal, mean) + DAMPING * mean
    try:
        root = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]  # h is root times its transpose
    except np.linalg.LinAlgError:
        raise DataError("a Hessian is not positive definite") from None
    return np.triu(np.linalg.inv(root)).astype(np.float32)


def encode_with_feedback(fmt: Format, rows: Floats, factor: Floats, threads: int | None = None) -> Bytes:
    """Rows of floats, (n, k), to packed bytes, (n, row bytes); `factor` is that of `feedback_factor`."""
    w = np.array(rows, np.float32)
    parts = []
    for first in range(0, w.shape[1], fmt.block):
        last = first + fmt.block
        u = factor[first:last, first:last]
        data, errors = _encode_block(fmt, w[:, first:last], u, threads)
        w[:, last:] -= errors @ factor[first:last, last:]
        parts.append(data)
    return np.concatenate(parts, axis=1)


def _encode_block(fmt: Format, w: Floats, u: Floats, threads: int | None) -> tuple[Bytes, Floats]:
    """The bytes of a block of each row, and errors divided by the diagonal of `u`; w changes."""
    values = np.ascontiguousarray(w)
    importance = (1 / np.square(u.diagonal())).astype(np.float32)
    data = encode(fmt, values, importance, threads)
    if isinstance(fmt.codes, Grid):  # points of several values: only later blocks make up for them
        apart = values - decode(fmt, data, fmt.block, threads)
        return data, np.linalg.solve(u.T, apart.T).T.astype(np.float32)
    fields = split(fmt, data)
    scale, offset = _factors(fmt, fields)
    codes, errors = _round_columns(Levels(fmt), values, scale, offset, u)
    _write_codes(fmt, fields, codes)
    return data, errors


def _write_codes(fmt: Format, fields: Mapping[str, Bytes], codes: Ints) -> None:
    """Other codes into fields, which are views of packed bytes."""
    if isinstance(fmt.codes, Trits):
        write_trits(fmt.codes, dict(fields), codes)
        return
    assert isinstance(fmt.codes, Integers)
    for plane in fmt.codes.planes:
        fields[plane.field][:] = 0
    write_ints(fmt.codes, dict(fields), book_index(fmt, codes) if fmt.codebook else codes)


def _factors(fmt: Format, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
    """The scale and the offset of each value."""
    groups = fmt.block // fmt.group
    scale = np.repeat(read_factor(fmt, fmt.scale, dict(fields), groups), fmt.group, axis=1)
    if fmt.offset is None:
        return scale, np.zeros_like(scale)
    offset = np.repeat(read_factor(fmt, fmt.offset, dict(fields), groups), fmt.group, axis=1)
    return scale, np.float32(fmt.offset_sign) * offset


def _round_columns(levels: Levels, values: Floats, scales: Floats, offsets: Floats, u: Floats) -> tuple[Ints, Floats]:
    """Codes and errors of a block, column by column. Inside, columns are rows, since they are used one by one."""
    w, scale, offset = (np.array(a.T, np.float32, order="C") for a in (values, scales, offsets))
    back, low, high = inverse(scale), np.asarray(levels.low), np.asarray(levels.high)
    errors, codes = np.empty_like(w), np.empty(w.shape, np.int32)
    for first in range(0, len(w), COLUMNS):
        last = min(first + COLUMNS, len(w))
        for j in range(first, last):
            q = levels.nearest((w[j] - offset[j]) * back[j], low, high)
            codes[j] = q
            errors[j] = (w[j] - (q * scale[j] + offset[j])) / u[j, j]
            w[j + 1 : last] -= u[j, j + 1 : last, None] * errors[j]
        w[last:] -= u[first:last, last:].T @ errors[first:last]
    return codes.T, np.ascontiguousarray(errors.T)
