"""Recurrent layers of whole sequences in torch, token by token: `ops/recurrent.py` with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad, softplus


def conv(x: Any, weight: Any, bias: Any) -> Any:
    """x (tokens, columns), weight (columns, taps); the last tap is the token's own."""
    taps = weight.shape[1]
    rows = pad(x, (0, 0, taps - 1, 0))
    out = sum(rows[tap : tap + len(x)] * weight[:, tap] for tap in range(taps))
    return out if bias is None else out + bias


def delta_rule(
    q: Any, k: Any, v: Any, a: Any, b: Any, *, decay: Any, dt_bias: Any, scale: float, tiled: bool
) -> Any:  # fmt: skip
    """q and k (tokens, heads, dim), v (tokens, v_heads, v_dim), a and b (tokens, v_heads)."""
    heads, v_heads = q.shape[1], v.shape[1]
    numbers = torch.arange(v_heads)
    shared = numbers % heads if tiled else numbers // (v_heads // heads)
    queries, keys = q[:, shared], k[:, shared]
    fade, learn = torch.exp(decay * softplus(a + dt_bias)), torch.sigmoid(b)
    state = torch.zeros(v_heads, q.shape[2], v.shape[2])
    rows = []
    for t in range(len(v)):
        state = state * fade[t, :, None, None]
        change = learn[t, :, None] * (v[t] - torch.einsum("hk,hkv->hv", keys[t], state))
        state = state + keys[t, :, :, None] * change[:, None, :]
        rows.append(scale * torch.einsum("hk,hkv->hv", queries[t], state))
    return torch.stack(rows)


def scan(x: Any, dt: Any, b: Any, c: Any, *, decay: Any, skip: Any, dt_bias: Any) -> Any:
    """x (tokens, heads, dim), dt (tokens, heads), b and c (tokens, groups, n)."""
    heads, groups = x.shape[1], b.shape[1]
    group = torch.arange(heads) // (heads // groups)
    inputs, outputs, steps = b[:, group], c[:, group], softplus(dt + dt_bias)
    state = torch.zeros(heads, b.shape[2], x.shape[2])
    rows = []
    for t in range(len(x)):
        state = torch.exp(decay * steps[t])[:, None, None] * state
        state = state + inputs[t, :, :, None] * (steps[t][:, None] * x[t])[:, None, :]
        rows.append(torch.einsum("hn,hnd->hd", outputs[t], state) + skip[:, None] * x[t])
    return torch.stack(rows)
