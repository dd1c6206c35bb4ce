"""The operations in plain NumPy: slow, obvious, and what every device is compared with.

`run` walks a graph. There is a function for each operation, by its name: it takes the step, the inputs and the
attributes. Weights are decoded, everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..arrays import Doubles, Floats, Ints
from ..formats.decode import decode
from ..tensor import QuantTensor
from .graph import Graph, Rope, Value
from .specs import AttentionSpec


class PagedAttention(Protocol):
    """K and V of a step's sequences: written, then attended to."""

    def append(self, layer: int, sequences: Sequence[int], k: Floats, v: Floats) -> None: ...

    def attend(
        self,
        layer: int,
        sequences: Sequence[int],
        q: Floats,
        *,
        scale: float,
        window: int,
        softcap: float,
        sinks: Floats | None,
    ) -> Floats: ...


class Weights:
    """Matrices decoded by NumPy. Each is decoded once and kept."""

    def __init__(self) -> None:
        self._decoded: dict[int, tuple[QuantTensor, Floats]] = {}

    def __call__(self, w: QuantTensor) -> Floats:
        if id(w) not in self._decoded:
            self._decoded[id(w)] = w, decode(w.format, w.data.reshape(w.rows, -1), w.shape[-1])
        return self._decoded[id(w)][1]


@dataclass
class Step:
    """What one step runs on: its tokens, where they stand, which rows logits are wanted of, and the KV cache."""

    tokens: Ints
    positions: Ints
    logits_indices: Ints
    cache: PagedAttention
    sequences: Sequence[int]
    weights: Callable[[QuantTensor], Floats] = field(default_factory=Weights)

    def attend(self, attributes: Mapping[str, Any], q: Floats, k: Floats, v: Floats) -> Floats:
        """Attention of q, (tokens, heads, k_dim), after k and v were put into the cache: (tokens, heads, v_dim)."""
        layer, spec = attributes["layer"], attributes["spec"]
        self.cache.append(layer, self.sequences, k, v)
        rest = {key: attributes[key] for key in ("scale", "softcap", "sinks")}
        return self.cache.attend(layer, self.sequences, q, window=spec.window, **rest)


def run(graph: Graph, step: Step) -> Floats:
    """The result of a graph."""
    values: dict[Value, Floats] = {}
    for node in graph.nodes:
        inputs = (values[value] for value in node.inputs)
        result = FUNCTIONS[node.operation](step, *inputs, **node.attributes)
        values.update(zip(node.outputs, result if isinstance(result, list) else [result], strict=True))
    return values[graph.result]


def embed(step: Step, *, table: QuantTensor, scale: float) -> Floats:
    return step.weights(table)[step.tokens] * np.float32(scale)


def norm(step: Step, x: Floats, *, weight: Floats, eps: float) -> Floats:
    mean = np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps) * weight, np.float32)


def linear(step: Step, x: Floats, *, w: QuantTensor, bias: Floats | None) -> Floats:
    y = x @ step.weights(w).T
    return np.asarray(y if bias is None else y + bias, np.float32)


def gate(step: Step, gate: Floats, up: Floats, *, kind: str) -> Floats:
    return np.asarray(GATE_FUNCTIONS[kind](gate.astype(np.float64)) * up, np.float32)


def add(step: Step, a: Floats, b: Floats) -> Floats:
    return a + b


def rope(step: Step, x: Floats, *, heads: int, rope: Rope) -> Floats:
    pairs = len(rope.inv_freq)
    angles = step.positions[:, None, None] * rope.inv_freq.astype(np.float64)
    cos, sin = (np.float32(rope.scale) * f(angles).astype(np.float32) for f in (np.cos, np.sin))
    out = x.reshape(len(x), heads, -1).copy()
    if rope.neox:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out.reshape(x.shape)


def attend(step: Step, q: Floats, k: Floats, v: Floats, **attributes: Any) -> Floats:
    spec: AttentionSpec = attributes["spec"]
    rows = len(q)
    queries, keys = (x.reshape(rows, -1, spec.k_dim) for x in (q, k))
    return step.attend(attributes, queries, keys, v.reshape(rows, -1, spec.v_dim)).reshape(rows, -1)


def gather(step: Step, x: Floats) -> Floats:
    return x[step.logits_indices]


def linears(
    step: Step,
    x: Floats,
    residual: Floats | None = None,
    *,
    terms: Sequence[tuple[QuantTensor, Floats | None]],
    norm: tuple[Floats, float] | None,
) -> list[Floats]:
    rows = _normed(step, x, norm)
    products = [linear(step, rows, w=w, bias=bias) for w, bias in terms]
    return products if residual is None else [residual + y for y in products]


def gated(
    step: Step, x: Floats, *, gate: QuantTensor, up: QuantTensor, kind: str, norm: tuple[Floats, float] | None
) -> Floats:
    (rows,) = linears(step, x, terms=[(gate, None)], norm=norm)
    (others,) = linears(step, x, terms=[(up, None)], norm=norm)
    return np.asarray(GATE_FUNCTIONS[kind](rows.astype(np.float64)) * others, np.float32)


def _normed(step: Step, x: Floats, given: tuple[Floats, float] | None) -> Floats:
    return x if given is None else norm(step, x, weight=given[0], eps=given[1])


def _sigmoid(x: Doubles) -> Doubles:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


_erf = np.vectorize(math.erf, otypes=[np.float64])

GATE_FUNCTIONS: dict[str, Callable[[Doubles], Doubles]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0),
}

FUNCTIONS: dict[str, Callable[..., Floats | list[Floats]]] = {
    function.__name__: function for function in (embed, norm, linear, gate, add, rope, attend, gather, linears, gated)
}
