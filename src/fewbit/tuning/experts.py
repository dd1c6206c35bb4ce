"""Routed experts in torch: `ops/experts.py` with gradients of the weights."""

from __future__ import annotations

from typing import Any

import torch

from ..ops.specs import Routing


def route(scores: Any, routing: Routing) -> tuple[Any, Any]:
    """The experts of each row, (rows, top_k), best first, and their weights.

    >>> route(torch.tensor([[1.0, 3.0, 2.0]]), Routing(top_k=2))[0].tolist()
    [[1, 2]]
    """
    probabilities = scores.sigmoid() if routing.score == "sigmoid" else scores.softmax(1)
    if routing.score == "softmax_top":
        probabilities = scores
    ranked = probabilities.detach() + (0 if routing.bias is None else _constant(routing.bias))
    chosen = torch.argsort(_mask_groups(ranked, routing), dim=1, descending=True, stable=True)[:, : routing.top_k]
    weights = probabilities.gather(1, chosen)
    if routing.score == "softmax_top":
        weights = weights.softmax(1)
    elif routing.normalize:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    weights = weights * routing.scale
    return chosen, weights if routing.expert_scale is None else weights * _constant(routing.expert_scale)[chosen]


def _mask_groups(ranked: Any, routing: Routing) -> Any:
    """Experts of all but the best groups get the rank -inf."""
    if routing.groups == 1:
        return ranked
    by_group = ranked.reshape(len(ranked), routing.groups, -1)
    group_scores = by_group.sort(2).values[:, :, -routing.group_top :].sum(2)
    best = torch.argsort(group_scores, dim=1, descending=True, stable=True)[:, : routing.top_groups]
    allowed = torch.zeros(group_scores.shape, dtype=torch.bool).scatter(1, best, True)
    return by_group.masked_fill(~allowed[:, :, None], -torch.inf).reshape(ranked.shape)


def _constant(values: Any) -> Any:
    return torch.from_numpy(values.copy())
