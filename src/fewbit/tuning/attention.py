"""Attention of whole sequences in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..ops.specs import AttentionParams


def attend(q: Any, k: Any, v: Any, params: AttentionParams) -> Any:
    """Attention of one sequence: q (tokens, q_heads, dim), k and v with their own heads.

    Query head h reads KV head h // (q_heads / kv_heads).
    """
    repeat = q.shape[1] // k.shape[1]
    queries = q.transpose(0, 1)
    keys, values = (x.transpose(0, 1).repeat_interleave(repeat, 0) for x in (k, v))
    if params.softcap or params.sinks is not None:
        return _by_scores(queries, keys, values, params).transpose(0, 1)
    is_plain = params.causal and not params.window
    mask = None if is_plain else visible(len(q), params)
    out = torch.nn.functional.scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=mask, is_causal=is_plain, scale=params.scale
    )
    return out[0].transpose(0, 1)


def visible(length: int, params: AttentionParams) -> Any:
    """Which positions each token sees, (tokens, tokens).

    >>> visible(3, AttentionParams(1.0, window=2)).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    places = torch.arange(length)
    distance = places[:, None] - places
    if not params.causal:
        return distance.abs() <= (params.radius or length)
    if params.chunked and params.window:
        chunk = places // params.window
        return (distance >= 0) & (chunk[:, None] == chunk)
    return (distance >= 0) & (distance < (params.window or length))


def _by_scores(q: Any, k: Any, v: Any, params: AttentionParams) -> Any:
    """The same by its definition, for what torch's own function does not have."""
    scores = params.scale * (q @ k.transpose(1, 2))  # (heads, tokens, tokens)
    if params.softcap:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    scores = scores.masked_fill(~visible(q.shape[1], params), -torch.inf)
    if params.sinks is None:
        return scores.softmax(-1) @ v
    sinks = torch.from_numpy(np.array(params.sinks))[:, None, None].expand(-1, q.shape[1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v
