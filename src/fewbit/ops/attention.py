"""Attention over a paged KV cache in plain NumPy: slow, obvious, and what every other backend is compared with.

A store holds K or V of one layer: bytes of (pages, kv_heads, page_tokens, row_bytes), one row of a block format for
each token and head. Rows are decoded, and everything after that is float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Bytes, Doubles, Floats, Ints, Longs
from ..formats import Format
from ..formats.decode import decode
from ..formats.encode import encode


def hadamard(x: npt.NDArray[Any]) -> Doubles:
    """Rotate the last dimension, in blocks of the largest power of two that divides it. Twice gives x again.

    >>> hadamard(np.array([1, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0])).tolist()
    [0.5, 0.5, 0.5, 0.5, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    size = x.shape[-1] & -x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    blocks = x.astype(np.float64).reshape(-1, size)
    return np.asarray(blocks @ matrix / np.sqrt(size)).reshape(x.shape)


def kv_write(
    fmt: Format,
    store: Bytes,
    x: Floats,
    slots: Longs,
    rotate: bool = False,
    is_value: bool = False,
    threads: int | None = None,
) -> None:
    """Pack x, (tokens, kv_heads, dim), into a store; token t goes to slot `page * page_tokens + place` of slots[t].

    The values of a head are one row, padded with zeros to whole blocks; `rotate`: after a Hadamard rotation. Where K
    and V lie in different ways, `is_value` says which it is; here they do not.

    >>> from fewbit.formats import get
    >>> store = np.zeros((4, 1, 8, 34), np.uint8)
    >>> kv_write(get("q8_0"), store, np.ones((2, 1, 32), np.float32), np.array([7, 8]))
    >>> [tuple(map(int, place)) for place in np.argwhere(store.any(axis=(1, 3)))]
    [(0, 7), (1, 0)]
    """
    _, kv_heads, page_tokens, row_bytes = store.shape
    tokens, _, dim = x.shape
    padded = np.zeros((tokens * kv_heads, -(-dim // fmt.block) * fmt.block), np.float32)
    padded[:, :dim] = (hadamard(x) if rotate else x).reshape(tokens * kv_heads, dim)
    rows = encode(fmt, padded)
    store[slots // page_tokens, :, slots % page_tokens] = rows.reshape(tokens, kv_heads, row_bytes)


def keeps_tiles(k: Format, v: Format, page_tokens: int, dim: int, v_dim: int | None = None) -> bool:
    """Whether stores hold matrix tiles: never here."""
    return False


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
    causal: bool = True,
    around: int = 0,
    exact: bool = True,
    threads: int | None = None,
) -> Floats:
    """Attention of q, (tokens, q_heads, k_dim), for several sequences; the result is (tokens, q_heads, v_dim).

    V is as wide as `out`, and as wide as K where there is none. Sequence s has rows q_starts[s]:q_starts[s + 1] of q:
    the last of its lengths[s] tokens, whose K and V are all in the stores, in the pages
    tables[table_starts[s]:table_starts[s + 1]]. Pages that no row sees are not read. Query head h reads KV head
    h // (q_heads / kv_heads).

    A row at position p sees the positions up to p, at most the last `window` of them (0: all). Not `causal`: all of
    them, or with `around` those up to so many positions away. A logit is scale * q.k;
    with `softcap` c it is c * tanh(logit / c). `sinks` is one more logit for each query head, with no value. `rotate`:
    q is rotated as K was. `exact` off allows rounding, which NumPy has no use for.

    >>> from fewbit.formats import get
    >>> store = np.zeros((1, 1, 8, 128), np.uint8)
    >>> kv_write(get("f32"), store, np.array([1, 3], np.float32).repeat(32).reshape(2, 1, 32), np.array([0, 1]))
    >>> starts = np.array([0, 1])
    >>> f32, q = get("f32"), np.zeros((1, 1, 32), np.float32)
    >>> attend(q, store, f32, store, f32, starts[:1].astype(np.int32), starts, np.array([2]), starts, scale=1)[0, 0, 0]
    np.float32(2.0)
    """
    result = np.empty(q.shape, np.float32) if out is None else out
    queries = hadamard(q) if rotate else q.astype(np.float64)
    for s, length in enumerate(lengths.tolist()):
        rows = slice(q_starts[s], q_starts[s + 1])
        table = tables[table_starts[s] : table_starts[s + 1]]
        visible = _visible(length, rows.stop - rows.start, window, causal, around)
        positions = np.flatnonzero(visible.any(axis=0))
        keys = _read(k, k_format, table, positions, q.shape[2])
        values = _read(v, v_format, table, positions, result.shape[2])
        result[rows] = _attend_one(queries[rows], keys, values, visible[:, positions], scale, softcap, sinks)
    return result


def _read(store: Bytes, fmt: Format, table: Ints, positions: Longs, dim: int) -> Doubles:
    """K or V of some tokens of a sequence, (kv_heads, tokens, dim)."""
    _, kv_heads, page_tokens, row_bytes = store.shape
    rows = store[table[positions // page_tokens], :, positions % page_tokens]  # (tokens, kv_heads, row_bytes)
    values = decode(fmt, rows.reshape(-1, row_bytes), dim).reshape(len(positions), kv_heads, dim)
    return values.astype(np.float64).swapaxes(0, 1)


def _visible(length: int, rows: int, window: int, causal: bool, around: int) -> npt.NDArray[np.bool_]:
    """Which positions each of the last rows sees, (rows, length)."""
    back = np.arange(length - rows, length)[:, None] - np.arange(length)
    if not causal:
        return np.asarray(np.abs(back) <= (around or length))
    return (back >= 0) & (back < (window or length))


def _attend_one(
    q: Doubles,
    k: Doubles,
    v: Doubles,
    visible: npt.NDArray[np.bool_],
    scale: float,
    softcap: float,
    sinks: Floats | None,
) -> Doubles:
    q_heads = q.shape[1]
    out = np.empty((len(q), q_heads, v.shape[2]))
    for head in range(q_heads):
        kv_head = head // (q_heads // len(k))
        logits = scale * (q[:, head] @ k[kv_head].T)  # (rows, length)
        if softcap:
            logits = softcap * np.tanh(logits / softcap)
        logits = np.where(visible, logits, -np.inf)
        sink = -np.inf if sinks is None else float(sinks[head])
        top = logits.max(axis=1, keepdims=True, initial=sink)
        weights = np.exp(logits - top)
        out[:, head] = weights @ v[kv_head] / (weights.sum(axis=1, keepdims=True) + np.exp(sink - top))
    return out
