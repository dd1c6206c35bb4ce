"""How many replicas there are to be: as many as it takes for each to have no more than so many tokens to come."""

from __future__ import annotations

from math import ceil
from typing import Any

QUEUED_TOKENS = "queued_tokens"  # what replicas record


class QueuedTokensPolicy:
    """A policy of Serve's autoscaling, which holds its bounds and delays.

    Args:
        tokens_per_replica: Tokens of prompts and outputs that are still to come, at most.
    """

    def __init__(self, tokens_per_replica: float = 20_000.0) -> None:
        self._tokens_per_replica = tokens_per_replica

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        recorded = (context.aggregated_metrics or {}).get(QUEUED_TOKENS, {})
        return max(1, ceil(sum(recorded.values()) / self._tokens_per_replica)), {}
