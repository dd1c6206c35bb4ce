"""What a layer keeps of each sequence; the cache allocates from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """K and V of each token, of the last `window` tokens only unless that is 0."""

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A state of a fixed size, which each token changes."""

    nbytes: int


LayerSpec = AttentionSpec | RecurrentSpec | None  # None: a layer that keeps nothing
