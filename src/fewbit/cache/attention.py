"""K and V into a store, and attention over it, through kernels that read host memory: checked calls for one layer."""

from __future__ import annotations

import math
from typing import Any

from ..arrays import Floats
from ..errors import ShapeError
from ..ops.validation import result_array
from ..validation import to_size
from .kernels import Kernels
from .store import HostStore
from .validation import to_number, to_queries, to_rows, to_sinks
from .view import View


def write_kv(
    kernels: Kernels, store: HostStore, view: View, layer: int, k: Any, v: Any, *, threads: int | None = None
) -> None:
    """Pack and keep K, (tokens, kv_heads, k_dim), and V, (tokens, kv_heads, v_dim), of the new tokens of a view."""
    k_format, k_store, v_format, v_store = store.kv(layer)
    spec, slots = store.layout.attention(layer), view.slots(store.group_of(layer))
    max_k, max_v = store.layout.max_values(spec)
    keys = to_rows(k, "k", (len(slots), spec.kv_heads, spec.k_dim), k_format, max_k)
    values = to_rows(v, "v", (len(slots), spec.kv_heads, spec.v_dim), v_format, max_v)
    kernels.kv_write(k_format, k_store, keys, slots, store.rotate, threads=threads)
    kernels.kv_write(v_format, v_store, values, slots, is_value=True, threads=threads)


def attend(
    kernels: Kernels,
    store: HostStore,
    view: View,
    layer: int,
    q: Any,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Any = None,
    out: Floats | None = None,
    exact: bool = True,
    threads: int | None = None,
) -> Floats:
    """Causal attention of the new tokens of a view, whose K and V are in the store: see `KVCache.attend`."""
    k_format, k_store, v_format, v_store = store.kv(layer)
    spec, group = store.layout.attention(layer), store.group_of(layer)
    queries = to_queries(q, int(view.q_starts[-1]), spec.kv_heads, spec.k_dim)
    return kernels.attend(
        queries, k_store, k_format, v_store, v_format,
        view.tables[group], view.table_starts[group], view.lengths, view.q_starts,
        scale=1 / math.sqrt(spec.k_dim) if scale is None else to_number(scale, "scale"), rotate=store.rotate,
        window=_to_window(window, spec.window), softcap=to_number(softcap, "softcap", least=0),
        sinks=to_sinks(sinks, queries.shape[1]), out=result_array(out, queries.shape[:2], spec.v_dim, queries),
        exact=exact, threads=threads,
    )  # fmt: skip


def _to_window(window: int | None, kept: int) -> int:
    if window is None:
        return kept
    number = to_size(window, "window")
    if kept and not 0 < number <= kept:
        raise ShapeError(f"window must be from 1 to {kept}, the tokens whose K and V the layer keeps, got {number}")
    return number
