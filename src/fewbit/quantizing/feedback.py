"""Error feedback: what rounding a column changes in a product is made up for by the columns that are not rounded yet.

This is GPTQ's method for block formats. With H, the sum of x x^T over the inputs x of a matrix, its output changes by
(w - q) H (w - q)^T for each row w. U is upper triangular with U^T U = H^-1: after column j is rounded, the others
change by -(w_j - q_j) / U_jj times row j of U. Scales are searched block by block, for values with all changes so far;
codes are then chosen column by column. A row whose output changes less with the codes of a plain search keeps those.
Then scales and codes are improved in turn (`descent.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Bytes, Floats, Ints
from ..errors import DataError
from ..formats import Format
from ..formats.decode import split
from ..formats.search import Levels, inverse
from ..formats.spec import Grid
from ..ops.cpu import decode, encode
from .blocks import factors, write_codes
from .descent import descend, output_errors

DAMPING = 0.01  # of the mean of the diagonal, added to it
COLUMNS = 32  # whose changes are added to each other at once


@dataclass(frozen=True, eq=False)
class Feedback:
    """What error feedback needs of the inputs of a matrix.

    Args:
        hessian: H, damped, with a mean of 1 on the diagonal.
        factor: U, upper triangular, with U^T U the inverse of it.
    """

    hessian: Floats
    factor: Floats


def read_feedback(hessian: Any) -> Feedback:
    """H and U from a sum of products.

    >>> np.allclose(read_feedback(np.eye(2) * 4).factor, np.eye(2) * 0.995, atol=1e-3)
    True
    """
    h = np.array(hessian, np.float64)
    if not np.isfinite(h).all():
        raise DataError("a Hessian holds NaN or infinity")
    diagonal = h.diagonal().copy()
    mean = diagonal.mean() or 1.0
    h[np.diag_indices_from(h)] = np.where(diagonal > 0, diagonal, mean) + DAMPING * mean
    h /= mean
    try:
        root = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]  # h is root times its transpose
    except np.linalg.LinAlgError:
        raise DataError("a Hessian is not positive definite") from None
    return Feedback(h.astype(np.float32), np.triu(np.linalg.inv(root)).astype(np.float32))


def encode_with_feedback(fmt: Format, rows: Floats, feedback: Feedback, threads: int | None = None) -> Bytes:
    """Rows of floats, (n, k), to packed bytes, (n, row bytes)."""
    data = _fed(fmt, rows, feedback.factor, threads)
    searched = encode(fmt, rows, np.ascontiguousarray(feedback.hessian.diagonal()), threads)
    fed, plain = (_errors(fmt, rows, packed, threads) for packed in (data, searched))
    keeps_plain = output_errors(plain, feedback.hessian) < output_errors(fed, feedback.hessian)
    data[keeps_plain] = searched[keeps_plain]
    fed[keeps_plain] = plain[keeps_plain]
    return descend(fmt, rows, data, fed, feedback.hessian, threads)


def _errors(fmt: Format, rows: Floats, data: Bytes, threads: int | None) -> Floats:
    return rows - decode(fmt, data, rows.shape[1], threads)


def _fed(fmt: Format, rows: Floats, factor: Floats, threads: int | None) -> Bytes:
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
        errors = values - decode(fmt, data, fmt.block, threads)
        return data, np.linalg.solve(u.T, errors.T).T.astype(np.float32)
    fields = split(fmt, data)
    codes, errors = _round_columns(Levels(fmt), values, *factors(fmt, fields), u)
    write_codes(fmt, fields, codes)
    return data, errors


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
