"""K and V in pages, and attention that reads them."""

from __future__ import annotations

import numpy as np

from ... import _native
from ...arrays import Bytes, Floats, Ints, Longs
from ...formats import Format
from ..tiled import SLAB
from .machine import checked_threads, number


def kv_write(
    fmt: Format,
    store: Bytes,
    x: Floats,
    slots: Longs,
    rotate: bool = False,
    is_value: bool = False,
    threads: int | None = None,
) -> None:
    """As in `ops.attention`, natively, and into stores that hold matrix tiles: see `keeps_tiles`."""
    _native.kv_write(number(fmt), store, x, slots, rotate, is_value, checked_threads(threads))


def keeps_tiles(k: Format, v: Format, page_tokens: int, dim: int, v_dim: int | None = None) -> bool:
    """Whether stores of K and V are best made with the shape (pages, kv_heads, page_tokens / 32, bytes of 32 rows).

    Rows of K have `dim` values, and so have those of V unless `v_dim` says another width. Their numbers lie then as the
    matrix tiles of this machine want them: see `ops.tiled`. Such a store can be used on any machine, if slowly.
    """
    widths = (k, dim), (v, dim if v_dim is None else v_dim)
    return page_tokens % SLAB == 0 and all(_native.kv_tiles(number(fmt), width) for fmt, width in widths)


def attend(
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
) -> Floats:
    """As in `ops.attention`, natively: pages are read as they are packed. Unless `exact`, many queries at once are
    rounded to bf16 on machines with matrix tiles, and keys, weights and values with them."""
    result = np.empty(q.shape, np.float32) if out is None else out
    _native.attend(
        q, number(k_format), k, number(v_format), v, tables, table_starts, lengths, q_starts, scale, rotate, window,
        softcap, sinks, result, exact, checked_threads(threads),
    )  # fmt: skip
    return result
