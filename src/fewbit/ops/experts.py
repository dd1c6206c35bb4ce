"""Routed experts in plain NumPy: slow, obvious, and what every other backend is compared with."""

from __future__ import annotations

import numpy as np

from ..arrays import Doubles, Floats, Longs
from .specs import Routing


def route(scores: Floats, routing: Routing) -> tuple[Longs, Doubles]:
    """The experts of each row, (rows, top_k), best first, and their weights.

    >>> chosen, weights = route(np.array([[1, 3, 2]], np.float32), Routing(top_k=2))
    >>> chosen.tolist(), weights.round(3).tolist()
    ([[1, 2]], [[0.731, 0.269]])
    """
    logits = scores.astype(np.float64)
    probabilities = 1 / (1 + np.exp(-logits)) if routing.score == "sigmoid" else _softmax(logits)
    if routing.score == "softmax_top":
        probabilities = logits
    ranked = _mask_groups(probabilities + (0 if routing.bias is None else routing.bias), routing)
    chosen = np.argsort(-ranked, axis=1, kind="stable")[:, : routing.top_k]
    weights = np.take_along_axis(probabilities, chosen, axis=1)
    if routing.score == "softmax_top":
        weights = _softmax(weights)
    elif routing.normalize:
        weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20)
    weights = weights * routing.scale
    return chosen, np.asarray(weights if routing.expert_scale is None else weights * routing.expert_scale[chosen])


def _mask_groups(ranked: Doubles, routing: Routing) -> Doubles:
    """Experts of all but the best groups get the rank -inf."""
    if routing.groups == 1:
        return ranked
    rows, count = ranked.shape
    by_group = ranked.reshape(rows, routing.groups, -1)
    group_scores = np.sort(by_group, axis=2)[:, :, -routing.group_top :].sum(axis=2)
    best = np.argsort(-group_scores, axis=1, kind="stable")[:, : routing.top_groups]
    out = np.full(by_group.shape, -np.inf)
    np.put_along_axis(out, best[:, :, None], np.take_along_axis(by_group, best[:, :, None], axis=1), axis=1)
    return out.reshape(rows, count)


def _softmax(x: Doubles) -> Doubles:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
