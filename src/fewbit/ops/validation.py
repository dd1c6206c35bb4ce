"""What the operations take: shapes, types and values that are checked, with a sentence for what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, to_floats
from ..errors import DataError, DtypeError, FewbitError, LayoutError, ShapeError
from ..formats import Format
from ..tensor import QuantTensor

ACTIVATIONS = ("int8", "int16", "exact")


def chosen_activations(activations: str | None, exact: bool = False) -> str | None:
    """How products take their inputs; None: as is usual. `exact` is short for "exact".

    >>> chosen_activations(None, True), chosen_activations("int16"), chosen_activations(None)
    ('exact', 'int16', None)
    """
    if activations is None:
        return "exact" if exact else None
    if activations not in ACTIVATIONS:
        raise FewbitError(f"activations are {', '.join(ACTIVATIONS)}, or None for what is usual, not {activations!r}")
    if exact and activations != "exact":
        raise FewbitError(f"exact=True is activations='exact', but activations={activations!r} is given too")
    return activations


def count_rows(shape: tuple[int, ...]) -> int:
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows


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
    if out.shape != shape:
        raise ShapeError(f"out must have shape {shape}, its shape is {out.shape}")
    if not out.flags.writeable:
        raise LayoutError("out is read-only")
    if not out.flags.c_contiguous:
        raise LayoutError("out must be contiguous")
    if any(np.may_share_memory(out, x) for x in inputs):
        raise LayoutError("out overlaps an input")
    return out


def refuse_shared(results: Sequence[Floats]) -> None:
    """Results are written at the same time: none may lie in another."""
    for i, a in enumerate(results):
        if any(np.may_share_memory(a, b) for b in results[i + 1 :]):
            raise LayoutError("outs overlap each other")


def bias_array(bias: Any, n: int, results: Sequence[Floats]) -> Floats | None:
    if bias is None:
        return None
    values = to_floats(bias, "bias")
    if values.shape != (n,):
        raise ShapeError(f"bias must have shape ({n},), its shape is {values.shape}")
    if any(np.may_share_memory(values, out) for out in results):
        raise LayoutError("out overlaps the bias")
    return values


def residual_array(residual: Any, out: Floats, results: Sequence[Floats]) -> Floats | None:
    if residual is None:
        return None
    values = to_floats(residual, "residual")
    if values.shape != out.shape:
        raise ShapeError(f"residual must have shape {out.shape}, its shape is {values.shape}")
    if any(np.may_share_memory(values, other) for other in results):
        raise LayoutError("out overlaps the residual")
    return values


def as_many(values: Sequence[Any] | None, count: int, name: str) -> Sequence[Any]:
    if values is None:
        return [None] * count
    if len(values) != count:
        raise ShapeError(f"{name} must hold one for each of {count} weights, it holds {len(values)}")
    return values


def common_columns(weights: Sequence[QuantTensor]) -> int:
    for w in weights:
        if not isinstance(w, QuantTensor):
            raise DtypeError(f"w must be a QuantTensor, not {type(w).__name__}")
        if len(w.shape) != 2:
            raise ShapeError(f"w must be a matrix (n, k), its shape is {w.shape}")
        if w.shape[1] != weights[0].shape[1]:
            raise ShapeError(f"weights must have as many columns; they have {weights[0].shape[1]} and {w.shape[1]}")
    return weights[0].shape[1]


def refuse_nonfinite(rows: Floats, fmt: Format) -> None:
    if fmt.is_scalar and not fmt.name.startswith("i"):
        return  # plain floats can hold NaN and infinity
    step = max(1, (1 << 22) // max(rows.shape[1], 1))
    for first in range(0, len(rows), step):
        bad = ~np.isfinite(rows[first : first + step])
        if bad.any():
            row, column = np.argwhere(bad)[0]
            value = rows[first + row, column]
            raise DataError(f"weights hold {value} at row {first + row}, column {column}; {fmt} takes finite numbers")


def importance_array(importance: Any, k: int) -> Floats:
    weights = to_floats(importance, "importance")
    if weights.shape != (k,):
        raise ShapeError(f"importance must hold one weight for each of {k} columns, its shape is {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise DataError("importance weights must be finite and not negative")
    return weights
