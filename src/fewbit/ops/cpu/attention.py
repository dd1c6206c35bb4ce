"""K and V in pages, and attention that reads them."""

from __future__ import annotations

import numpy as np

from ... import _native
from ...arrays import Bytes, Floats, Longs
from ...errors import ArgumentError
from ...formats import Format
from ..specs import AttentionParams, KVArrays, PageTables
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

    K has `dim` values a head, and V `v_dim`, by default as many. Their values are then in the order of this machine's
    matrix tiles: see `ops.tiled`. Such a store works on any machine, but is slow where there are no tiles.
    """
    widths = (k, dim), (v, dim if v_dim is None else v_dim)
    return page_tokens % SLAB == 0 and all(_native.kv_tiles(number(fmt), width) for fmt, width in widths)


def attend(
    q: Floats,
    kv: KVArrays,
    step: PageTables,
    params: AttentionParams,
    *,
    out: Floats | None = None,
    exact: bool = True,
    threads: int | None = None,
) -> Floats:
    """As in `ops.attention`, natively, causal only. Unless `exact`, prompts are rounded to bf16 on machines with matrix
    tiles, with keys, weights and values."""
    if not params.causal:
        raise ArgumentError("native attention over pages is causal; use a plan, or ops.attention")
    result = np.empty(q.shape, np.float32) if out is None else out
    _native.attend(
        q, number(kv.k_format), kv.k, number(kv.v_format), kv.v, *step, params.scale, kv.rotate, params.window,
        params.softcap, params.sinks, result, exact, checked_threads(threads), params.chunked,
    )  # fmt: skip
    return result
