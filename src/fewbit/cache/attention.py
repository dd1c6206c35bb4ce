"""Writes K and V of a step into a store, and attends over it: one layer, with checked arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import Floats, to_floats
from ..errors import DataError, ShapeError
from ..formats import Format
from ..ops.arguments import result_array
from ..ops.specs import AttentionParams, AttentionSpec
from ..validation import check_shape, to_number, to_size
from .kernels import Kernels
from .store import HostStore
from .view import View

FEW = 8192  # up to so many values, a sum of squares is faster than a minimum and a maximum


def write_kv(
    kernels: Kernels, store: HostStore, view: View, layer: int, k: Any, v: Any, *, threads: int | None = None
) -> None:
    """Pack and keep K, (tokens, kv_heads, k_dim), and V, (tokens, kv_heads, v_dim), of the new tokens of a view."""
    kv, slots = store.kv(layer), view.slots(store.group_of(layer))
    spec = store.layout.attention(layer)
    max_k, max_v = store.layout.max_values(spec)
    keys = _to_rows(k, "k", (len(slots), spec.kv_heads, spec.k_dim), kv.k_format, max_k)
    values = _to_rows(v, "v", (len(slots), spec.kv_heads, spec.v_dim), kv.v_format, max_v)
    kernels.kv_write(kv.k_format, kv.k, keys, slots, kv.rotate, threads=threads)
    kernels.kv_write(kv.v_format, kv.v, values, slots, is_value=True, threads=threads)


def attend(
    kernels: Kernels,
    store: HostStore,
    view: View,
    layer: int,
    q: Any,
    params: AttentionParams,
    *,
    out: Floats | None = None,
    exact: bool = True,
    threads: int | None = None,
) -> Floats:
    """Causal attention of the new tokens of a view, whose K and V are in the store: see `KVCache.attend`."""
    spec = store.layout.attention(layer)
    queries = _to_queries(q, int(view.q_starts[-1]), spec)
    result = result_array(out, queries.shape[:2], spec.v_dim, queries)
    checked = AttentionParams(
        scale=to_number(params.scale, "scale"),
        window=_to_window(params.window, spec.window),
        softcap=to_number(params.softcap, "softcap", least=0),
        sinks=_to_sinks(params.sinks, queries.shape[1]),
        chunked=spec.chunked,
    )
    step = view.page_tables(store.group_of(layer))
    return kernels.attend(queries, store.kv(layer), step, checked, out=result, exact=exact, threads=threads)


def default_params(spec: AttentionSpec) -> AttentionParams:
    """Attention with the usual scale, over all tokens that a layer keeps."""
    return AttentionParams(1 / math.sqrt(spec.k_dim), spec.window)


def _to_window(window: int, kept: int) -> int:
    number = to_size(window, "window")
    if kept and not 0 < number <= kept:
        raise ShapeError(f"window must be from 1 to {kept}, the tokens whose K and V the layer keeps, got {number}")
    return number


def _to_rows(x: Any, name: str, shape: tuple[int, int, int], fmt: Format, max_value: float) -> Floats:
    """K or V that can be packed.

    >>> from fewbit.formats import get
    >>> _to_rows([[[1e9]]], "k", (1, 1, 1), get("f16"), 65504.0)
    Traceback (most recent call last):
        ...
    fewbit.errors.DataError: k holds 1e+09; kept in f16, it takes numbers from -65504 to 65504
    """
    rows = to_floats(x, name)
    check_shape(rows, shape, f"{name} (tokens, kv_heads, dim)")
    small = rows.size <= FEW and float(np.vdot(rows, rows)) <= max_value * max_value  # NaN and infinity are not
    if rows.size and not small:
        least, greatest = float(rows.min()), float(rows.max())
        if not (-max_value <= least and greatest <= max_value):  # so that NaN is refused
            wrong = greatest if not greatest <= max_value else least
            limits = f"from {-max_value:g} to {max_value:g}"
            raise DataError(f"{name} holds {wrong:g}; kept in {fmt}, it takes numbers {limits}")
    return rows


def _to_queries(q: Any, tokens: int, spec: AttentionSpec) -> Floats:
    queries = to_floats(q, "q")
    if queries.ndim == 3 and queries.shape[::2] == (tokens, spec.k_dim):
        q_heads = queries.shape[1]
        if q_heads and q_heads % spec.kv_heads == 0:
            return queries
    wanted = f"({tokens}, a multiple of {spec.kv_heads}, {spec.k_dim})"
    raise ShapeError(f"q (tokens, q_heads, dim) must have shape {wanted}, not {queries.shape}")


def _to_sinks(sinks: Any, q_heads: int) -> Floats | None:
    if sinks is None:
        return None
    logits = to_floats(sinks, "sinks")
    check_shape(logits, (q_heads,), "sinks (q_heads)")
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise DataError("sinks must be finite, or -inf for a head that has none")
    return logits
