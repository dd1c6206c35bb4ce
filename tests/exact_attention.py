"""Attention in float64, one position after another, and the formats that K and V can have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fewbit.arrays import Doubles
from fewbit.formats import all_formats

KV_FORMATS = ["f32", "f16", "bf16", "f8_e4m3"] + [
    f.name for f in all_formats().values() if f.block == 32 and f.placement == "block"
]
PACKED = [name for name in KV_FORMATS if name != "f32"]


def exact(
    q: npt.NDArray[Any],  # (rows, q_heads, k_dim), of the last positions
    k: npt.NDArray[Any],  # (length, kv_heads, k_dim)
    v: npt.NDArray[Any],  # (length, kv_heads, v_dim)
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: npt.NDArray[Any] | None = None,
    chunked: bool = False,
) -> Doubles:
    """Attention as it is defined."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    rows, q_heads, _ = q.shape
    k, v = (np.repeat(x, q_heads // x.shape[1], axis=1) for x in (k, v))
    out = np.empty((rows, q_heads, v.shape[2]))
    for row in range(rows):
        position = len(k) - rows + row
        first = max(0, position - window + 1) if window else 0
        first = position - position % window if chunked else first
        logits = scale * np.einsum("hd,thd->ht", q[row], k[first : position + 1])
        if softcap:
            logits = softcap * np.tanh(logits / softcap)
        extra = np.full(q_heads, -np.inf) if sinks is None else sinks.astype(np.float64)
        logits = np.concatenate([logits, extra[:, None]], axis=1)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[row] = np.einsum("ht,thd->hd", weights[:, :-1], v[first : position + 1])
    return out


def error(y: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """Relative, over all values."""
    return float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))
