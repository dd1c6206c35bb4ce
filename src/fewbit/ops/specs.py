"""Records that operations share: what layers keep of each sequence, how they attend, how experts are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..arrays import Bytes, Floats, Ints, Longs
from ..formats import Format


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A layer that keeps K and V of each token, or of the last `window` tokens unless that is 0.

    With `chunked` a token sees those before it in its own chunk of `window` tokens only.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0
    chunked: bool = False

    @property
    def signed_window(self) -> int:
        """The window as GPU kernels take it: below 0 if it is chunked."""
        return -self.window if self.chunked else self.window


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A layer that keeps a state of a fixed size, which each token changes."""

    nbytes: int


LayerSpec = AttentionSpec | RecurrentSpec | None  # None: a layer that keeps nothing


@dataclass(frozen=True, slots=True, eq=False)
class AttentionParams:
    """How attention scores are computed, and which positions a token sees.

    Args:
        scale: Factor of q.k.
        window: Positions that a token sees, itself included; 0 for all up to its own.
        softcap: If not 0, a score s becomes softcap * tanh(s / softcap).
        sinks: For each query head a logit without a value.
        causal: False if a token also sees those after it.
        radius: If not causal, how many positions away a token sees, on both sides; 0 for all.
        chunked: Whether a token sees only its own chunk of `window` positions, up to its own.
        spans: First position and end of what each row is part of, (rows, 2). Causal: a row also sees all of it. Else it
            sees nothing but that.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Floats | None = None
    causal: bool = True
    radius: int = 0
    chunked: bool = False
    spans: Longs | None = None


class KVArrays(NamedTuple):
    """K and V of a layer, packed, in pages: (pages, kv_heads, page_tokens, row bytes), or slabs, see `ops.tiled`."""

    k_format: Format
    k: Bytes
    v_format: Format
    v: Bytes
    rotate: bool = False  # whether K is kept after a Hadamard rotation


class PageTables(NamedTuple):
    """The sequences of a step in one group of layers.

    Sequence s has rows q_starts[s]:q_starts[s + 1] of q: the last of its lengths[s] tokens, which are in the pages
    tables[table_starts[s]:table_starts[s + 1]].
    """

    tables: Ints
    table_starts: Longs
    lengths: Longs
    q_starts: Longs


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Which experts process a token, and with which weights, from a score for each expert.

    Args:
        top_k: Experts of a token: those with the largest probability plus `bias`.
        score: How scores become probabilities: "softmax", "sigmoid", or "softmax_top" (a softmax of the chosen ones).
        normalize: Whether the weights add up to one.
        scale: Factor of the weights.
        bias: Added to the probabilities for the choice only.
        groups: Groups of experts.
        top_groups: Groups whose experts can be chosen: the best ones.
        group_top: 1 or 2; a group is as good as its best expert, or as the sum of its two best.
        expert_scale: Factor of the weights of each expert, applied last.
    """

    top_k: int
    score: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: Floats | None = None
    groups: int = 1
    top_groups: int = 1
    group_top: int = 1
    expert_scale: Floats | None = None
