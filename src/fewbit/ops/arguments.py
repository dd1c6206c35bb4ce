"""Checks of the arguments of products and of quantization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Bytes, Floats, to_floats
from ..errors import ArgumentError, DataError, DtypeError, LayoutError, ShapeError
from ..formats import Format
from ..formats.limits import is_safe, limits, overflows
from ..tensor import QuantTensor
from ..validation import check_shape, to_flag

ACTIVATIONS = ("int8", "int16", "exact")


def chosen_activations(activations: str | None, exact: bool = False) -> str | None:
    """The precision of inputs of products; None for the default. `exact=True` means "exact".

    >>> chosen_activations(None, True), chosen_activations("int16"), chosen_activations(None)
    ('exact', 'int16', None)
    """
    if exact is not False:
        exact = to_flag(exact, "exact")
    if activations is None:
        return "exact" if exact else None
    if not isinstance(activations, str) or activations not in ACTIVATIONS:
        raise ArgumentError(f"activations must be {', '.join(ACTIVATIONS)} or None, not {activations!r}")
    if exact and activations != "exact":
        raise ArgumentError(f"exact=True is activations='exact', but activations={activations!r} is given too")
    return activations


def count_rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def match(shape: tuple[int, ...], k: int) -> None:
    if not shape or shape[-1] != k:
        raise ShapeError(f"x must hold rows of {k} values to match w, its shape is {shape}")


def result_array(out: Any, leading: tuple[int, ...], n: int, *inputs: npt.NDArray[Any]) -> Floats:
    shape = (*leading, n)
    if out is None:
        return np.empty(shape, np.float32)
    if not isinstance(out, np.ndarray) or out.dtype != np.float32:
        kind = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise DtypeError(f"out must be a float32 array, not {kind}")
    check_shape(out, shape, "out")
    if not out.flags.writeable:
        raise LayoutError("out is read-only")
    if not out.flags.c_contiguous:
        raise LayoutError("out must be contiguous")
    if any(np.may_share_memory(out, x) for x in inputs):
        raise LayoutError("out overlaps an input")
    return out


def refuse_shared(results: Sequence[Floats]) -> None:
    """Refuse results that overlap: they are written at the same time."""
    for i, a in enumerate(results):
        if any(np.may_share_memory(a, b) for b in results[i + 1 :]):
            raise LayoutError("outs overlap each other")


def bias_array(bias: Any, n: int, results: Sequence[Floats]) -> Floats | None:
    if bias is None:
        return None
    values = to_floats(bias, "bias")
    check_shape(values, (n,), "bias")
    if any(np.may_share_memory(values, out) for out in results):
        raise LayoutError("out overlaps the bias")
    return values


def residual_array(residual: Any, out: Floats, results: Sequence[Floats]) -> Floats | None:
    if residual is None:
        return None
    values = to_floats(residual, "residual")
    check_shape(values, out.shape, "residual")
    if any(np.may_share_memory(values, other) for other in results):
        raise LayoutError("out overlaps the residual")
    return values


def as_many(values: Sequence[Any] | None, count: int, name: str) -> Sequence[Any]:
    if values is None:
        return [None] * count
    values = to_list(values, name)
    if len(values) != count:
        raise ShapeError(f"{name} must hold {count} values, one for each matrix, got {len(values)}")
    return values


def to_list(values: Any, name: str) -> Sequence[Any]:
    if isinstance(values, list | tuple):
        return values
    raise DtypeError(f"{name} must be a list, not {type(values).__name__}")


def expect_tensor(w: Any, name: str = "w") -> None:
    if not isinstance(w, QuantTensor):
        hint = '; fb.quantize(w, "q8_0") makes one' if isinstance(w, np.ndarray) else ""
        raise DtypeError(f"{name} must be a QuantTensor, not {type(w).__name__}{hint}")


def common_columns(weights: Sequence[QuantTensor]) -> int:
    for w in weights:
        expect_tensor(w)
        if len(w.shape) != 2:
            raise ShapeError(f"w must be a matrix (n, k), its shape is {w.shape}")
        if w.shape[1] != weights[0].shape[1]:
            raise ShapeError(
                f"weights must have the same number of columns, got {weights[0].shape[1]} and {w.shape[1]}"
            )
    return weights[0].shape[1]


def refuse_unfit(rows: Floats, fmt: Format, has_importance: bool) -> None:
    """Refuse numbers that the format cannot hold: NaN and infinity, and those beyond its limits."""
    if not rows.size:
        return
    (least, most), (low, high) = (float(rows.min()), float(rows.max())), limits(fmt)
    takes_any = fmt.name in ("f32", "f64", "f16", "bf16")  # plain floats that can hold NaN and infinity
    if not takes_any and not np.isfinite([least, most]).all():
        row, column = _first(rows, lambda part: ~np.isfinite(part))
        raise DataError(f"weights hold {rows[row, column]} at row {row}, column {column}; {fmt} takes finite numbers")
    is_mean = fmt.rule == "mean" and not has_importance  # its scale may be small where some numbers are not
    if not is_mean and np.isfinite([least, most]).all() and not low <= least <= most <= high:
        raise _too_large(rows, fmt, *_first(rows, lambda part: (part < low) | (part > high)))


def refuse_overflow(rows: Floats, fmt: Format, packed: Bytes) -> None:
    """Refuse numbers that were packed with an infinite scale: a block may overflow only as a whole."""
    if not rows.size or is_safe(fmt, float(max(-rows.min(), rows.max()))):
        return
    step = _step(rows)
    for first in range(0, len(rows), step):
        bad = overflows(fmt, rows[first : first + step], packed[first : first + step])
        if bad.any():
            row = int(bad.any(axis=1).argmax())
            raise _too_large(rows, fmt, first + row, int(np.where(bad[row], abs(rows[first + row]), -1).argmax()))


def _too_large(rows: Floats, fmt: Format, row: int, column: int) -> DataError:
    kinds = dict.fromkeys(kind for _, kind, _ in fmt.fields if kind in ("f16", "bf16", "ue4m3", "e8m0", "f32"))
    holds = "" if fmt.is_scalar else f", whose scales are {' and '.join(kinds)}"
    instead = "bf16 or f32" if fmt.is_scalar else "a format with f32 scales, such as int8 or int4_group"
    return DataError(
        f"weights hold {rows[row, column]:.6g} at row {row}, column {column}, which is too large for {fmt}{holds}; "
        f"scale the weights down, or use {instead}"
    )


def _first(rows: Floats, is_bad: Callable[[Floats], npt.NDArray[np.bool_]]) -> tuple[int, int]:
    """Row and column of the first bad number, which must exist."""
    step = _step(rows)
    for first in range(0, len(rows), step):
        bad = is_bad(rows[first : first + step])
        if bad.any():
            row, column = np.argwhere(bad)[0]
            return first + int(row), int(column)
    raise AssertionError("no number is bad")


def _step(rows: Floats) -> int:
    """Rows that are checked at a time, to limit memory."""
    columns: int = rows.shape[1]
    return max(1, (1 << 22) // max(columns, 1))


def importance_array(importance: Any, rows: int, k: int) -> Floats:
    """A weight for each column, or for each value."""
    weights = to_floats(importance, "importance")
    if weights.ndim < 2:
        check_shape(weights, (k,), "importance (columns)")
    else:
        weights = weights.reshape(-1, weights.shape[-1])
        check_shape(weights, (rows, k), "importance (values)")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise DataError("importance must be finite and at least 0")
    return weights
