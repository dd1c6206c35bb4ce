"""What a layer keeps of each sequence; the cache allocates from it."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Floats


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


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Which experts a token is given to, and how much each of them counts, from a score for each expert.

    `score` makes probabilities of the scores: "softmax", "sigmoid", or "softmax_top" (a softmax of the chosen ones).
    Those with the largest probability plus `bias` are chosen. With `groups` only the experts of the `top_groups` best
    groups can be: a group is as good as its best expert, or as the sum of its two best (`group_top`).
    """

    top_k: int
    score: str = "softmax"
    normalize: bool = True  # weights add up to one
    scale: float = 1.0  # of the weights
    bias: Floats | None = None
    groups: int = 1
    top_groups: int = 1
    group_top: int = 1  # 1 or 2
    expert_scale: Floats | None = None  # of the weights of each expert, in the end


LayerSpec = AttentionSpec | RecurrentSpec | None  # None: a layer that keeps nothing
