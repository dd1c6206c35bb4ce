"""Checks that operations share: heads of rows, and the shapes and routing of experts."""

from __future__ import annotations

from ..arrays import Floats
from ..errors import ArgumentError, ShapeError
from ..tensor import QuantTensor
from .graph import Value
from .specs import Routing

FUSED_GATES = ("silu", "gelu", "gelu_tanh", "relu")  # that kernels apply to a product
GATES = (*FUSED_GATES, "sigmoid", "none", "swiglu_oai")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid")
SCORES = ("softmax", "sigmoid", "softmax_top")


def expect(holds: bool, message: str) -> None:
    if not holds:
        raise ShapeError(message)


def head_dim(what: str, x: Value, heads: int) -> int:
    expect(heads >= 1 and x.width % heads == 0, f"{what}: rows of {x.width} values are not {heads} heads")
    return x.width // heads


def check_experts(
    x: Value,
    scores: Value,
    up: QuantTensor,
    down: QuantTensor,
    gate: QuantTensor | None,
    routing: Routing,
    biases: tuple[Floats | None, ...],
    kind: str,
) -> None:
    """Check the shapes of experts, and their routing."""
    expect(len(up.shape) == 3, f"experts: weights must be (experts, rows, columns), they are {up.shape}")
    count, n, k = up.shape
    expect(k == x.width, f"experts: rows of {x.width} values do not fit matrices of {n} x {k}")
    expect(down.shape == (count, k, n), f"experts: down must be {(count, k, n)}, it is {down.shape}")
    expect(gate is None or gate.shape == up.shape, "experts: gate and up must have the same shape")
    expect(scores.width == count, f"experts: there are {scores.width} scores for {count} experts")
    for bias, rows in zip(biases, (n, n, k), strict=True):
        expect(bias is None or bias.shape == (count, rows), f"experts: a bias must be {(count, rows)}")
    if kind not in (GATES if gate is not None else ACTIVATIONS):
        raise ArgumentError(f"experts: there is no {kind!r}")
    if routing.score not in SCORES:
        raise ArgumentError(f"experts: there is no score {routing.score!r}; there are: {', '.join(SCORES)}")
    fits = 1 <= routing.top_groups <= routing.groups and count % routing.groups == 0 and routing.group_top in (1, 2)
    expect(fits, f"experts: {count} experts cannot be chosen from {routing.top_groups} of {routing.groups} groups")
    most = count // routing.groups * routing.top_groups
    expect(1 <= routing.top_k <= most, f"experts: {routing.top_k} of {most} experts cannot be chosen")
    for vector in (routing.bias, routing.expert_scale):
        expect(vector is None or vector.shape == (count,), "experts: the routing's bias or scales do not fit")
