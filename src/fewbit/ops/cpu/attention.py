"""K and V in pages, and attention that reads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ... import _native
from ...formats import Format
from ..tiled import SLAB
from .machine import Bytes, Floats, checked_threads, number


def kv_write(
    fmt: Format,
    store: Bytes,
    x: Floats,
    slots: npt.NDArray[np.int64],
    rotate: bool = False,
    is_value: bool = False,
    threads: int | None = None,
) -> None:
    """As in `ops.attention`, natively, and into stores that hold matrix tiles: see `keeps_tiles`."""
    _native.kv_write(number(fmt), store, x, slots, rotate, is_value, checked_threads(threads))


def keeps_tiles(k: Format, v: Format, page_tokens: int, dim: int) -> bool:
    """Whether stores of K and V are best made with the shape (pages, kv_heads, page_tokens / 32, bytes of 32 rows).

    Their numbers lie then as the matrix tiles of this machine want them: see `ops.tiled`. A store of this shape can be
    used on any machine, if slowly.
    """
    return page_tokens % SLAB == 0 and all(_native.kv_tiles(number(fmt), dim) for fmt in (k, v))


def attend(
    q: Floats,
    k: Bytes,
    k_format: Format,
    v: Bytes,
    v_format: Format,
    tables: npt.NDArray[np.int32],
    table_starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    q_starts: npt.NDArray[np.int64],
    *,
    scale: float,
    rotate: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Floats | None = None,
    out: Floats | None = None,
    exact: bool = True,
    threads: int | None = None,
) -> Floats:
    """As in `ops.attention`, natively: pages are read as they are packed. Unless `exact`, many queries at once are
    rounded to bf16 on machines with matrix tiles, and keys, weights and values with them."""
    result = np.empty(q.shape, np.float32) if out is None else out
    _native.attend(
        q, number(k_format), k, number(v_format), v, tables, table_starts, lengths, q_starts, scale, rotate, window,
        softcap, sinks, result, exact, checked_threads(threads),
    )  # fmt: skip
    return result
