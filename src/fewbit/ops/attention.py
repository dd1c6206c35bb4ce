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
from .specs import AttentionParams, KVArrays, PageTables


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
    """Pack K or V of new tokens into a store. The values of a head are one row, padded with zeros to whole blocks.

    >>> from fewbit.formats import get
    >>> store = np.zeros((4, 1, 8, 34), np.uint8)
    >>> kv_write(get("q8_0"), store, np.ones((2, 1, 32), np.float32), np.array([7, 8]))
    >>> [tuple(map(int, place)) for place in np.argwhere(store.any(axis=(1, 3)))]
    [(0, 7), (1, 0)]

    Args:
        fmt: Format of the store.
        store: Bytes of (pages, kv_heads, page_tokens, row bytes).
        x: Array of (tokens, kv_heads, dim).
        slots: Where each token goes: page * page_tokens + place in the page.
        rotate: Apply a Hadamard rotation first.
        is_value: Whether x is V, which kernels may place differently from K.
        threads: Number of threads, which NumPy has no use for.
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
    kv: KVArrays,
    step: PageTables,
    params: AttentionParams,
    *,
    out: Floats | None = None,
    exact: bool = True,
    threads: int | None = None,
) -> Floats:
    """Attention of several sequences.

    >>> from fewbit.formats import get
    >>> f32, store = get("f32"), np.zeros((1, 1, 8, 128), np.uint8)
    >>> kv_write(f32, store, np.array([1, 3], np.float32).repeat(32).reshape(2, 1, 32), np.array([0, 1]))
    >>> starts, lengths = np.array([0, 1]), np.array([2])
    >>> step = PageTables(np.zeros(1, np.int32), starts, lengths, starts)
    >>> q = np.zeros((1, 1, 32), np.float32)
    >>> attend(q, KVArrays(f32, store, f32, store), step, AttentionParams(scale=1))[0, 0, 0]
    np.float32(2.0)

    Args:
        q: Array of (tokens, q_heads, k_dim). Query head h reads KV head h // (q_heads / kv_heads).
        kv: K and V of all tokens, the new ones included. Pages that no row sees are not read.
        step: The sequences.
        params: Scale and mask.
        out: Array for the result; V is as wide as it, and as K if there is none.
        exact: False allows rounding, which NumPy has no use for.
        threads: Number of threads, which NumPy has no use for either.

    Returns:
        Array of (tokens, q_heads, v_dim).
    """
    result = np.empty(q.shape, np.float32) if out is None else out
    queries = hadamard(q) if kv.rotate else q.astype(np.float64)
    for s, length in enumerate(step.lengths.tolist()):
        rows = slice(step.q_starts[s], step.q_starts[s + 1])
        table = step.tables[step.table_starts[s] : step.table_starts[s + 1]]
        visible = _visible(length, rows, params)
        positions = np.flatnonzero(visible.any(axis=0))
        keys = _read(kv.k, kv.k_format, table, positions, q.shape[2])
        values = _read(kv.v, kv.v_format, table, positions, result.shape[2])
        result[rows] = _attend_one(queries[rows], keys, values, visible[:, positions], params)
    return result


def _read(store: Bytes, fmt: Format, table: Ints, positions: Longs, dim: int) -> Doubles:
    """K or V of some tokens of a sequence, (kv_heads, tokens, dim)."""
    _, kv_heads, page_tokens, row_bytes = store.shape
    rows = store[table[positions // page_tokens], :, positions % page_tokens]  # (tokens, kv_heads, row_bytes)
    values = decode(fmt, rows.reshape(-1, row_bytes), dim).reshape(len(positions), kv_heads, dim)
    return values.astype(np.float64).swapaxes(0, 1)


def _visible(length: int, rows: slice, params: AttentionParams) -> npt.NDArray[np.bool_]:
    """Which positions each of the last rows of a sequence sees, (rows, length)."""
    positions, first = np.arange(length), length - (rows.stop - rows.start)
    distance = positions[first:, None] - positions
    if not params.causal:
        seen = np.abs(distance) <= (params.radius or length)
    elif params.chunked and params.window:
        chunk = positions // params.window
        seen = (distance >= 0) & (chunk[first:, None] == chunk)
    else:
        seen = (distance >= 0) & (distance < (params.window or length))
    if params.spans is None:
        return np.asarray(seen)
    begins, ends = params.spans[rows].T[:, :, None]
    own = (positions >= begins) & (positions < ends)
    return np.asarray(own | seen if params.causal else own)


def _attend_one(q: Doubles, k: Doubles, v: Doubles, visible: npt.NDArray[np.bool_], params: AttentionParams) -> Doubles:
    q_heads = q.shape[1]
    out = np.empty((len(q), q_heads, v.shape[2]))
    for head in range(q_heads):
        kv_head = head // (q_heads // len(k))
        logits = params.scale * (q[:, head] @ k[kv_head].T)  # (rows, length)
        if params.softcap:
            logits = params.softcap * np.tanh(logits / params.softcap)
        logits = np.where(visible, logits, -np.inf)
        sink = -np.inf if params.sinks is None else float(params.sinks[head])
        top = logits.max(axis=1, keepdims=True, initial=sink)
        weights = np.exp(logits - top)
        out[:, head] = weights @ v[kv_head] / (weights.sum(axis=1, keepdims=True) + np.exp(sink - top))
    return out
