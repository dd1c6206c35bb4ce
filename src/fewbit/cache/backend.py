"""What a KV cache asks of a backend, and what it checks before: K, V, q and the options of attention."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..arrays import to_floats
from ..errors import DataError, DtypeError, ShapeError
from ..formats import Format

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

FEW = 8192  # values whose squares are summed by one thread, faster than the least and the greatest are found


class Backend(Protocol):
    """A module that packs K and V and reads them: `fewbit.ops.cpu`, or `fewbit.ops.attention`, the slow reference."""

    def keeps_tiles(self, k: Format, v: Format, page_tokens: int, dim: int) -> bool: ...

    def kv_write(
        self,
        fmt: Format,
        store: Bytes,
        x: Floats,
        slots: Longs,
        rotate: bool = False,
        is_value: bool = False,
        threads: int | None = None,
    ) -> None: ...

    def attend(
        self,
        q: Floats,
        k: Bytes,
        k_format: Format,
        v: Bytes,
        v_format: Format,
        tables: Ints,
        table_starts: Longs,
        lengths: Longs,
        q_starts: Longs,
        *,
        scale: float,
        rotate: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Floats | None = None,
        out: Floats | None = None,
        exact: bool = True,
        threads: int | None = None,
    ) -> Floats: ...


def native() -> Backend:
    """The native CPU code; it is loaded now."""
    from ..ops import cpu

    return cpu


def to_rows(x: Any, what: str, shape: tuple[int, int, int], fmt: Format, most: float) -> Floats:
    """K or V that can be packed.

    >>> from fewbit.formats import get
    >>> to_rows([[[1e9]]], "k", (1, 1, 1), get("f16"), 65504.0)
    Traceback (most recent call last):
        ...
    fewbit.errors.DataError: k holds 1e+09; kept in f16, it takes numbers from -65504 to 65504
    """
    rows = to_floats(x, what)
    if rows.shape != shape:
        raise ShapeError(f"{what} must have shape (tokens, kv_heads, dim) = {shape}, its shape is {rows.shape}")
    small = rows.size <= FEW and float(np.vdot(rows, rows)) <= most * most  # NaN and infinity are not
    if rows.size and not small:
        least, greatest = float(rows.min()), float(rows.max())
        if not (-most <= least and greatest <= most):  # so that NaN is refused
            wrong = greatest if not greatest <= most else least
            raise DataError(f"{what} holds {wrong:g}; kept in {fmt}, it takes numbers from {-most:g} to {most:g}")
    return rows


def to_queries(q: Any, tokens: int, kv_heads: int, dim: int) -> Floats:
    queries = to_floats(q, "q")
    if queries.ndim == 3 and queries.shape[::2] == (tokens, dim):
        q_heads = queries.shape[1]
        if q_heads and q_heads % kv_heads == 0:
            return queries
    wanted = f"({tokens}, a multiple of {kv_heads}, {dim})"
    raise ShapeError(f"q must have shape (tokens, q_heads, dim) = {wanted}, its shape is {queries.shape}")


def to_sinks(sinks: Any, q_heads: int) -> Floats | None:
    if sinks is None:
        return None
    logits = to_floats(sinks, "sinks")
    if logits.shape != (q_heads,):
        raise ShapeError(f"sinks must hold a logit for each of {q_heads} heads of q, the shape is {logits.shape}")
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise DataError("sinks must be finite, or -inf for a head that has none")
    return logits


def to_number(value: float, what: str, least: float = -math.inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DtypeError(f"{what} is a number, not {type(value).__name__}") from None
    if not math.isfinite(number) or number < least:
        raise DataError(f"{what} is finite{' and not negative' if least == 0 else ''}, {number} was given")
    return number
