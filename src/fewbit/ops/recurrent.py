"""Recurrent layers in plain NumPy: slow, obvious, and what other backends are compared with.

Each function runs the new tokens of one sequence, row by row, and changes `state` in place.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Doubles, Floats


def softplus(x: Doubles) -> Doubles:
    return np.logaddexp(0, x)


def conv(x: Floats, state: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """x (tokens, columns), state (taps - 1, columns), weight (columns, taps).

    >>> state = np.zeros((1, 1), np.float32)
    >>> conv(np.array([[1], [2]], np.float32), state, np.array([[10, 1]], np.float32), None).tolist(), state.tolist()
    ([[1.0], [12.0]], [[2.0]])
    """
    rows = np.concatenate([state, x]).astype(np.float64)
    taps = weight.shape[1]
    out = sum(rows[tap : tap + len(x)] * weight[:, tap] for tap in range(taps))
    state[:] = rows[len(rows) - (taps - 1) :]
    return np.asarray(out if bias is None else out + bias, np.float32)


def delta_rule(
    q: Floats, k: Floats, v: Floats, a: Floats, b: Floats, state: Floats, *, decay: Floats, dt_bias: Floats,
    scale: float, tiled: bool,
) -> Floats:  # fmt: skip
    """q and k (tokens, heads, dim), v (tokens, v_heads, v_dim), a and b (tokens, v_heads).

    The state is (v_heads, dim, v_dim).
    """
    heads, v_heads = q.shape[1], v.shape[1]
    shared = np.arange(v_heads) % heads if tiled else np.arange(v_heads) // (v_heads // heads)
    fade = np.exp(decay * softplus(a.astype(np.float64) + dt_bias))
    learn = 1 / (1 + np.exp(-b.astype(np.float64)))
    s = state.astype(np.float64)
    out = np.empty(v.shape, np.float32)
    for t in range(len(v)):
        queries, keys = q[t, shared].astype(np.float64), k[t, shared].astype(np.float64)
        s *= fade[t, :, None, None]
        change = learn[t, :, None] * (v[t] - np.einsum("hk,hkv->hv", keys, s))
        s += keys[:, :, None] * change[:, None, :]
        out[t] = scale * np.einsum("hk,hkv->hv", queries, s)
    state[:] = s
    return out


def scan(
    x: Floats, dt: Floats, b: Floats, c: Floats, state: Floats, *, decay: Floats, skip: Floats, dt_bias: Floats
) -> Floats:
    """x (tokens, heads, dim), dt (tokens, heads), b and c (tokens, groups, n), state (heads, n, dim)."""
    heads, groups = x.shape[1], b.shape[1]
    group = np.arange(heads) // (heads // groups)
    steps = softplus(dt.astype(np.float64) + dt_bias)
    h = state.astype(np.float64)
    out = np.empty(x.shape, np.float32)
    for t in range(len(x)):
        own = x[t].astype(np.float64)
        h *= np.exp(decay * steps[t])[:, None, None]
        h += b[t, group].astype(np.float64)[:, :, None] * (steps[t][:, None] * own)[:, None, :]
        out[t] = np.einsum("hn,hnd->hd", c[t, group].astype(np.float64), h) + skip[:, None] * own
    state[:] = h
    return out
